"""Results → files, figures and tables in the terminal."""

from reports.figures import draw
from reports.reader import load
