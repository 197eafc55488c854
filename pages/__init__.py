"""Plain data → one HTML file that stands alone: no network, no server, no second file."""

from pages.shell import Packed, document
from pages.view import PieceValues, View, view_page
