"""Captions of figures and tables: their titles, with the encoder and the corpora that they are of."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

from attention_probing.results.figures import TitlePart
from attention_probing.results.result import Provenance, Result

_MOST_CORPORA = 3  # most corpora in a caption


@dataclass(frozen=True)
class CaptionSources:
    """Encoder and corpora of a run, as captions name them.

    Attributes:
        encoder: Name of the encoder, with what is unusual about it; empty if there is none.
        corpora: Name and tested split of each corpus; the split is None for a corpus without any.
        transfer: Corpus that was learned from, if it is not the tested one; else empty.
        gold: Whose gold the items have, if it is not their own; else empty.
    """

    encoder: str
    corpora: tuple[tuple[str, str | None], ...]
    transfer: str
    gold: str = ""

    @classmethod
    def from_provenance(cls, provenance: Provenance) -> Self:
        """Create the sources from the description of a run."""
        encoder = _describe_encoder(provenance.encoder)
        before = provenance.encoder.get("before")
        if isinstance(before, Mapping):
            encoder += f" from {_describe_encoder(before)}"
        corpora = tuple(dict.fromkeys(_tested_corpora(provenance.data)))
        transfer = str(provenance.data.get("transfer", ""))
        return cls(encoder, corpora, transfer, str(provenance.data.get("gold", "")))

    def caption(self, title: str, title_says: TitlePart | None = None) -> str:
        """Return a title with the sources added, for instance `… (bert-base-cased; sst2, test)`.

        Args:
            title: The title.
            title_says: What the title has already of them; see `Figure.title_says`.
        """
        parts = [self.encoder]
        if title_says != "corpora":
            parts += self._name_corpora(with_split=title_says != "split")
        parts += [self.transfer, self.gold]
        sources = "; ".join(dict.fromkeys(part for part in parts if part))
        if not sources:
            return title
        if title.endswith(")"):
            return f"{title[:-1]}; {sources})"
        return f"{title} ({sources})"

    def _name_corpora(self, *, with_split: bool) -> list[str]:
        names = []
        for corpus, split in self.corpora:
            name = f"{corpus}, {split}" if with_split and split else corpus
            names.append(name)
        if len(names) <= _MOST_CORPORA:
            return names
        others = len(names) - _MOST_CORPORA + 1
        return [*names[: _MOST_CORPORA - 1], f"{others} other corpora"]


def add_sources(result: Result, sources: CaptionSources) -> Result:
    """Return the result with the sources in the title of each figure; a transfer and foreign gold in its answer."""
    figures = {}
    for name, figure in result.figures.items():
        figures[name] = replace(figure, title=sources.caption(figure.title, figure.title_says))
    answer = result.answer
    for source in (sources.transfer, sources.gold):
        if answer and source:
            answer = f"{answer.removesuffix('.')}; {source}."
    return replace(result, figures=figures, answer=answer)


def _describe_encoder(encoder: Mapping[str, object]) -> str:
    """Return the last part of the name of an encoder, with what is unusual: random weights, or another quantity."""
    name = str(encoder.get("name", "")).rpartition("/")[2]
    if not name:
        return ""
    parts = [name]
    weights = encoder.get("weights")
    if weights in ("random", "redrawn"):
        parts.append(f"{weights} weights")
    if encoder.get("quantity"):
        parts.append(str(encoder["quantity"]))
    return ", ".join(parts)


def _tested_corpora(data: Mapping[str, object], split: str | None = None) -> Iterator[tuple[str, str | None]]:
    """Yield name and split of every tested corpus; the split is None for a corpus without any."""
    if "corpus" in data:
        if "split" in data:
            split = str(data["split"])
        yield str(data["corpus"]), split
        return
    splits = [name for name in ("test", "dev", "train") if name in data]
    tested = splits[0] if splits else None
    for name, part in data.items():
        if isinstance(part, Mapping) and tested in (None, name):
            yield from _tested_corpora(part, tested)
