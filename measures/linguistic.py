"""Attention to classes of words and delimiters, and along links such as semantic frames (Kovaleva et al. 2019, §4)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attention_probing.attention.masks import uniform_attention
from attention_probing.corpora.texts import HALVES, Link, Passage
from attention_probing.datamodules import SegmentBatch
from attention_probing.measures.by_head import HeadMeans, best_audit, best_head, by_class, by_name, head_rows
from attention_probing.measures.contract import MapMeasure
from attention_probing.metrics.attachment import sums_by
from attention_probing.metrics.moments import Means, Moments
from attention_probing.metrics.rows import ITEM, Rows
from attention_probing.metrics.stability import ChoiceStability, choose_again, warn_of_choice
from attention_probing.results import (
    Estimate,
    Finding,
    Floats,
    HeatMap,
    Result,
    Table,
    Unit,
    fill_sentence,
    format_estimate,
    on_one_scale,
)
from attention_probing.results.errors import UserError, pluralize, setting
from attention_probing.results.heads import head_map, head_name
from attention_probing.results.tables import DASH, format_number

ALL_LABELS = "all"
"""Label of the links of all labels together."""

WAYS = ("attention", "forward", "backward")
"""Larger of both directions; from the start of a link to its end; from the end to the start."""
_UNITS: Mapping[str, Unit] = dict.fromkeys(WAYS, "fraction")

_MAIN = ("label", "layer", "head", "attention", "uniform", "place", "at_place", "passages")
_HEADLINE = ("test", "uniform", "place", "beyond_place")  # printed scores beside that of all passages
_DEV, _TEST = range(len(HALVES))

PERCENTILE = 99
"""Heads above this percentile of their label are listed (Kovaleva et al. 2019, §4.2)."""
MAX_WORDS, MAX_ELEMENT, MIN_DISTANCE = 12, 3, 2
"""Largest number of words of a passage and of one end of a link, and least distance between its ends, 1 for neighbours
(ibid.)."""
DISTANCES = tuple(range(1, MAX_WORDS))
PLACES = (*(f"{pluralize(distance, 'token')} before" for distance in DISTANCES), "the first word")
"""Places that a head may attend to without knowing any word; an addition, the paper compares its heads with none. The
first word is the sink of many language models."""


@dataclass(frozen=True)
class Cells:
    """Cells (from, to) of the attention maps of a batch, each with an owner; maxima are taken by owner.

    An owner is for instance one relation label in one segment. A cell that counts for several owners is
    listed once for each.

    Attributes:
        owners: Number of owners.
        owner: Index of the owner of each cell, int64 `[cells]`.
        segment: Index of the cell's segment in the batch, int64 `[cells]`.
        source: Token position that attends, int64 `[cells]`.
        target: Token position that is attended to, int64 `[cells]`.
    """

    owners: int
    owner: Tensor
    segment: Tensor
    source: Tensor
    target: Tensor

    @classmethod
    def from_rows(cls, owners: int, rows: Iterable[tuple[int, int, int, int]], device: torch.device) -> Self:
        """Create cells from a tuple of four indices for each cell.

        Args:
            owners: Number of owners, see `Cells`.
            rows: For each cell the index of its owner, the index of its segment in the batch, and the
                positions of the attending token and of the token attended to.
            device: Device of the tensors.
        """
        columns = np.array(list(rows), np.int64).reshape(-1, 4).T
        return cls(owners, *torch.from_numpy(np.ascontiguousarray(columns)).to(device))

    def largest(self, weights: Tensor) -> Tensor:
        """Return the largest attention weight in the cells of each owner, `[owners, heads]`.

        An owner is for instance one relation label in one segment. An owner without cells gets nan.

        Args:
            weights: Attention weights `[batch, heads, from, to]`.
        """
        weights_of_cells = weights[self.segment, :, self.source, self.target]  # [cells, heads]
        blank = weights.new_full((self.owners, weights.size(1)), torch.nan)
        owner = self.owner[:, None].expand_as(weights_of_cells)
        return blank.scatter_reduce(0, owner, weights_of_cells, "amax", include_self=False)


def tokens_of_words(batch: SegmentBatch) -> list[list[list[int]]]:
    """Return the positions of the tokens of each word in each segment of a batch.

    The result is a list of segments; each is a list of words, and each word a list of positions.
    """
    segments = []
    for words, passages in zip(batch.words.tolist(), batch.passages, strict=True):
        count = sum(len(passage.words) for passage in passages)
        tokens: list[list[int]] = [[] for _ in range(count)]
        for place, word in enumerate(words):
            if word >= 0:
                tokens[word].append(place)
        segments.append(tokens)
    return segments


def token_pairs(tokens: list[list[int]], sources: Iterable[int], targets: Iterable[int]) -> list[tuple[int, int]]:
    """Return all pairs of a token of a source word and a token of a target word, as positions in a segment.

    Args:
        tokens: Positions of the tokens of each word of the segment.
        sources: Indices of the source words.
        targets: Indices of the target words.
    """
    starts = chain.from_iterable(tokens[word] for word in sources)
    ends = chain.from_iterable(tokens[word] for word in targets)
    return list(product(starts, ends))


class Relations(MapMeasure):
    """Attention between linked words, for instance of one semantic frame (Kovaleva et al. 2019, §4.2).

    A link joins one or several words at its start with one or several at its end, and has a label. In a
    treebank without links, the arcs of the trees are the links: each goes from the dependent to its
    governor, and its label is the relation.

    The attention of a head along a link is its largest weight between a token at the start of the link
    and a token at its end, in either direction. On a segment (one passage, or two) the largest over the
    segment's links is taken, and averaged over the segments that have links. This is done for the links
    of each label, and for all links together. A direction in which a decoder cannot attend along any of these links is
    left out.

    The best head is chosen on one half of the passages and tested on the other (`Passage.half`): the attention of the
    best of many heads on the passages on which it was chosen is too high. Beside it stand uniform attention, and the
    best fixed place, chosen on the same half: a head that gives all its attention to the token so many positions
    before, or to the first word (`PLACES`). The head is chosen again on resamples of its half (`metrics.stability`), by
    documents where all passages have one, else by segments.

    As in the paper, links are left out if they are in a passage of more than `MAX_WORDS` words, have
    more than `MAX_ELEMENT` words at one end, or have ends less than `MIN_DISTANCE` words apart. The
    audit counts the links that are left out, over all segments that are read.

    Raises:
        UserError: The texts have no links, or all links are left out. In `result`: no segment that was
            read has a link.
    """

    experiment = "relations"

    def begin(self) -> None:
        self._counts = Counter(dict.fromkeys(("links", "long_passage", "long_element", "near"), 0))
        labels: set[str] = set()
        documents: dict[str | None, int] = {}
        for passage in chain.from_iterable(self.data.passages()):
            documents.setdefault(passage.document, len(documents))
            for link in _links_of(passage):
                self._counts["links"] += 1
                reason = _reason_to_leave_out(passage, link)
                if reason is None:
                    labels.add(link.label)
                else:
                    self._counts[reason] += 1
        if not labels:
            counts = ", ".join(f"{name}: {count}" for name, count in self._counts.items())
            raise UserError(
                f"{type(self).__name__} found no links between words in the texts, or left all of them out "
                f"({counts}). Give a treebank "
                f"({setting('data.corpora', 'ud_english_ewt')}), or a corpus whose `format` is links, enhanced or "
                f"framenet."
            )
        self._labels = [ALL_LABELS, *sorted(labels)]
        self._documents = {} if None in documents else documents
        self._dev_rows = Rows()  # a row for each segment of the half that heads are chosen on, if it has links
        layers = self.encoder.layers
        groups = len(HALVES) * len(self._labels)
        baselines = layers + len(PLACES)  # uniform attention in each layer, and attention at each place
        self.numbers = HeadMeans(self.encoder, _UNITS, groups=groups, baselines=baselines)
        # Of the links of all labels: each head minus uniform attention, and minus attention at each place.
        shape = (layers, self.encoder.heads, 1 + len(PLACES))
        self.differences = Moments(len(HALVES), shape, "fraction", (-1, 1))
        self._layers: list[Tensor] = []

    def update_layer(self, batch: SegmentBatch, layer: int, weights: Tensor) -> None:
        if not layer:
            self._groups, self._cells = self._find_cells(batch)
        largest = self._largest_weights(weights)
        self._layers.append(largest[..., 0])
        self.numbers.add(largest)

    def update(self, batch: SegmentBatch) -> None:
        masks, mask_of_layer = self.encoder.allowed(batch.mask)
        uniform = self._largest_weights(uniform_attention(masks))[:, mask_of_layer]
        at_places = self._largest_weights(attention_at_places(batch))
        baselines = torch.cat([uniform, at_places], 1)
        possible = torch.cat([uniform, torch.ones_like(at_places)], 1)
        self.numbers.close(self._groups, baselines, possible)
        self._add_dev_rows(batch)
        self._subtract(uniform[..., 0], at_places[..., 0])

    def _add_dev_rows(self, batch: SegmentBatch) -> None:
        """Add the attention of each head along the links of all labels, for the segments that heads are chosen on."""
        if not self._dev_segments:
            return
        documents = []
        for segment in self._dev_segments.values():
            document = batch.passages[segment][0].document
            documents.append(self._documents.get(document, -1))
        self._dev_rows.add(
            batch.index[list(self._dev_segments.values())],
            document=torch.tensor(documents, dtype=torch.int64),
            attention=torch.stack(self._layers, 1)[list(self._dev_segments)],
        )

    def _choose_again(self) -> ChoiceStability:
        """Choose the best head, counted layer by layer, on resamples of its half; every process must call it."""
        rows = self._dev_rows.take()
        segments = len(rows[ITEM])
        if not segments:
            nothing = np.zeros(self.encoder.layers * self.encoder.heads, np.int64)
            return ChoiceStability(nothing, nothing, is_defined=False)
        attention = rows["attention"].reshape(segments, -1)
        units = rows["document"] if self._documents else rows[ITEM]
        is_defined = ~np.isnan(attention)
        return choose_again(sums_by(units, np.nan_to_num(attention)), sums_by(units, is_defined.astype(np.float64)))

    def _subtract(self, uniform: Tensor, at_places: Tensor) -> None:
        """Add the differences of a batch along the links of all labels.

        Args:
            uniform: Uniform attention `[owners, layers]`.
            at_places: Attention at each place `[owners, places]`.
        """
        heads = torch.stack(self._layers, 1)  # [owners, layers, heads]
        self._layers.clear()
        has_all_labels = self._groups < len(HALVES)
        possible = (uniform != 0)[has_all_labels, :, None, None]
        over_uniform = heads - uniform[..., None]
        over_places = heads[..., None] - at_places[:, None, None]
        differences = torch.cat([over_uniform[..., None], over_places], -1)[has_all_labels]
        self.differences.update(self._groups[has_all_labels], differences.where(possible, torch.nan))

    def _find_cells(self, batch: SegmentBatch) -> tuple[Tensor, Cells]:
        """Return the group of each label of each segment `[owners]`, and the cells from starts to ends of links."""
        groups: list[int] = []
        self._dev_segments: dict[int, int] = {}  # segment of each owner that heads are chosen on
        cells: list[tuple[int, int, int, int]] = []
        for row, (tokens, passages) in enumerate(zip(tokens_of_words(batch), batch.passages, strict=True)):
            owners: dict[str, int] = {}
            half = HALVES.index(passages[0].half)
            for label_of_link, pairs in _link_cells(tokens, passages):
                for label in (ALL_LABELS, label_of_link):
                    if label not in owners:
                        owners[label] = len(groups)
                        groups.append(len(HALVES) * self._labels.index(label) + half)
                        if groups[-1] == _DEV:
                            self._dev_segments[owners[label]] = row
                    owner = owners[label]
                    cells.extend((owner, row, source, target) for source, target in pairs)
        device = batch.tokens.device
        return torch.tensor(groups, dtype=torch.int64, device=device), Cells.from_rows(len(groups), cells, device)

    def _largest_weights(self, weights: Tensor) -> Tensor:
        """Return the largest weights of each owner in each of `WAYS`, float64 `[owners, heads, ways]`."""
        weights = weights.double()
        forward = self._cells.largest(weights)
        backward = self._cells.largest(weights.mT)
        return torch.stack([torch.maximum(forward, backward), forward, backward], -1)

    def by_head(self) -> Mapping[str, Means]:
        """Return the mean attention of each head along links of any label, under the key `relations`.

        The attention on a segment is the largest weight from the start of a link to its end, or back. It
        is averaged over the segments that have links.
        """
        return {"relations": self.numbers.means().select(slice(2)).at(0)}

    def result(self) -> Result:
        means = self.numbers.means()
        baselines = self.numbers.means("baselines").at(0)  # uniform attention in each layer, and each place
        frames: list[pd.DataFrame] = []
        tests: list[_HalfTest] = []
        for number, label in enumerate(self._labels):
            groups = slice(len(HALVES) * number, len(HALVES) * (number + 1))
            ways = by_name(means, WAYS, groups)
            if ways["attention"].inputs.any():
                frames.append(_rows(label, ways, baselines.over(groups).value))
                tests.append(_HalfTest(label, means.at(0).select(groups), baselines.select(groups)))
        if not frames:
            raise UserError(
                f"{type(self).__name__}: the segments that were read contain no link within the bounds. Read more of "
                f"them (`limit` in {setting('data.corpora')}) or longer ones ({setting('data.max_length')})."
            )
        heads = int(np.prod(means.sums.shape[1:-1]))
        all_labels = slice(len(HALVES))  # both groups of `ALL_LABELS`
        attention = by_name(means, WAYS, all_labels, heads)["attention"]
        place, best = best_head(attention)
        test = tests[0]
        again = self._choose_again()
        chosen = test.head[0] * self.encoder.heads + test.head[1]
        times, rivals = again.describe(chosen, lambda head: head_name(*divmod(head, self.encoder.heads)))
        scores = {ALL_LABELS: best, **test.scores(self.differences.compute())}
        scores["chosen"] = Estimate(np.nan if times is None else times, unit="count")
        if test.is_defined:
            answer = test.answer(heads, warn_of_choice(times, "this half"))
        else:
            by_chance = Estimate(float(baselines.over(all_labels).value[place[0]]), unit="fraction")
            text = f"of {heads} heads, {head_name(*place)} attends most along links on these {{n}} passages, {{best}} "
            text += "(uniform {by_chance})"
            answer = fill_sentence(text, {"best": best}, n=int(best.inputs), by_chance=by_chance)
        frame = pd.concat(frames, ignore_index=True)
        units: dict[str, Unit] = dict.fromkeys((*WAYS, "uniform"), "fraction")
        figure = head_map("Attention along links", attention.value, marked=place, value_label="largest weight")
        return Result(
            experiment=self.experiment,
            scores={f"{self.experiment}.{name}": score for name, score in scores.items()},
            headline=[f"{self.experiment}.{ALL_LABELS}", *(f"{self.experiment}.{name}" for name in _HEADLINE)],
            answer=answer,
            finding=Finding(f"{self.experiment}.{ALL_LABELS}", "attention of the best head along links"),
            tables={
                "relations": Table(frame, units),
                "relation_heads": Table(_highest(frame), units),
                "relation_tests": _test_table(tests),
            },
            figures={"relations": figure},
            audit={
                "max_words": MAX_WORDS,
                "max_element": MAX_ELEMENT,
                "min_distance": MIN_DISTANCE,
                "labels": len(frames) - 1,
                "best_head": head_name(*place),
                "rivals": rivals or "",
                **self._counts,
            },
        )


def attention_at_places(batch: SegmentBatch) -> Tensor:
    """Return attention at each of `PLACES`: 1 to one token, 0 to the others, float64 `[batch, places, time, time]`.

    The rows of tokens before which there is none at a distance are 0. The first token of the first word receives all
    attention of the last map, but not its own.
    """
    time = batch.tokens.size(1)
    ones = torch.ones(time, time, dtype=torch.float64, device=batch.tokens.device)
    at_distances = torch.stack([ones.tril(-distance).triu(-distance) for distance in DISTANCES])
    first = (batch.words >= 0).int().argmax(1)
    places = torch.arange(time, device=first.device)
    is_first = places == first[:, None]
    to_first = (is_first[:, None] & ~is_first[..., None]).double()
    return torch.cat([at_distances.expand(len(first), -1, -1, -1), to_first[:, None]], 1)


class _HalfTest:
    """The heads of a label that are best on the dev half of the passages, and the best place, on the test half.

    Args:
        label: The label.
        heads: Attention of each head along links of the label, by half.
        baselines: Uniform attention in each layer, and attention at each place, by half.
    """

    def __init__(self, label: str, heads: Means, baselines: Means) -> None:
        layers = heads.sums.shape[1]
        self.label = label
        self.dev = heads.over([_DEV])
        self.test = heads.over([_TEST])
        self.uniform = baselines.over([_TEST])[:layers]
        self.at_places = baselines.over([_TEST])[layers:]
        self.is_defined = bool(self.dev.inputs.any() and self.test.inputs.any())
        self.head, _ = best_head(self.dev)
        at_places_on_dev = baselines.over([_DEV]).value[layers:]
        self.place = int(np.nan_to_num(at_places_on_dev).argmax())

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each head above the `PERCENTILE` on dev, the best first."""
        rows = head_rows({"dev": self.dev.value, "attention": self.test, "passages": self.test.inputs})
        rows.insert(0, "label", self.label)
        rows["uniform"] = self.uniform.value[rows["layer"] - 1]
        rows["place"] = PLACES[self.place]
        for name, value in self.at_places[self.place].columns("at_place").items():
            rows[name] = value
        highest = rows[rows["dev"] > rows["dev"].quantile(PERCENTILE / 100)]
        return highest.sort_values("dev", ascending=False)

    def scores(self, differences: Means) -> dict[str, Estimate]:
        """Return the attention of the best head on test, and what stands beside it; nan if a half has no link.

        Args:
            differences: Each head minus uniform attention, and minus attention at each place, by half.
        """
        over_baselines = differences.over([_TEST])[self.head]
        scores = {
            "test": self.test[self.head],
            "uniform": self.uniform[self.head[0]],
            "place": self.at_places[self.place],
            "beyond_uniform": over_baselines[0],
            "beyond_place": over_baselines[1 + self.place],
        }
        if self.is_defined:
            return scores
        return {name: Estimate(np.nan, np.nan, np.nan, unit="fraction") for name in scores}

    def answer(self, heads: int, again: str) -> str:
        """Return the answer: the best head on dev, its attention on test, and what stands beside it.

        Args:
            heads: Number of heads.
            again: Words behind the name of a head that is seldom chosen again; see `warn_of_choice`.
        """
        text = (
            f"of {heads} heads, {head_name(*self.head)} attends most along links on one half of the passages{again}; "
        )
        text += "on the {n} of the other half its largest weight is {test} on average, that of uniform attention "
        text += "{uniform}, that of a head that always attends to one place ({place}) {at_place}"
        return fill_sentence(
            text,
            {},
            n=int(self.test.inputs[self.head]),
            test=self.test[self.head],
            uniform=self.uniform[self.head[0]],
            place=PLACES[self.place],
            at_place=self.at_places[self.place],
        )


