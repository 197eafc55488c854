"""Every p-value that is written has a row in the table of calibration, and keeps its level."""

import ast
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from studies.calibration import CASES, NULLS, rate

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "known_answers.md").read_text(encoding="utf-8")
COLUMN = re.compile(r"(?:\w+[._])?p(?:_[a-z]+)*|\.p(?:_[a-z]+)?")
UNWRITTEN = {
    "beyond.p": "a name of `Estimate.named`, renamed to p",
    "beyond_random.p": "renamed to beyond_random_p",
    "difference.p": "renamed to p",
    "least_p_holm": "the least p_holm that is possible",
    "least_p": "a unit",
    "p_holm": "of a family; see the last row",
    "beyond_random_p_holm": "of a family",
    "holm.p": "of a family",
}
"""Names that are no p-values of their own."""
CONSERVATIVE = {"one head, 3 other heads", "set of heads, each moves 2 % of the texts"}
"""Found less often than 5 %, as two tests must find them: of sets and of texts."""
ELSEWHERE = {"results/estimates.py": "an ending", "results/page.py": "a copy"}
ELSEWHERE |= dict.fromkeys(("results/sentences.py", "results/tables.py"), "a unit")


def columns() -> set[str]:
    """Every text of the code that may name a column of p-values, as `<file>: <column>`; `p` is also a unit."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [
        name for name in listed.splitlines() if not name.startswith(("tests/", "docs/", "benchmarks/", "studies/"))
    ]
    found = set()
    for name in sorted({*files} - ELSEWHERE.keys()):
        for node in ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and COLUMN.fullmatch(node.value):
                found.add(f"{name}: {node.value}")
    return {one for one in found if one.partition(": ")[2] not in UNWRITTEN}


def test_every_column_of_p_values_has_a_row_in_the_table_of_calibration() -> None:
    rows = {one for case in CASES.values() for one in case.columns.split(", ")}
    of_unit = {"metrics/bootstrap.py: p"}  # the unit alone
    assert columns() - rows == of_unit, "simulate the new p-values in studies/calibration.py"
    assert {one for one in rows if one.partition(":")[0].endswith(".py")} <= columns() - of_unit
    for name, case in CASES.items():
        [line] = [line for line in PAGE.splitlines() if line.startswith(f"| {name.strip()} | {case.columns} |")]
        hits, known, power = re.findall(r"\| ([\d.]+) \[[^|]*\| ([\d,]+) \| ([\d.]+) \[", line)[0]
        assert int(known.replace(",", "")) >= NULLS
        assert (0.5 if name in CONSERVATIVE else 3) <= float(hits) <= 7, line
        assert float(power) >= 25, line


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_p_values_keep_their_level_and_find_what_is_there(name: str) -> None:
    case, number = CASES[name], 200
    hits, known = rate(case, 0.0, number)
    assert known == number
    assert (0 if name in CONSERVATIVE else 2) <= hits <= number * (0.05 + 3.5 * np.sqrt(0.05 * 0.95 / number))
    assert rate(case, case.effect, 40)[0] >= 10
