"""Documents before the encoder runs: which sentences it reads together, and which weights are kept of them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import shorten

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from attention.alignment import AlignmentError, Pieces, split_words
from attention.encoder import Encoder
from attention.options import Options, StoreError, TooLong
from attention.plan import UNKNOWN, Plan, chosen
from corpora.document import Document, Documents
from corpora.windows import Window, anaphoric, cut, windows_to_table

_SHOWN = 60  # characters of a mention in a message


@dataclass(frozen=True)
class WindowPlan(Plan):
    """Of documents: attention between the head words of mentions, within each window.

    Attributes:
        texts: the windows, in the order of the corpus, each with a mention.
        all_words: whether all words of a window are candidates, or only the heads of mentions.
    """

    quantity = "antecedent"
    unit = "windows"

    texts: tuple[Window, ...]
    all_words: bool

    def __len__(self) -> int:
        return len(self.texts)

    def labels(self) -> pa.Table:
        """Its text, and the mentions in it."""
        return windows_to_table(self.texts)

    def shape(self, item: int) -> tuple[int, ...]:
        """For n words and U different head words `layers, heads, U, U`, or `2, layers, heads, U, n`."""
        size, heads = (len(self.layers), len(self.heads)), len(self.texts[item].head_words)
        return (2, *size, heads, len(self.texts[item])) if self.all_words else (*size, heads, heads)

    def select(self, batch: Sequence[tuple[int, int]], reduced: Tensor) -> list[Tensor]:
        """The rows and columns of the head words; in two parts, from them and to them, if all words are candidates."""
        return [self._of(self.texts[item], block).cpu() for (item, _), block in zip(batch, reduced, strict=True)]

    def _of(self, text: Window, block: Tensor) -> Tensor:
        slots = torch.tensor(text.head_words, device=block.device) + 1
        if not self.all_words:
            return block[..., slots[:, None], slots]
        words = slice(1, len(text) + 1)
        return torch.stack([block[..., slots, words], block[..., words, slots].mT])


def plan_windows(documents: Documents, all_words: bool, encoder: Encoder | None, options: Options) -> WindowPlan:
    """Cut every document into windows of whole sentences, as many to a window as the encoder reads at once.

    Windows neither overlap nor go on from one document to the next; those without a mention are left out. Without an
    encoder every document is one window. The audit counts, beside what the reader counted,

    - `windows` and `windows_without_mentions`: what is kept, and what is left out,
    - `links`: mentions whose cluster has an earlier mention in the document,
    - `lost_links`: those in the windows whose earlier mentions all lie outside the window,
    - `skipped_too_long`, `skipped_mentions`, `skipped_links`: sentences left out, and what was in them,
    - `words_without_piece`: words in the windows that are kept that the tokenizer cuts into no piece,
    - `words_with_unknown_token`: words in them among whose pieces is the unknown token, those included.

    Raises:
        AlignmentError: a sentence over the limit, unless it is to be skipped.
        StoreError: a layer or head that the encoder does not have, or no window left.
    """
    layers, heads = chosen(encoder, options) if encoder is not None else ((), ())
    found = Counter(
        windows=0,
        windows_without_mentions=0,
        links=0,
        lost_links=0,
        skipped_too_long=0,
        skipped_mentions=0,
        skipped_links=0,
        words_without_piece=0,
        words_with_unknown_token=0,
    )
    texts, windows = [], []
    for number, document in enumerate(documents.documents):
        found["links"] += sum(anaphoric(document.mentions))
        pieces = split_words(encoder.tokenizer, document.sentences) if encoder is not None else None
        limit = encoder.max_length if encoder is not None else 0
        for start, stop in _bounds(document, pieces, limit, options.too_long, found):
            text = cut(number, document, start, stop)
            if not text.text.mentions:
                found["windows_without_mentions"] += 1
                continue
            found["windows"] += 1
            found["lost_links"] += text.lost
            texts.append(text)
            if pieces is not None:
                windows.append((joined(pieces[start:stop]),))
                found["words_without_piece"] += windows[-1][0].unknown
                found[UNKNOWN] += windows[-1][0].with_unknown
    if not texts:
        raise StoreError(_nothing(documents, found, encoder))
    return WindowPlan(tuple(windows), layers, heads, {**documents.audit, **found}, tuple(texts), all_words)


def _bounds(
    document: Document, pieces: Sequence[Pieces] | None, limit: int, too_long: TooLong, found: Counter[str]
) -> Iterator[tuple[int, int]]:
    """First sentence of each window and the one behind its last; without pieces there is one window."""
    if pieces is None:
        yield 0, len(document.sentences)
        return
    start = length = 0
    for place, whole in enumerate(pieces):
        if len(whole) > limit:
            if too_long != "skip":
                raise AlignmentError(_too_long(document, place, whole, limit, too_long))
            _count_skipped(document, place, found)
            if start < place:
                yield start, place
            start, length = place + 1, 0  # a window has no gaps
            continue
        inside = int(_of_words(whole).sum())
        length = length + inside if start < place else len(whole)
        if length > limit:
            yield start, place
            start, length = place, len(whole)
    if start < len(pieces):
        yield start, len(pieces)


def _of_words(pieces: Pieces) -> NDArray[np.bool_]:
    """Which pieces are not delimiters."""
    return (pieces.slots > 0) & (pieces.slots <= pieces.words)


def joined(sentences: Sequence[Pieces]) -> Pieces:
    """The pieces of several sentences as those of one: the first's start delimiter, the last's end delimiter."""
    ids, slots, words = [], [], 0
    for place, sentence in enumerate(sentences):
        kept = _of_words(sentence)
        if place == 0:
            kept |= sentence.slots == 0
        if place == len(sentences) - 1:
            kept |= sentence.slots == sentence.words + 1
        ids.append(sentence.ids[kept])
        slots.append(np.where(sentence.slots > 0, sentence.slots + words, 0)[kept])
        words += sentence.words
    unknown, with_unknown = (
        sum(of) for of in zip(*((one.unknown, one.with_unknown) for one in sentences), strict=True)
    )
    return Pieces(np.concatenate(ids), np.concatenate(slots).astype(np.int32), words, 0, unknown, with_unknown)


def _count_skipped(document: Document, sentence: int, found: Counter[str]) -> None:
    found["skipped_too_long"] += 1
    for mention, has in zip(document.mentions, anaphoric(document.mentions), strict=True):
        if mention.sentence == sentence:
            found["skipped_mentions"] += 1
            found["skipped_links"] += has


def _too_long(document: Document, place: int, whole: Pieces, limit: int, too_long: TooLong) -> str:
    words = document.sentences[place]
    spans = [(m.end - m.start, words[m.start : m.end]) for m in document.mentions if m.sentence == place]
    if spans:
        length, span = max(spans, key=lambda pair: pair[0])
        mentions = f"its longest mention has {length} words ({shorten(' '.join(span), _SHOWN, placeholder=' …')!r})"
    else:
        mentions = "it has no mention"
    remedy = (
        "--data.init_args.options.too_long skip leaves such sentences out, and counts them, their mentions and links"
    )
    if too_long == "window":
        remedy = f"Coreference does not cut sentences, so `window` cannot help; {remedy}"
    return (
        f"document {document.id}, sentence {place + 1}: {len(words)} words, {len(whole)} pieces, over the limit of "
        f"{limit}; {mentions}. {remedy}."
    )


def _nothing(documents: Documents, found: Counter[str], encoder: Encoder | None) -> str:
    counts = f"{found['windows_without_mentions']} windows of {len(documents)} documents"
    if encoder is None or not found["skipped_too_long"]:
        return f"No mention in {counts}. Is coreference annotated in this corpus?"
    return (
        f"No mention in {counts}; {found['skipped_too_long']} sentences over {encoder.max_length} pieces, with "
        f"{found['skipped_mentions']} mentions, were skipped. Choose an encoder that takes longer inputs."
    )
