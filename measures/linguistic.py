"""Attention to classes of words and to delimiters, and between pairs of them (Kovaleva et al. 2019, §4.2–4.4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import torch
from torch import Tensor

from attention import Encoder
from attention.capture import uniform_attention
from corpora.texts import Passage
from datamodules import SegmentBatch, TextDataModule
from measures.attention_analyses import Analysis
from measures.by_head import HeadMeans, best_audit, best_head, by_class
from measures.relations import Cells, token_pairs, tokens_of_words
from metrics.moments import Means
from results import Estimate, Floats, HeatMap, Result, Table, Unit, on_one_scale
from results.errors import UserError, check_values
from results.heads import head_map

DELIMITERS = ("start", "end")

_ARCS = (("subjects", "verbs"), ("objects", "verbs"))
_FREE = (("nouns", "pronouns"),)


@dataclass(frozen=True)
class TokenClass:
    """Class of words, defined by part of speech, by relation to the governor, or by form.

    A word is in the class if one of the three matches.

    Attributes:
        upos: Universal parts of speech.
        relations: Relations of the word to its head, with all subtypes: `nsubj` includes `nsubj:pass`.
        words: Lower-cased forms.
    """

    upos: tuple[str, ...] = ()
    relations: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_values(self, **vars(self))

    def holds(self, upos: str, relation: str, word: str) -> bool:
        """Return True if a word is in the class.

        Args:
            upos: Universal part of speech of the word.
            relation: Relation of the word to its head.
            word: Form of the word.
        """
        plain = relation.partition(":")[0]
        return upos in self.upos or not {relation, plain}.isdisjoint(self.relations) or word.lower() in self.words


CLASSES: Mapping[str, TokenClass] = {
    "nouns": TokenClass(upos=("NOUN", "PROPN")),
    "verbs": TokenClass(upos=("VERB",)),
    "pronouns": TokenClass(upos=("PRON",)),
    "subjects": TokenClass(relations=("nsubj", "csubj")),
    "objects": TokenClass(relations=("obj", "iobj")),
    "negation": TokenClass(words=("not", "n't", "n’t", "no", "never", "none", "nobody", "nothing", "neither", "nor")),
}


class Linguistic(Analysis):
    """Attention to classes of words, and between pairs of classes (Kovaleva et al. 2019, §4.2–4.4).

    The attention that a token receives is the mean of its column over the tokens of the segment. The
    attention to a class is the maximum over the tokens of the class.

    The attention between two classes is the largest weight from a token of the first to a token of the
    second. The pairs are:

    - subjects to verbs, and objects to verbs: a word is paired only with a verb that is its syntactic
        head;
    - nouns to pronouns: all nouns and pronouns of the segment count;
    - the start delimiter to each class: all words of the class count.

    All numbers are averaged over segments. Tables show them beside the same numbers of uniform
    attention. In a decoder, whose tokens attend only to earlier ones, the attention between two classes
    can only be 0 if all tokens of the second come after those of the first. Such a segment is left out like one without
    the pair. A pair that no segment can have (start delimiter → noun) has no row.

    Args:
        classes: Classes by name; None for nouns, verbs, pronouns, subjects, objects and negation. The
            delimiters are added.
        missing: `skip` leaves out segments without the class or pair; `zero` counts them as 0, as the
            released code does.

    Raises:
        UserError: The texts have no part-of-speech tags; one of the given `classes` has no word in the
            texts; or, without `classes`, there is neither noun, verb nor pronoun, as with tags that are not those of
            Universal Dependencies.
    """

    name = "linguistic"

    def __init__(
        self, classes: Mapping[str, TokenClass] | None = None, missing: Literal["skip", "zero"] = "skip"
    ) -> None:
        super().__init__()
        check_values(self, missing=missing)
        self._classes = dict(CLASSES if classes is None else classes)
        self._named = classes is not None
        self.missing = missing
        pairs = [(*pair, True) for pair in _ARCS] + [(*pair, False) for pair in _FREE]
        self._pairs = [pair for pair in pairs if {*pair[:2]} <= {*self._classes}]
        self._columns = [*self._classes, *DELIMITERS]
        self.pairs = [f"{source}_to_{target}" for source, target, _ in self._pairs]
        self.pairs += [f"start_to_{name}" for name in self._classes]

    def begin(self, data: TextDataModule, encoder: Encoder) -> None:
        tags, absent = set[str](), set(self._classes)
        for passage in chain.from_iterable(data.passages()):
            if passage.sentence is None:
                raise UserError(
                    f"{type(self).__name__} needs treebanks, for their part-of-speech tags, but some texts have no "
                    "tags. Give only treebanks: --data.init_args.corpora ud_english_ewt, or CoNLL-U files."
                )
            tags |= set(passage.sentence.upos)
            absent -= {name for name in absent if any(_holds(self._classes[name], passage))}
        of_tags = {name for name, one in self._classes.items() if one.upos}
        if absent and (self._named or absent >= of_tags):
            raise UserError(
                f"{type(self).__name__}: no word of the texts belongs to the class {' or '.join(sorted(absent))}. The "
                f"texts have the tags {', '.join(sorted(tags))}: define `classes` by some of these."
            )
        self._absent = sorted(absent)
        self._encoder = encoder
        units: dict[str, Unit] = dict.fromkeys([*self._columns, *self.pairs], "fraction")
        self._numbers = HeadMeans(encoder, units, uniform=encoder.layers)

    def update(self, batch: SegmentBatch, layer: int, weights: Tensor) -> None:
        if not layer:
            self._members, self._cells = self._places(batch)
        self._numbers.add(self._measured(batch, weights))

    def end(self, batch: SegmentBatch) -> None:
        masks, of_layers = self._encoder.allowed(batch.mask)
        uniform = self._measured(batch, uniform_attention(masks))[:, of_layers]
        self._numbers.close(batch.index % 2, uniform, uniform if self.missing == "skip" else torch.ones_like(uniform))

    def _places(self, batch: SegmentBatch) -> tuple[Tensor, Cells]:
        """Return the tokens of each class, bool `[batch, classes, time]`, and the cells of each segment's pairs."""
        members = torch.zeros(len(batch.index), len(self._columns), batch.tokens.size(1), dtype=torch.bool)
        cells: list[tuple[int, int, int, int]] = []
        for row, (tokens, passages) in enumerate(zip(tokens_of_words(batch), batch.passages, strict=True)):
            words = {
                name: {place for place, found in enumerate(chain(*(_holds(one, each) for each in passages))) if found}
                for name, one in self._classes.items()
            }
            for number, own in enumerate(words.values()):
                members[row, number, [place for word in own for place in tokens[word]]] = True
            heads = _heads(passages)
            found: list[list[tuple[int, int]]] = []
            for source, target, arc in self._pairs:
                if arc:
                    arcs = [(word, heads[word]) for word in sorted(words[source]) if heads[word] in words[target]]
                    found.append([cell for word, head in arcs for cell in token_pairs(tokens, [word], [head])])
                else:
                    found.append(token_pairs(tokens, sorted(words[source]), sorted(words[target])))
            starts = batch.start[row].nonzero().flatten().tolist()
            for own in words.values():
                found.append([(start, place) for start in starts for word in sorted(own) for place in tokens[word]])
            cells += [(row * len(found) + pair, row, *cell) for pair, some in enumerate(found) for cell in some]
        delimiters = torch.stack([getattr(batch, name) for name in DELIMITERS], 1)
        members = members.to(batch.tokens.device)
        members[:, len(self._classes) :] = delimiters
        return members, Cells.from_rows(len(batch.index) * len(self.pairs), cells, batch.tokens.device)

    def _measured(self, batch: SegmentBatch, weights: Tensor) -> Tensor:
        """Return attention to the classes and between the pairs, float64 `[batch, heads, classes and pairs]`."""
        weights = weights.double()
        received = (weights * batch.mask[:, None, :, None]).sum(2) / batch.lengths[:, None, None]
        to_classes = received[:, :, None].masked_fill(~self._members[:, None], -1.0).amax(-1)
        to_classes = to_classes.masked_fill(to_classes < 0, torch.nan)
        between_pairs = self._cells.largest(weights).view(len(weights), len(self.pairs), -1).transpose(1, 2)
        found = torch.cat([to_classes, between_pairs], 2)
        return found.nan_to_num(0.0) if self.missing == "zero" else found

    def by_head(self) -> Mapping[str, Means]:
        """Return each head's mean attention to each class of words and to delimiters, named `to_<class>`.

        The names for the delimiters are `to_start` and `to_end`.
        """
        found = self._numbers.by_head()
        return {f"to_{name}": found[name] for name in self._columns}

    def result(self, others: Mapping[str, Analysis]) -> Result:
        # Classes and pairs that some segment has.
        means = self._numbers.means("uniform")
        every = enumerate(self._numbers.over().items())
        found = {name: one for place, (name, one) in every if means.sums[..., place].any()}
        classes = {name: one for name, one in found.items() if name in self._columns}
        pairs = {name: one for name, one in found.items() if name in self.pairs}
        by_layer = means.over().value  # [layers, classes and pairs]
        uniform = dict(zip(self._numbers.units, by_layer.T.tolist(), strict=True))
        best = {name: best_head(one) for name, one in found.items()}
        return Result(
            experiment=self.name,
            scores={f"{self.name}.{name}": estimate for name, (_, estimate) in best.items()},
            headline=[f"{self.name}.{name}" for name in classes],
            tables={"linguistic": _table(classes, uniform, "class"), "token_to_token": _table(pairs, uniform, "pair")},
            figures={**_maps(classes, "Attention to"), **_maps(pairs, "Attention from")},
            audit={"missing": self.missing, "absent_classes": ", ".join(self._absent) or "none", **best_audit(best)},
        )


