"""Results → files, figures and tables in the terminal."""

from reports import charts  # registers its drawings
from reports.figures import draw
from reports.writer import ResultWriter

__all__ = ["ResultWriter", "charts", "draw"]
