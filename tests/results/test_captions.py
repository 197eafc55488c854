from dataclasses import replace

import pytest

from attention_probing.results import Bars, Provenance, Result
from attention_probing.results.captions import CaptionSources, add_sources
from attention_probing.results.figures import TitlePart

MINI = {"name": "sentence-transformers/all-MiniLM-L6-v2", "weights": "pretrained", "layers": 6}
EWT = {split: {"corpus": "en_ewt-ud", "file": f"en_ewt-ud-{split}.conllu"} for split in ("train", "dev", "test")}
TEXTS = {"reviews": {"corpus": "sst2", "split": "dev"}, "encyclopedia": {"corpus": "wiki_segments"}}


@pytest.mark.parametrize(
    ("title", "title_says", "encoder", "data", "expected"),
    [
        ("nsubj", None, MINI, EWT, "nsubj (all-MiniLM-L6-v2; en_ewt-ud, test)"),
        ("nsubj, chosen on dev", "split", MINI, EWT, "nsubj, chosen on dev (all-MiniLM-L6-v2; en_ewt-ud)"),
        ("Heads off (zero)", None, MINI, EWT, "Heads off (zero; all-MiniLM-L6-v2; en_ewt-ud, test)"),
        (
            "obj",
            None,
            {**MINI, "weights": "random", "quantity": "norms"},
            {},
            "obj (all-MiniLM-L6-v2, random weights, norms)",
        ),
        # The vectors are no corpus; a classifier of one's own has no encoder.
        ("Confusion", None, {}, {"vectors": {"file": "glove.gz"}, "dev": {"corpus": "sst2"}}, "Confusion (sst2, dev)"),
        (
            "Change",
            None,
            {"name": "tuned", "before": MINI},
            TEXTS,
            "Change (tuned from all-MiniLM-L6-v2; sst2, dev; wiki_segments)",
        ),
        # A title that is about some of the corpora.
        ("Change (reviews)", "corpora", MINI, TEXTS, "Change (reviews; all-MiniLM-L6-v2)"),
        # Parts with corpora of their own, and each corpus once.
        (
            "Roles",
            None,
            {},
            {"text": TEXTS, "dependency": EWT, "coreference": EWT},
            "Roles (sst2, dev; wiki_segments; en_ewt-ud, test)",
        ),
        ("Share", None, {}, {name: {"corpus": name} for name in "abcde"}, "Share (a; b; 3 other corpora)"),
        ("Nothing known", None, {}, {}, "Nothing known"),
    ],
)
def test_a_caption_names_the_encoder_and_the_tested_corpora_once(
    title: str, title_says: TitlePart | None, encoder: dict[str, object], data: dict[str, object], expected: str
) -> None:
    sources = CaptionSources.from_provenance(Provenance(encoder, data, {}))
    assert sources.caption(title, title_says) == expected


def test_a_treebank_that_is_learned_from_is_named_in_titles_and_in_the_answer() -> None:
    figure = Bars("nsubj", ("a",), {"x": [0.5]}, "y", unit="fraction")
    result = Result("p", {}, figures={"nsubj": figure}, answer="The probe finds 30 % of the heads.")
    sources = CaptionSources.from_provenance(
        Provenance({"name": "bert"}, {**EWT, "transfer": "learned on de_gsd-ud"}, {})
    )
    changed = add_sources(result, sources)
    assert changed.answer == "The probe finds 30 % of the heads; learned on de_gsd-ud."
    assert changed.figures["nsubj"].title == "nsubj (bert; en_ewt-ud, test; learned on de_gsd-ud)"
    no_transfer = CaptionSources.from_provenance(Provenance({}, EWT, {}))
    assert add_sources(result, no_transfer).answer == result.answer
    assert not add_sources(replace(result, answer=""), sources).answer
