from .errors import UserError as UserError
from .estimates import (
    FEW as FEW,
    TIE as TIE,
    Counts as Counts,
    Estimate as Estimate,
    Flags as Flags,
    Floats as Floats,
    Integers as Integers,
    Table as Table,
    Unit as Unit,
    number_of_items as number_of_items,
    numbers as numbers,
)
from .figures import (
    AttentionLines as AttentionLines,
    Bars as Bars,
    ColouredText as ColouredText,
    ColouredTexts as ColouredTexts,
    Curves as Curves,
    Figure as Figure,
    HeatMap as HeatMap,
    Maps as Maps,
    Spreads as Spreads,
    on_one_scale as on_one_scale,
)
from .result import (
    Finding as Finding,
    Provenance as Provenance,
    Result as Result,
    free_name as free_name,
    merge_results as merge_results,
)
from .sentences import (
    LEVEL as LEVEL,
    count_significant as count_significant,
    fill_sentence as fill_sentence,
    format_difference as format_difference,
    format_estimate as format_estimate,
    format_p as format_p,
)
