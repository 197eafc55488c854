import re
from inspect import isabstract
from pathlib import Path
from typing import get_args

import pytest
import yaml
from pytorch_lightning import LightningModule

from attention_probing import fidelity, measures, models, probes
from attention_probing.attention.ablation import Kind
from attention_probing.attention.quantities import QUANTITIES
from attention_probing.fidelity import FidelityTest
from attention_probing.fidelity.saliency import KNOWN
from attention_probing.measures import Measure
from attention_probing.models.regularizers import Regularizer
from attention_probing.results.citations import format_citations, read_citations, read_registry
from tests.rooms import exports

ROOMS = (fidelity, measures, models, probes)


def test_every_experiment_names_its_paper_or_is_our_own() -> None:
    kinds = (LightningModule, Measure, FidelityTest, Regularizer)
    offered = {
        name
        for name, value in exports(*ROOMS).items()
        if isinstance(value, type) and issubclass(value, kinds) and not isabstract(value)
    } - {"FidelityTest", "HeadSelectionProbe", "MapMeasure", "Measure", "TextClassifier"}
    known = read_citations()
    assert not offered - known["names"].keys() - set(known["own"])
    assert not known["names"].keys() & set(known["own"])
    # Nor is anything named that is not there.
    assert {*known["names"], *known["own"]} <= {*exports(*ROOMS), *QUANTITIES, *KNOWN, *get_args(Kind)}


def test_every_entry_is_whole_and_used() -> None:
    known = read_citations()
    used = {key for keys in known["names"].values() for key in keys} | {"attention-probing"}
    assert used == known["entries"].keys()
    for key, entry in known["entries"].items():
        assert re.match(rf"@\w+\{{{key},\n", entry)
        assert entry.count("{") == entry.count("}")
        fields = dict(re.findall(r"^  (\w+) = \{(.*)\},?$", entry, re.MULTILINE))
        assert fields.keys() >= {"title", "author"}
        assert "year" in fields
        assert key == "attention-probing" or fields.keys() & {"doi", "url"}
        assert not entry.startswith("@inproceedings") or "booktitle" in fields


@pytest.mark.checkout
def test_the_application_is_cited_as_its_citation_file_says() -> None:
    file = yaml.safe_load((Path(__file__).parents[2] / "CITATION.cff").read_text(encoding="utf-8"))
    entry = format_citations([])
    assert f"title = {{{file['title']}}}" in entry
    assert f"version = {{{file['version']}}}" in entry
    assert f"author = {{{{{file['authors'][0]['name']}}}}}" in entry
    # And the papers that it names are those that are cited here.
    papers = {entry["doi"].lower() for entry in file["references"] if "doi" in entry}
    assert papers <= set(re.findall(r"doi = \{(.*)\}", "\n".join(read_citations()["entries"].values()).lower()))


def test_a_paper_is_cited_once_and_a_corpus_as_the_registry_says() -> None:
    found = format_citations(["AttentionOnlyProbe", "SingleHeads", "Unknown", "sst2", "sst2", "my/{split}.tsv"])
    keys = re.findall(r"^@\w+\{([\w-]+),", found, re.MULTILINE)
    assert keys == ["clark2019", "voita2019", "htut2019", "limisiewicz2020", "sst2", "attention-probing"]
    assert "  author = {Socher and others},\n  title = {{Recursive Deep Models for Semantic" in found


@pytest.mark.parametrize("name", read_registry())
def test_the_entry_of_a_corpus_is_whole(name: str) -> None:
    fields = re.findall(r"^  (?:author|title|year|booktitle) = \{+(.+?)\}+,$", format_citations([name]), re.MULTILINE)
    authors, title, year, venue = fields[:4]
    said = f"{authors} {year}, {title}, {venue}".replace("and others", "et al.")
    assert read_registry()[name]["citation"].replace(" & ", " and ").startswith(said)


def test_bibtex_separates_authors_by_and(monkeypatch: pytest.MonkeyPatch) -> None:
    for authors, expected in {
        "Roth": "Roth",
        "Li & Roth": "Li and Roth",
        "Rossi, Li & Roth": "Rossi and Li and Roth",
        "Rossi, Li, & Roth": "Rossi and Li and Roth",
        "Rossi et al.": "Rossi and others",
    }.items():
        corpus = {"citation": f"{authors} 2002, Question, Answer & Text, COLING", "homepage": ""}
        monkeypatch.setattr("attention_probing.results.citations.read_registry", lambda corpus=corpus: {"trec": corpus})
        assert f"  author = {{{expected}}},\n  title = {{{{Question, Answer \\& Text}}}},\n" in format_citations(
            ["trec"]
        )


def test_a_quantity_and_a_ranking_are_cited_once() -> None:
    keys = re.findall(
        r"^@\w+\{([\w-]+),", format_citations(["norms", "attention_norm", "integrated_gradients"]), re.MULTILINE
    )
    assert keys == ["kobayashi2020", "sundararajan2017", "attention-probing"]
