"""Files, figures and terminal tables from results."""

from reports.figures import draw
from reports.reader import load
