"""Results → files, figures and tables in the terminal."""

from reports.figures import draw
from reports.frame import load
from reports.writer import ResultWriter
