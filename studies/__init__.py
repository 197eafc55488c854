"""Evidence made with the application, and no part of it: models whose answers are known, and the table of papers."""

from studies.agreement import HeadAgreement
from studies.known_answers import KnownAnswers