def _test_table(tests: Sequence[_HalfTest]) -> Table:
    """Return the rows of all labels that have links in both halves, those of the most frequent label first."""
    frames = [tests[0].frame.iloc[:0]]
    for test in tests:
        if test.is_defined:
            frames.append(test.frame)
    frame = pd.concat(frames).sort_values(["passages", "label", "dev"], ascending=[False, True, False])
    units: dict[str, Unit] = dict.fromkeys(("dev", "attention", "uniform", "at_place"), "fraction")
    return Table(frame.reset_index(drop=True), units, main=_MAIN)


def _reason_to_leave_out(passage: Passage, link: Link) -> str | None:
    """Return the reason why a link is left out; None for a link within the bounds."""
    if len(passage.words) > MAX_WORDS:
        return "long_passage"
    if max(len(link.start), len(link.end)) > MAX_ELEMENT:
        return "long_element"
    distances = [abs(start - end) for start, end in product(link.start, link.end)]
    if min(distances) < MIN_DISTANCE:
        return "near"
    return None


def _links_of(passage: Passage) -> Sequence[Link]:
    """Return the links of a passage by its corpus, or else the arcs of its tree, from dependent to head."""
    if passage.links is not None:
        return passage.links
    links = []
    if passage.sentence is not None:
        arcs = zip(passage.sentence.heads, passage.sentence.relations, strict=True)
        for word, (head, relation) in enumerate(arcs):
            if head:
                links.append(Link(relation, (word,), (head - 1,)))
    return links


