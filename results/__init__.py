"""Results of experiments as plain data: estimates with units, tables and figures; no drawing and no files."""

from results.errors import UserError
from results.estimates import FEW, TIE, Counts, Estimate, Flags, Floats, Integers, Table, Unit, numbers
from results.figures import (
    AttentionLines,
    Bars,
    ColouredText,
    ColouredTexts,
    Curves,
    Figure,
    HeatMap,
    Maps,
    Spreads,
    on_one_scale,
)
from results.result import Provenance, Result, free_name, merged
from results.sentences import LEVEL, difference_said, filled, p_said, said, significant