def _holds(words: TokenClass, passage: Passage) -> list[bool]:
    """Mark the words of a passage that are in a class."""
    assert passage.sentence is not None  # by `Linguistic.begin`
    columns = (passage.sentence.upos, passage.sentence.relations, passage.sentence.words)
    return [words.holds(*one) for one in zip(*columns, strict=True)]


def _heads(passages: tuple[Passage, ...]) -> list[int]:
    """Return the 0-based position of each word's governor in the segment; -1 for a root."""
    heads: list[int] = []
    for passage in passages:
        before = len(heads)
        assert passage.sentence is not None
        heads += [before + head - 1 if head else -1 for head in passage.sentence.heads]
    return heads


def _table(found: Mapping[str, Estimate[Floats]], uniform: Mapping[str, Sequence[float]], label: str) -> Table:
    """Return attention by class and layer, beside that of uniform attention."""
    frame = by_class(found, "attention", label)
    frame["uniform"] = [uniform[name][layer - 1] for name, layer in zip(frame[label], frame["layer"], strict=True)]
    return Table(frame, {"attention": "fraction", "uniform": "fraction"}, interval="attention")


def _maps(found: Mapping[str, Estimate[Floats]], what: str) -> dict[str, HeatMap]:
    """Draw attention by head; maps of words share one scale, and maps of delimiters another."""
    maps = {
        name: head_map(f"{what} {name.replace('_', ' ')}", one.value, marked=best_head(one)[0], value_label="attention")
        for name, one in found.items()
    }
    delimiters = {name: one for name, one in maps.items() if name in DELIMITERS}
    words = {name: one for name, one in maps.items() if name not in DELIMITERS}
    drawn = {**on_one_scale(words), **on_one_scale(delimiters)}
    return {f"linguistic_{name}": one for name, one in drawn.items()}
