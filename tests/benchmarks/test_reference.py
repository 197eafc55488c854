from pathlib import Path

import numpy as np
import pytest

from attention import Encoder, EncoderSpec, resolve
from benchmarks.extraction import TimedExtraction
from benchmarks.reference import Reference, merge
from corpora.sample import write_sample_treebank


def test_merging_equals_a_triple_loop() -> None:
    attention = np.random.default_rng(0).dirichlet(np.ones(7), 7).astype(np.float32)
    words = [[0], [1, 2, 3], [4], [5], [6]]
    expected = np.zeros((5, 5))
    for i, sources in enumerate(words):
        for j, targets in enumerate(words):
            for source in sources:
                for target in targets:
                    expected[i, j] += attention[source, target] / len(sources)
    merged = merge(attention, words)
    np.testing.assert_allclose(merged, expected, atol=1e-6)
    np.testing.assert_allclose(merged.sum(1), 1, atol=1e-6)


@pytest.mark.usefixtures("_bundle")
def test_a_store_that_differs_is_refused(tmp_path: Path) -> None:
    from benchmarks.harness import first_sentences

    whole = write_sample_treebank(tmp_path)["dev"]
    encoder = Encoder(resolve(EncoderSpec()))
    extraction = TimedExtraction(first_sentences([whole], tmp_path / "five.conllu", 5), encoder, tmp_path)
    extraction()
    assert extraction.store is not None
    reference = Reference(extraction.treebank, encoder, tmp_path / "reference.npz")
    reference()
    assert 0 < reference.check(extraction.store) < 1e-3

    with np.load(reference.target) as saved:
        arrays = dict(saved)
    arrays["3"][2, 1, 0, 0] += 0.01
    np.savez(reference.target, allow_pickle=False, **arrays)
    with pytest.raises(RuntimeError, match="differs from the reference's by 1"):
        reference.check(extraction.store)
    del arrays["3"]
    np.savez(reference.target, allow_pickle=False, **arrays)
    with pytest.raises(RuntimeError, match="4 sentences by the reference, 5 in the store"):
        reference.check(extraction.store)
