"""Batches of text segments as the datamodule makes them, from words in a test."""

from attention import Encoder
from attention.inputs import Segmenter
from corpora.texts import Passage
from datamodules import SegmentBatch
from datamodules.text import TextSegment, segment_batch


def batch_of(
    encoder: Encoder, *texts: str | Passage | tuple[str | Passage, ...], first: int = 0, corpus: str = "test"
) -> SegmentBatch:
    """A batch of these segments, numbered from `first`: words with blanks between, a passage, or a tuple of two."""
    segmenter = Segmenter(encoder)
    segments = []
    for text in texts:
        passages = text if isinstance(text, tuple) else (text,)
        read = tuple(one if isinstance(one, Passage) else Passage("text", tuple(one.split()), 1) for one in passages)
        written = segmenter.write(segmenter.split([passage.words for passage in read]))
        segments.append(TextSegment(read, written))
    return segment_batch(segments, range(first, first + len(segments)), corpus, pad=encoder.pad_id)
