"""The most attended words from blocks of rows, against those of whole matrices."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from attention_probing.attention import Encoder, Options, long_inputs
from attention_probing.attention.alignment import reduction
from attention_probing.attention.capture import LayerCall, Mixture
from attention_probing.attention.extraction import pad
from attention_probing.attention.long_inputs import find_most_attended, word_rows
from attention_probing.attention.specification import Extraction, Items, cut_sentences
from attention_probing.attention.store import pack_weights, unpack_weights
from attention_probing.metrics.heads import MostAttended
from attention_probing.results import UserError
from tests import tiny
from tests.attention.reference import ENCODERS, load

FOLDERS = {**{name: save for name, (save, _) in ENCODERS.items()}, "mistral": tiny.save_mistral}


@pytest.fixture(scope="module", params=sorted(FOLDERS))
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return load(FOLDERS[request.param](tmp_path_factory.mktemp(request.param)))


def items(encoder: Encoder, options: Options, lengths: tuple[int, ...] = (17, 1, 9)) -> Items:
    extraction = Extraction(encoder.source.folder, {}, encoder.source, options)
    return cut_sentences(extraction, tiny.treebank(lengths), encoder)


@pytest.mark.parametrize("most", [1, 3, 100])
@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize(("length", "gaps"), [(17, ()), (1, ()), (9, ()), (17, (2, 3, 9, 17))])
def test_blocks_of_rows_of_words_are_the_reduced_weights(
    encoder: Encoder, length: int, gaps: tuple[int, ...], most: int, first_only: bool
) -> None:
    [part] = items(encoder, Options(), (length,)).inputs
    for word in gaps:  # its pieces belong to the word before
        positions = np.where(part.positions == word, part.positions[part.positions < word].max(), part.positions)
        part = replace(part, positions=positions, joined=gaps)
    factors = reduction([part], "first" if first_only else "mean", encoder.device)
    heads, seen = [0, 2], list[int]()

    def compare(_: int, call: LayerCall) -> Tensor:
        blocks = list(word_rows(call.mixture, part, heads, most, first_only))
        assert "weights" not in vars(call.mixture)
        whole = factors.words(call.mixture.weights[:, heads])
        for first, words in blocks:
            seen.extend(range(first, first + words.size(2)))
            torch.testing.assert_close(words, whole[:, :, first : first + words.size(2)], rtol=0, atol=1e-6)
        return whole

    encoder.capture(pad([part], encoder), lambda *_: None, frozenset([1]), measure=compare)
    assert seen == sorted({*part.positions.tolist(), *gaps})


@pytest.mark.parametrize("options", [Options(), Options(layers=(2,), heads=(1, 4), precision="float32")])
def test_most_attended_words_are_those_of_whole_matrices(
    encoder: Encoder, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, sizes = items(encoder, options), list[int]()
    together = find_most_attended(encoder, cut, range(len(cut)))
    monkeypatch.setitem(long_inputs.BLOCK, "cpu", 100)

    rows = Mixture.rows

    def watched(mixture: Mixture, of: slice) -> Tensor:
        found = rows(mixture, of)
        sizes.append(found.size(2))
        return found

    monkeypatch.setattr(Mixture, "rows", watched)
    for item, (positions, peaks) in enumerate(together):
        [(blocks, highest)] = find_most_attended(encoder, cut, [item])
        torch.testing.assert_close(highest, peaks, rtol=0, atol=1e-3 if options.precision == "float16" else 1e-6)
        assert (blocks == positions).float().mean() > 0.99  # rounding may decide between two equal weights
        assert positions.shape == (cut.words(item), 2, len(cut.layers), len(cut.heads))
    assert max(sizes) < 17


def test_weights_that_are_not_a_number_are_refused(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(long_inputs.BLOCK, "cpu", 100)
    table = encoder.embeddings
    before = table.clone()
    try:
        table[:] = torch.nan
        with pytest.raises(UserError, match="the model computes attention weights that are nan"):
            find_most_attended(encoder, items(encoder, Options()), [0])
    finally:
        table[:] = before


def test_they_are_what_a_store_gives(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = load(bert)
    cut = items(encoder, Options())
    kept = dict[int, torch.Tensor]()
    for item in range(len(cut)):
        [found] = find_most_attended(encoder, cut, [item])
        encoder.capture(
            pad([cut.inputs[item]], encoder),
            lambda layer, one: kept.__setitem__(layer, one.clone()),
            frozenset((0, 1)),
        )
        factors = reduction([cut.inputs[item]], "mean", encoder.device)
        most = MostAttended(torch.tensor([cut.words(item)]))
        whole = torch.stack([factors.words(kept[layer]) for layer in (0, 1)], 1)
        most.add(unpack_weights(pack_weights(whole, torch.float16)))
        assert torch.equal(found[0], most.positions[0].int())
        assert torch.equal(found[1], most.peaks[0])
