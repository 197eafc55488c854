"""Results → files, figures and tables in the terminal."""

from reports.figures import draw
from reports.load import load
from reports.writer import ResultWriter
