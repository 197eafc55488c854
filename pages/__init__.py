"""HTML pages from plain data, each one file that works without network, server or other files."""

from pages.shell import Packed, document
from pages.view import PieceValues, View, view_page