def _link_cells(tokens: list[list[int]], passages: Sequence[Passage]) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Yield the label of each link of a segment, and the pairs of a token at its start and a token at its end.

    Args:
        tokens: Positions of the tokens of each word of the segment.
        passages: Passages of the segment.
    """
    first = 0  # index in the segment of the first word of the passage
    for passage in passages:
        for link in _links_of(passage):
            if _reason_to_leave_out(passage, link) is None:
                sources = [first + word for word in link.start]
                targets = [first + word for word in link.end]
                yield link.label, token_pairs(tokens, sources, targets)
        first += len(passage.words)


def _rows(label: str, ways: Mapping[str, Estimate[Floats]], uniform: Floats) -> pd.DataFrame:
    """Return the rows of a label by head, beside its uniform attention in each layer."""
    frame = head_rows({**ways, "passages": ways["attention"].inputs})
    frame.insert(0, "label", label)
    return frame.assign(uniform=uniform[frame["layer"] - 1])


def _highest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows above the `PERCENTILE` of their label, those of the most frequent label first."""
    bounds = rows.groupby("label")["attention"].transform("quantile", PERCENTILE / 100)
    highest = rows[rows["attention"] > bounds]
    highest = highest.sort_values(["passages", "label", "attention"], ascending=[False, True, False])
    return highest.reset_index(drop=True)


