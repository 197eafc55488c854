"""Every p-value that is written has a row in the table of calibration, and keeps its level."""

import ast
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from studies.calibration import CASES, COVERED, NULLS, coverage_row, rate

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "known_answers.md").read_text(encoding="utf-8")
COLUMN = re.compile(r"(?:\w+[._])?p(?:_[a-z]+)*|\.p(?:_[a-z]+)?")
UNWRITTEN = {
    "beyond.p": "a name of `Estimate.columns`, renamed to p",
    "beyond_random.p": "renamed to beyond_random_p",
    "effect.p": "renamed to p",
    "difference.p": "renamed to p",
    "least_p_holm": "the least p_holm that is possible",
    "least_p": "a unit",
    "p_holm": "of a family; see the last row",
    "beyond_random_p_holm": "of a family",
    "holm.p": "of a family",
}
"""Names that are no p-values of their own."""
ELSEWHERE = {"results/estimates.py": "an ending", "results/page.py": "a copy"}
ELSEWHERE |= dict.fromkeys(("results/latex.py", "results/sentences.py", "results/tables.py"), "a unit")


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
    of_unit = {"commands/compare.py: p", "metrics/p_values.py: p"}  # the unit alone
    assert columns() - rows == of_unit, "simulate the new p-values in studies/calibration.py"
    assert {one for one in rows if one.partition(":")[0].endswith(".py")} <= columns() - of_unit
    for name, case in CASES.items():
        [line] = [line for line in PAGE.splitlines() if line.startswith(f"| {name.strip()} | {case.columns} |")]
        hits, known, power = re.findall(r"\| ([\d.]+) \[[^|]*\| ([\d,]+) \| ([\d.]+) \[", line)[0]
        assert int(known.replace(",", "")) >= NULLS
        assert (0 if case.conservative else 3) <= float(hits) <= 7, line
        assert case.conservative or float(power) >= 25, line


def test_the_table_of_calibration_has_few_items_seeds_and_documents() -> None:
    """Whatever n is, however much seeds and documents differ: a row that is left out is missed here."""
    few = {f"{what}, {n} {item}" for n in (3, 5, 8, 10, 20, 50, 200) for what, item in _FEW.items()}
    spreads = {f"{k} seeds a side, sd {sd} points" for k in (3, 5) for sd in ("0.0", "0.5", "1.0", "2.0")}
    documents = {f"{number} documents, sd 10 points" for number in (10, 20)}
    assert few | spreads | documents | {"largest of 30 differences"} <= CASES.keys()


_FEW = {"pairs of runs": "sentences", "pairs of decisions": "texts", "pairs of variants": "texts"}


def test_every_kind_of_interval_has_a_row_in_the_table_of_coverage() -> None:
    """At least 92 % of the intervals hold the number, and at most 98 % unless few items have exact intervals."""
    for name, case in COVERED.items():
        [line] = [line for line in PAGE.splitlines() if line.startswith(f"| {name} | ")]
        cells = dict(re.findall(r"(\d+): ([\d.]+)", line.split("|")[2]))
        assert list(cells) == [str(size) for size in case.sizes], line
        for rate_of_size in cells.values():
            assert 92 <= float(rate_of_size) <= (100 if case.few else 98), line
    kinds = {case.sizes for case in COVERED.values()}
    assert {(10, 30, 100), (3, 5)} <= kinds
    assert "named largest of 30 differences" in COVERED


@pytest.mark.parametrize(
    "name", ["share of texts", "difference of decisions, 20 % gained, 10 % lost", "number over seeds"]
)
def test_the_table_of_coverage_is_what_the_command_prints(name: str) -> None:
    """The same 1,000 samples of some fast rows, again."""
    line = coverage_row(name, COVERED[name], NULLS)
    assert line in PAGE.splitlines()


BETWEEN = re.compile(r", (3|8|20|50) (sentences|texts)|sd (0\.5|1\.0) points")
"""Cases between others of the same statistic, by a number alone: the page has their rates."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if not BETWEEN.search(name)])
def test_p_values_keep_their_level_and_find_what_is_there(name: str) -> None:
    case, number = CASES[name], 200
    hits, known = rate(case, 0.0, number)
    assert known == number
    assert (0 if case.conservative else 2) <= hits <= number * (0.05 + 3.5 * np.sqrt(0.05 * 0.95 / number))
    assert case.conservative or rate(case, case.effect, 40)[0] >= 10
