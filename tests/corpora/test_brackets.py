import pytest

from corpora.brackets import Brackets


@pytest.mark.parametrize(
    ("cells", "spans"),
    [
        (["(5)"], {(0, 1, 5)}),
        (["(1|(2", "", "2)|1)"], {(0, 3, 1), (0, 3, 2)}),
        (["(1", "(2", "1)", "2)"], {(0, 3, 1), (1, 4, 2)}),  # crossing
        (["(5", "5)|(7)"], {(0, 2, 5), (1, 2, 7)}),
        (["(5", "(5)", "5)"], {(0, 3, 5), (1, 2, 5)}),  # a cluster within itself
        (["(5|(5", "5)", "5)"], {(0, 2, 5), (0, 3, 5)}),
        (["(5", "(5", "5)|5)"], {(0, 3, 5), (1, 3, 5)}),
        (["(5", "5)|(5", "5)"], {(0, 2, 5), (1, 3, 5)}),  # from left to right: one ends, the next begins
        (["(12|(0)", "(07)", "12)"], {(0, 1, 0), (1, 2, 7), (0, 3, 12)}),
    ],
)
def test_brackets_become_spans(cells: list[str], spans: set[tuple[int, int, int]]) -> None:
    brackets = Brackets()
    for word, cell in enumerate(cells):
        if cell:
            assert brackets.read(cell, word, line=word + 3) is None
    assert set(brackets.closed) == spans
    assert len(brackets.closed) == len(spans)
    assert brackets.left_open() == []


@pytest.mark.parametrize("cell", ["5", "()", "(5|", "(5)(6)", "(-1)", "(5))", "(a)", "(5) |(6)", "(٣)", "*"])
def test_malformed_cells_are_refused(cell: str) -> None:
    trouble = Brackets().read(cell, 0, 1)
    assert trouble is not None
    assert trouble[0] == f"the coreference {cell!r} is malformed"


def test_what_is_left_open_is_told_in_the_order_of_lines() -> None:
    brackets = Brackets()
    for line, cell in enumerate(["(9", "(2|(3", "3)|(9"], start=7):
        assert brackets.read(cell, line - 7, line) is None
    assert brackets.left_open() == [(9, 7), (2, 8), (9, 9)]
    assert brackets.read("4)", 3, 10) == (
        "4) closes a mention of cluster 4, but none is open in the sentence",
        "Write (4 at its first word",
    )