DELIMITERS = ("start", "end")

_ARCS = (("subjects", "verbs"), ("objects", "verbs"))


WORD_CLASSES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "nouns": ("upos", ("NOUN", "PROPN")),
    "verbs": ("upos", ("VERB",)),
    "pronouns": ("upos", ("PRON",)),
    "subjects": ("relations", ("nsubj", "csubj")),
    "objects": ("relations", ("obj", "iobj")),
    "negation": ("words", ("not", "n't", "n’t", "no", "never", "none", "nobody", "nothing", "neither", "nor")),
}
"""Classes of words, each by universal parts of speech, by relations to the governor with all their subtypes, or by
lower-cased forms."""
OF_TAGS = {name for name, (column, _) in WORD_CLASSES.items() if column == "upos"}
_COLUMNS = (*WORD_CLASSES, *DELIMITERS)
CLASS_PAIRS = (
    *("_to_".join(arc) for arc in _ARCS),
    "nouns_to_pronouns",
    *(f"start_to_{name}" for name in WORD_CLASSES),
)
"""Names of the pairs of classes, as in the table `token_to_token`."""


class Linguistic(MapMeasure):
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
    the pair; the released code counts it as 0. A pair that no segment can have (start delimiter → noun) has no row.

    Raises:
        UserError: The texts have no part-of-speech tags; or there is neither noun, verb nor pronoun, as with tags
            that are not those of Universal Dependencies.
    """

    experiment = "linguistic"

    def begin(self) -> None:
        tags: set[str] = set()
        absent = set(WORD_CLASSES)
        for passage in chain.from_iterable(self.data.passages()):
            if passage.sentence is None:
                raise UserError(
                    f"{type(self).__name__} needs treebanks, for their part-of-speech tags, but some texts have no "
                    f"tags. Give only treebanks: {setting('data.corpora', 'ud_english_ewt')}, or CoNLL-U files."
                )
            tags.update(passage.sentence.upos)
            present = [name for name in absent if _words_of_class(name, passage)]
            absent.difference_update(present)
        # X, UD's tag for what has no other, is a known tag: texts of X alone have blank scores.
        if absent >= OF_TAGS and tags != {"X"}:
            raise UserError(
                f"{type(self).__name__}: no word of the texts belongs to the class {' or '.join(sorted(absent))}. The "
                f"texts have the tags {', '.join(sorted(tags))}. Give treebanks of Universal Dependencies."
            )
        self._absent = sorted(absent)
        units: dict[str, Unit] = dict.fromkeys([*_COLUMNS, *CLASS_PAIRS], "fraction")
        self.numbers = HeadMeans(self.encoder, units, baselines=self.encoder.layers)

    def update_layer(self, batch: SegmentBatch, layer: int, weights: Tensor) -> None:
        if not layer:
            self._members, self._cells = _find_classes(batch)
        self.numbers.add(self._attention_to_classes(batch, weights))

    def update(self, batch: SegmentBatch) -> None:
        masks, mask_of_layer = self.encoder.allowed(batch.mask)
        uniform = self._attention_to_classes(batch, uniform_attention(masks))
        self.numbers.close(batch.index % 2, uniform[:, mask_of_layer])

    def _attention_to_classes(self, batch: SegmentBatch, weights: Tensor) -> Tensor:
        """Return attention to the classes and between the pairs, float64 `[batch, heads, classes and pairs]`."""
        weights = weights.double()
        received = (weights * batch.mask[:, None, :, None]).sum(2) / batch.lengths[:, None, None]
        to_classes = received[:, :, None].masked_fill(~self._members[:, None], -1.0).amax(-1)
        to_classes = to_classes.masked_fill(to_classes < 0, torch.nan)
        between_pairs = self._cells.largest(weights).view(len(weights), len(CLASS_PAIRS), -1).transpose(1, 2)
        return torch.cat([to_classes, between_pairs], 2)

    def by_head(self) -> Mapping[str, Means]:
        """Return each head's mean attention to each class of words and to delimiters, named `to_<class>`.

        The names for the delimiters are `to_start` and `to_end`.
        """
        means = self.numbers.by_head()
        return {f"to_{name}": means[name] for name in _COLUMNS}

    def result(self) -> Result:
        uniform_means = self.numbers.means("baselines")
        by_layer = uniform_means.over().value  # [layers, classes and pairs]
        uniform = dict(zip(self.numbers.units, by_layer.T.tolist(), strict=True))
        at_once = self.numbers.over_at_once()
        classes: dict[str, Estimate[Floats]] = {}
        pairs: dict[str, Estimate[Floats]] = {}
        best: dict[str, tuple[tuple[int, int], Estimate]] = {}
        for number, (name, estimate) in enumerate(self.numbers.over().items()):
            if not uniform_means.sums[..., number].any():
                continue  # no segment has it
            best[name] = best_head(at_once[name])
            if name in _COLUMNS:
                classes[name] = estimate
            else:
                pairs[name] = estimate
        words = {name: best[name] for name in classes if name in WORD_CLASSES}
        return Result(
            experiment=self.experiment,
            scores={f"{self.experiment}.{name}": estimate for name, (_, estimate) in best.items()},
            headline=[f"{self.experiment}.{name}" for name in classes],
            answer=linguistic_answer(words, uniform),
            finding=_finding(self.experiment, classes),
            tables={"linguistic": _table(classes, uniform, "class"), "token_to_token": _table(pairs, uniform, "pair")},
            figures={**_maps(classes, "Attention to"), **_maps(pairs, "Attention from")},
            audit={"absent_classes": ", ".join(self._absent) or "none", **best_audit(best)},
        )


def _find_classes(batch: SegmentBatch) -> tuple[Tensor, Cells]:
    """Return the tokens of each class, bool `[batch, classes, time]`, and the cells of each segment's pairs."""
    device = batch.tokens.device
    members = torch.zeros(len(batch.index), len(_COLUMNS), batch.tokens.size(1), dtype=torch.bool)
    cells: list[tuple[int, int, int, int]] = []
    for row, (tokens, passages) in enumerate(zip(tokens_of_words(batch), batch.passages, strict=True)):
        words = _words_by_class(passages)
        for number, name in enumerate(WORD_CLASSES):
            for word in words[name]:
                members[row, number, tokens[word]] = True
        starts = batch.start[row].nonzero().flatten().tolist()
        for number, pairs in enumerate(_cells_of_pairs(words, tokens, _heads(passages), starts)):
            owner = row * len(CLASS_PAIRS) + number
            cells.extend((owner, row, source, target) for source, target in pairs)
    members = members.to(device)
    members[:, len(WORD_CLASSES) :] = torch.stack([batch.start, batch.end], 1)
    return members, Cells.from_rows(len(batch.index) * len(CLASS_PAIRS), cells, device)


