"""The papers' pages say what their own tables show."""

from pathlib import Path

import pytest
import yaml

from attention_probing.results import UserError
from studies.claims import CLAIMS, Passage, faults_of, read_claims, tables_of
from studies.numbers import read_numbers
from studies.paper import PAGE

PAGES = sorted(path for path in PAGE.parent.glob("*.md") if path != PAGE)
REGISTERED = read_claims(CLAIMS)
KEPT = [number[:3] for number in read_numbers(PAGE.with_suffix(".json"))[""].values()]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_says_what_its_tables_show(page: Path) -> None:
    """Each of the words and intervals is registered, each registered passage is there, and each claim holds."""
    faults = faults_of(page.read_text(encoding="utf-8"), REGISTERED.get(page.stem, []), KEPT)
    assert not faults, "\n".join(faults)


def test_the_registered_pages_exist_and_most_tables_have_claims() -> None:
    assert set(REGISTERED) <= {page.stem for page in PAGES}
    claims = [claim for passages in REGISTERED.values() for one in passages for claim in one.claims]
    assert len(claims) > 100
    assert {claim.get("quantifier", "all") for claim in claims} == {"all", "none", "only", "half"}


MADE_UP = """# A page

We use all-small-v2 and the option `all`. Every loss is over texts.

    probing measure    # all of them

| corpus | kind | loss | p | loss | n |
|---|---|---|---|---|---|
| A | base | 1.0 [.5, 1.5] (10) | .20 | − | 1,829 |
| | tying | **2.5** [2.0, 3.0] (20 / 30) | ≤ .01 | −3.5 | 12 |
| B | base | 4.0 [3.5, 4.5] (5) | .50 | 1 | 7 |
| | tying | 9.0 [8.0, 9.9] (60) | .02 | 2 | 8 |

![Losses of all texts](a.png)

- Only B is above 3.
- The loss of A is 1.0
  [.5, 1.5].
"""
TEXTS = "Every loss is over texts"
ABOVE = "Only B is above 3"
REASONS = [Passage(TEXTS, why="a definition"), Passage(ABOVE, why="a test")]
LOSS = {"table": 1, "columns": ["loss"]}
OF_A, OF_B = {"rows": {"corpus": "A"}}, {"rows": {"corpus": "B"}}


def faults_with(claim: dict[str, object]) -> list[str]:
    return faults_of(MADE_UP, [REASONS[0], Passage(ABOVE, [claim])])


def test_the_tables_of_a_page_are_read() -> None:
    """A blank first cell has the text above it, and the second column with a header a number."""
    (table,) = tables_of(MADE_UP)
    assert table.headers == ["corpus", "kind", "loss", "p", "loss (2)", "n"]
    assert [row["corpus"] for row in table.rows] == ["A", "A", "B", "B"]
    assert table.rows[1]["loss"] == "**2.5** [2.0, 3.0] (20 / 30)"


@pytest.mark.parametrize(
    ("claim", "false"),
    [
        ({"compare": ">", "than": 0.9}, {"compare": ">", "than": 1.0}),
        ({"compare": "≥", "than": 1.0}, {"compare": "≤", "than": 1.0}),
        (
            {"compare": "=", "than": 9.0, "rows": {"kind": "tying", "corpus": "B"}},
            {"compare": "=", "than": 9.0, **OF_B},
        ),
        ({"compare": ">", "than": 3, **OF_B}, {"compare": ">", "than": 3, "rows": {"kind": "tying"}}),
        (
            {"compare": ">", "than": 3, "without": {"corpus": "A"}},
            {"compare": ">", "than": 3, "without": {"corpus": "B"}},
        ),
        ({"compare": ">", "than": 9, "quantifier": "none"}, {"compare": ">", "than": 8, "quantifier": "none"}),
        ({"compare": ">", "than": 3, "quantifier": "half"}, {"compare": ">", "than": 4, "quantifier": "half"}),
        (
            {"compare": ">", "than": 3, "quantifier": "only", **OF_B},
            {"compare": ">", "than": 2, "quantifier": "only", **OF_B},  # so is tying of A
        ),
        (
            {"compare": ">", "than": 2, "quantifier": "only", **OF_B, "among": {"kind": "base"}},
            {"compare": ">", "than": 5, "quantifier": "only", **OF_B, "among": {"kind": "base"}},  # base of B is not
        ),
        ({"compare": ">", "than": 0.4, "part": "low"}, {"compare": ">", "than": 0.5, "part": "low"}),
        ({"compare": "<", "than": 10, "part": "high"}, {"compare": "<", "than": 9.9, "part": "high"}),
        ({"compare": "≤", "than": 20, "part": "share", **OF_A}, {"compare": "≤", "than": 20, "part": "share", **OF_B}),
        (
            {"compare": "=", "than": 1, "part": "marked", "rows": {"kind": "tying"}, "without": {"corpus": "B"}},
            {"compare": "=", "than": 1, "part": "marked", "rows": {"kind": "tying"}},
        ),
        (
            {"compare": ">", "than": {"rows": {"corpus": "A", "kind": "tying"}, "part": "high"}, **OF_B},
            {"compare": ">", "than": {"rows": {"corpus": "A", "kind": "tying"}, "times": 2}, **OF_B},
        ),
        ({"compare": ">", "than": {"column": "p"}}, {"compare": ">", "than": {"column": "n"}, **OF_B}),
        ({"compare": ">", "than": {"column": "loss (2)"}}, {"compare": "<", "than": {"column": "loss (2)"}}),
    ],
)
def test_a_true_claim_holds_and_a_false_one_is_told(claim: dict[str, object], false: dict[str, object]) -> None:
    assert not faults_with(LOSS | claim)
    (fault,) = faults_with(LOSS | false)
    assert fault.startswith(f"{ABOVE}: ")
    assert "fulfilled by" in fault


