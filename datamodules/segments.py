"""Segments of text: the words of a corpus, cut and packed into inputs of an encoder, one by one."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from attention_probing.attention import AlignmentError
from attention_probing.attention.alignment import WORDS_APART
from attention_probing.attention.inputs import Segment, Segmenter, WordPieces
from attention_probing.corpora.sentence import CorpusError
from attention_probing.corpora.texts import OPTION, Passage, Text
from attention_probing.datamodules.batches import EncoderOf, SegmentBatch, batch_bounds
from attention_probing.datamodules.text_sources import SourceFile
from attention_probing.results.errors import setting

_AT_ONCE = 64  # texts in one call of the tokenizer


_SHORTEST = 2  # words of a segment


Stretch = tuple[Passage, WordPieces]
"""Consecutive words of one passage, and their pieces."""


@dataclass(frozen=True)
class TextSegment:
    """Segment of text, which is one input of an encoder, with its passages.

    Attributes:
        passages: The one or two passages as words.
        segment: Tokens of the passages, with delimiters.
    """

    passages: Text
    segment: Segment


class Segments:
    """Segments of one corpus, in the order of its file; a segment is one input of the encoder.

    With `packing: single`, each passage or pair of texts is a segment. A passage over the length limit
    is cut at word boundaries into consecutive stretches, and each stretch is a segment. With
    `packing: pairs`, passages are cut into stretches of at most half the limit, and two consecutive
    stretches make a segment. If the number of stretches is odd, the last one is cut in two.

    Two kinds of text are never cut, but left out if they are over the limit: pairs of texts, and
    sentences with a known tree or links.

    `read` counts:

    - `passages` of the corpus, and `segments` made of them.
    - `words` and `tokens` of the segments, and `words_with_unknown`: words whose pieces include the
      unknown token.
    - `words_cut_apart`: words of the passages whose pieces differ from those in running text.
    - `too_long`: texts left out because they are over the limit and must not be cut.
    - `too_short`: stretches left out because they have fewer than two words.
    - `words_cut`: words that alone exceed the limit.
    - `unpaired`: with `packing: pairs`, a last sentence left out because no partner is left for it and
      it must not be cut.
    - The counts of the corpus reader.

    Args:
        corpus: The corpus.
        segmenter: Tokenizer that makes segments.
        max_length: Largest number of pieces of a segment, delimiters included.
    """

    def __init__(self, corpus: SourceFile, segmenter: Segmenter, max_length: int) -> None:
        self._corpus = corpus
        self._segmenter = segmenter
        self._max_length = max_length
        self._pairs = corpus.source.packing == "pairs"
        passages = 2 if self._pairs else 1
        lacking = 2 * passages - self._room(passages)
        if lacking > 0:
            raise CorpusError(
                f"{setting('data.max_length')} is {max_length}, too few tokens for two words of each text and the "
                f"delimiters. Give {max_length + lacking} or more."
            )

    def read(self, audit: Counter[str]) -> Iterator[TextSegment]:
        """Yield the segments of the corpus in the order of its file.

        Args:
            audit: Receives the counts that are listed at the class.
        """
        packed = self._pack(audit) if self._pairs else self._stretches(audit)
        for stretches in islice(packed, self._corpus.source.limit):
            passages, pieces = zip(*stretches, strict=True)
            segment = self._segmenter.write(pieces)
            words = sum(part.words for part in pieces)
            audit.update(segments=1, words=words, tokens=len(segment), words_with_unknown=segment.unknown)
            yield TextSegment(passages, segment)

    def _room(self, passages: int) -> int:
        """Return the pieces that fit into a segment beside its delimiters."""
        return self._max_length - self._segmenter.delimiters(passages)

    def _pieces(self, audit: Counter[str]) -> Iterator[tuple[Stretch, ...]]:
        """Yield the texts in order, each as its passages with their pieces."""
        stream = self._corpus.texts(audit)
        while chunk := list(islice(stream, _AT_ONCE)):
            passages = list(chain.from_iterable(chunk))
            audit["passages"] += len(passages)
            try:
                cut = self._segmenter.split([passage.words for passage in passages])
            except AlignmentError as error:
                raise AlignmentError(f"{self._corpus.path}: {error}") from error
            audit[WORDS_APART] += sum(pieces.apart for pieces in cut)
            stretches = zip(passages, cut, strict=True)
            for text in chunk:
                yield tuple(islice(stretches, len(text)))

    def _stretches(self, audit: Counter[str]) -> Iterator[tuple[Stretch, ...]]:
        """Yield one stretch for each segment or half segment, or the two stretches of a pair of texts."""
        for text in self._pieces(audit):
            if len(text) == 2 and self._pairs:
                wrong = "this text is a pair of texts, which `packing: pairs` cannot pack together with other texts"
                remedy = f"Set `packing: single` for this corpus in {setting(OPTION)}"
                raise CorpusError.at(self._corpus.path, text[0][0].line, wrong, remedy)
            for stretches in self._fit(text, audit):
                too_short = sum(pieces.words for _, pieces in stretches) < _SHORTEST
                audit["too_short"] += too_short
                if not too_short:
                    yield stretches

    def _fit(self, text: tuple[Stretch, ...], audit: Counter[str]) -> Iterator[tuple[Stretch, ...]]:
        """Yield a text, or its parts that fit; leave out a text that is too long and must not be cut."""
        room = self._room(2) // 2 if self._pairs else self._room(len(text))
        passage, pieces = text[0]
        if len(text) == 2 or passage.whole:
            too_long = sum(len(pieces) for _, pieces in text) > room
            audit["too_long"] += too_long
            if not too_long:
                yield text
            return
        pieces, words_cut = pieces.shortened(room)
        audit["words_cut"] += words_cut
        for stretch in _divide(passage, pieces, pieces.stretches(room)):
            yield (stretch,)

    def _pack(self, audit: Counter[str]) -> Iterator[tuple[Stretch, ...]]:
        """Yield two consecutive stretches for each segment."""
        stretches = self._stretches(audit)
        for (first,) in stretches:
            [second] = next(stretches, [None])
            if second is not None:
                yield first, second
                continue
            passage, pieces = first  # the last of an odd number
            if passage.whole:
                audit["unpaired"] += 1
            else:
                middle = pieces.words // 2
                yield tuple(_divide(passage, pieces, [(0, middle), (middle, pieces.words)]))


def _divide(passage: Passage, pieces: WordPieces, places: Sequence[tuple[int, int]]) -> list[Stretch]:
    """Return the words between these places; each part of several is a passage with an id of its own."""
    if len(places) == 1:
        return [(passage, pieces)]
    stretches = []
    for number, (first, last) in enumerate(places, start=1):
        part = replace(passage, id=f"{passage.id}:{number}", words=passage.words[first:last])
        stretches.append((part, pieces.between(first, last)))
    return stretches


def segment_batch(
    segments: Sequence[TextSegment], index: Sequence[int], corpus: str, *, pad: int, encoder: EncoderOf = "given"
) -> SegmentBatch:
    """Return a batch of segments, padded to the longest; without segments, an empty batch.

    Args:
        segments: Segments of the batch.
        index: Index of each segment among all segments of the run.
        corpus: Name of their corpus.
        pad: Id of the padding token.
        encoder: Role of the encoder whose attention is to be read: `given`, `before` fine-tuning, or `random_init`.
    """

    def pad_field(field: str, blank: int = 0, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        if not segments:
            return torch.zeros(0, 0, dtype=dtype)
        columns = [torch.from_numpy(getattr(text.segment, field)) for text in segments]
        return pad_sequence(columns, True, blank)

    return SegmentBatch(
        index=torch.tensor(index, dtype=torch.int64),
        lengths=torch.tensor([len(text.segment) for text in segments], dtype=torch.int64),
        tokens=pad_field("ids", pad),
        segments=pad_field("segments"),
        start=pad_field("start", dtype=torch.bool),
        end=pad_field("end", dtype=torch.bool),
        punctuation=pad_field("punctuation", dtype=torch.bool),
        words=pad_field("words", -1),
        passages=tuple(text.passages for text in segments),
        corpus=corpus,
        encoder=encoder,
    )


def segment_bounds(lengths: Sequence[int], max_cells: int) -> list[tuple[int, int]]:
    """Return start and stop of every batch of segments in ascending order of length."""
    return batch_bounds(np.square(np.array(lengths, np.int64)), max_cells, len(lengths))


def draw_sample(segments: Iterable[TextSegment], size: int, seed: int) -> list[TextSegment]:
    """Draw segments at random, each with the same probability; at most `size` are in memory.

    Source: Vitter 1985, "Random Sampling with a Reservoir", algorithm R.

    Args:
        segments: All segments.
        size: Largest number of segments drawn.
        seed: Seed of the draw.
    """
    random = np.random.default_rng(seed)
    sample: list[TextSegment] = []
    for number, segment in enumerate(segments):
        if number < size:
            sample.append(segment)
            continue
        place = int(random.integers(number + 1))
        if place < size:
            sample[place] = segment
    return sample