def _cells_of_pairs(
    words: Mapping[str, Sequence[int]], tokens: list[list[int]], heads: Sequence[int], starts: Sequence[int]
) -> list[list[tuple[int, int]]]:
    """Return the cells (from, to) of each of `CLASS_PAIRS` in a segment.

    Args:
        words: Words of each class.
        tokens: Positions of the tokens of each word.
        heads: Governor of each word.
        starts: Positions of start delimiters.
    """
    cells: list[list[tuple[int, int]]] = []
    for source, target in _ARCS:
        arcs: list[tuple[int, int]] = []
        for word in words[source]:
            if heads[word] in words[target]:
                arcs.extend(token_pairs(tokens, [word], [heads[word]]))
        cells.append(arcs)
    cells.append(token_pairs(tokens, words["nouns"], words["pronouns"]))
    for name in WORD_CLASSES:
        members = chain.from_iterable(tokens[word] for word in words[name])
        cells.append(list(product(starts, members)))
    return cells


def linguistic_answer(
    best: Mapping[str, tuple[tuple[int, int], Estimate]], uniform: Mapping[str, Sequence[float]]
) -> str:
    """Return the answer: for each class of words, the head that attends most to it, beside uniform attention.

    Args:
        best: Layer and number of the best head, from 0, and its attention to the class, by class; the intervals hold
            for all heads at once.
        uniform: Uniform attention to the class in each layer.
    """
    if not best:
        return "No class of words is in the texts."
    parts = []
    for name, (place, most) in best.items():
        by_chance = format_number(uniform[name][place[0]], "fraction", missing=DASH)
        parts.append(f"{format_estimate(most)} to {name} (head {head_name(*place)}, uniform {by_chance} %)")
    inputs = max(int(most.inputs) for _, most in best.values())
    text = f"on up to {inputs:,} inputs the best heads give {', '.join(parts)}"
    return fill_sentence(text, {})