def test_a_changed_number_makes_a_claim_false() -> None:
    passages = [REASONS[0], Passage(ABOVE, [LOSS | OF_B | {"compare": ">", "than": 3, "quantifier": "only"}])]
    assert not faults_of(MADE_UP, passages)
    for old, new in (("4.0 [3.5, 4.5]", "2.9 [2.5, 3.5]"), ("**2.5** [2.0, 3.0]", "**3.1** [2.6, 3.6]")):
        (fault,) = faults_of(MADE_UP.replace(old, new), passages)
        assert new in fault


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ({"table": 2}, "the page has 1 tables, not 2"),
        ({"columns": ["los"]}, "the table has no column 'los'. Columns are corpus, kind, loss"),
        ({"rows": {"corpus": "C"}}, "no row has 'C' in the column 'corpus'"),
        ({"than": {"rows": {"corpus": "A"}}}, "`than` names 2 rows instead of one"),
        ({"columns": ["p"], "part": "low"}, "the cell '.20' has no low"),
        ({"columns": ["kind"]}, "no cell that is compared has a number"),
        ({"compare": "about"}, "`compare`"),
        ({"quantifier": "some"}, "`quantifier`"),
        ({"row": {}}, "unknown key `row`"),
    ],
)
def test_a_claim_that_cannot_be_compared_is_told(claim: dict[str, object], message: str) -> None:
    (fault,) = faults_with(LOSS | {"compare": ">", "than": 0} | claim)
    assert message in fault


def test_every_such_word_must_be_registered_in_one_place() -> None:
    """Code, names with hyphens, pictures and commands have none."""
    assert not faults_of(MADE_UP, REASONS)
    (fault,) = faults_of(MADE_UP, REASONS[:1])
    assert fault.startswith("not registered: … Only B is above 3")
    more = MADE_UP + "\nNo text is left out, and half of them are long.\n"
    assert len(faults_of(more, REASONS)) == 2
    assert len(faults_of(more, [*REASONS, Passage("No text is left out", why="a test")])) == 1
    for says, times in (("Only A is above 3", 0), ("loss", 2)):
        assert f"registered, but {times} times on the page: {says}" in faults_of(
            MADE_UP, [*REASONS, Passage(says, why="x")]
        )


def test_an_interval_stands_in_a_table_is_kept_or_has_a_reason() -> None:
    def foreign(text: str) -> list[str]:
        return faults_of(f"{MADE_UP}\n{text}\n", REASONS, [[-0.01234, -0.0249, 0.0051], [0.5, None, None]])

    assert not foreign("A gains −1.0 points [−1.5, −.5].")  # a loss of the table
    assert not foreign("It loses 1.2 [−.5, 2.5].")
    assert not foreign("It gains −.012 nats [−.025, .005] in layer 3.")
    assert foreign("It loses 1.3 [−.5, 2.5].") == ["in no table and not kept: 1.3 [−.5, 2.5]"]
    assert foreign("It loses 1.2 [−.5, 2.6].") == ["in no table and not kept: 1.2 [−.5, 2.6]"]
    with_claim = Passage("1.3 [−.5, 2.5]", [LOSS | {"compare": ">", "than": 0}])
    with_reason = Passage("1.3 [−.5, 2.5]", why="of another run")
    page = f"{MADE_UP}\nIt loses 1.3 [−.5, 2.5].\n"
    assert len(faults_of(page, [*REASONS, with_claim])) == 1
    assert not faults_of(page, [*REASONS, with_reason])


def test_a_table_that_is_shown_as_text_is_told() -> None:
    page = MADE_UP.replace("# all of them\n\n", "\nText:\n")
    assert "a table has no blank line before it, so it is shown as text" in faults_of(page, REASONS)


def test_a_passage_has_claims_or_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    for entry, message in (
        ({"says": "x"}, "give `claims`, or `why` it is no claim about a table"),
        ({"why": "x"}, "`says` is missing"),
        ({"says": "x", "because": "y"}, "unknown key `because`"),
    ):
        path.write_text(yaml.safe_dump({"a": [entry]}), encoding="utf-8")
        with pytest.raises(UserError, match=message):
            read_claims(path)
    path.write_text("- a\n", encoding="utf-8")
    with pytest.raises(UserError, match="must be a mapping from names of pages"):
        read_claims(path)