def _finding(experiment: str, classes: Mapping[str, object]) -> Finding | None:
    """Return the attention to the first class of tokens that the segments have; None without any."""
    if not classes:
        return None
    name = next(iter(classes))
    return Finding(f"{experiment}.{name}", f"attention of the best head to {name}")


def _words_by_class(passages: Sequence[Passage]) -> dict[str, list[int]]:
    """Return the indices in the segment of the words of each class."""
    words: dict[str, list[int]] = {name: [] for name in WORD_CLASSES}
    first = 0  # index in the segment of the first word of the passage
    for passage in passages:
        for name in WORD_CLASSES:
            words[name].extend(first + word for word in _words_of_class(name, passage))
        first += len(passage.words)
    return words


def _words_of_class(name: str, passage: Passage) -> list[int]:
    """Return the indices of the words of a passage that are in a class."""
    assert passage.sentence is not None  # by `Linguistic.begin`
    column, members = WORD_CLASSES[name]
    values: Sequence[str] = getattr(passage.sentence, column)
    if column == "relations":
        values = [relation.partition(":")[0] for relation in values]
    if column == "words":
        values = [word.lower() for word in values]
    return [word for word, value in enumerate(values) if value in members]


def _heads(passages: Sequence[Passage]) -> list[int]:
    """Return the 0-based position of each word's governor in the segment; -1 for a root."""
    heads: list[int] = []
    for passage in passages:
        first = len(heads)
        assert passage.sentence is not None
        for head in passage.sentence.heads:
            heads.append(first + head - 1 if head else -1)
    return heads


def _table(classes: Mapping[str, Estimate[Floats]], uniform: Mapping[str, Sequence[float]], label: str) -> Table:
    """Return attention by class and layer, beside that of uniform attention."""
    frame = by_class(classes, "attention", label)
    names_and_layers = zip(frame[label], frame["layer"], strict=True)
    frame["uniform"] = [uniform[name][layer - 1] for name, layer in names_and_layers]
    return Table(frame, {"attention": "fraction", "uniform": "fraction"}, interval="attention")


def _maps(classes: Mapping[str, Estimate[Floats]], title: str) -> dict[str, HeatMap]:
    """Draw attention by head; maps of words share one scale, and maps of delimiters another."""
    words: dict[str, HeatMap] = {}
    delimiters: dict[str, HeatMap] = {}
    for name, estimate in classes.items():
        place, _ = best_head(estimate)
        title_of_map = f"{title} {name.replace('_', ' ')}"
        maps = delimiters if name in DELIMITERS else words
        maps[f"linguistic_{name}"] = head_map(title_of_map, estimate.value, marked=place, value_label="attention")
    return {**on_one_scale(words), **on_one_scale(delimiters)}
