"""Attention computed whenever it is read, against a store of the same items; and memory that does not suffice."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attention_probing.attention import Encoder, EncoderSpec, Options, extraction
from attention_probing.attention.encoder import LoadedEncoder
from attention_probing.attention.stream import Stream
from attention_probing.commands import CONFIGS
from attention_probing.datamodules import CoreferenceDataModule, DependencyDataModule
from attention_probing.measures import AntecedentHeads, SingleHeads
from attention_probing.probes import AttentionOnlyProbe, StructuralDistanceProbe
from attention_probing.results import Result, UserError
from tests import tiny
from tests.trainers import changed, scored, trained

Make = Callable[..., DependencyDataModule]
CONFIG = CONFIGS / "decoders" / "heads.yaml"


def run(module: Any, data: DependencyDataModule) -> Result:  # noqa: ANN401
    if isinstance(module, AttentionOnlyProbe | StructuralDistanceProbe):
        module, _ = trained(module, data, monitor="val_loss", mode="min", max_epochs=2, patience=2, batches=1, seed=0)
    return scored(module, data)


def assert_scores_are_equal(one: Result, other: Result) -> None:
    assert one.numbers == pytest.approx(other.numbers, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize(
    ("module", "options"),
    [
        (lambda: changed(SingleHeads(), ensemble=3, permutations=9), {}),
        (lambda: changed(SingleHeads(trees=False), permutations=9), {"random_init": True}),
        (
            lambda: changed(SingleHeads(), ensemble=1, permutations=9),
            {"options": Options(layers=(2,), quantity="norms")},
        ),
        (AttentionOnlyProbe, {}),
        (StructuralDistanceProbe, {"hidden": (1,)}),
    ],
    ids=["heads", "random weights", "norms", "probe", "hidden"],
)
def test_scores_are_those_of_a_store(module: Callable[[], Any], options: dict[str, Any], make_data: Make) -> None:
    disk, stream = (run(module(), make_data(seed=0, store=store, **options)) for store in ("disk", "stream"))
    assert_scores_are_equal(disk, stream)
    for name, table in disk.tables.items():
        numbers = table.frame.select_dtypes("number")
        torch.testing.assert_close(
            torch.tensor(stream.tables[name].frame[numbers.columns].to_numpy(dtype=float)),
            torch.tensor(numbers.to_numpy(dtype=float)),
            equal_nan=True, rtol=0, atol=1e-5,
        )  # fmt: skip


def test_candidates_of_coreference_are_those_of_a_store(bert: Path, tmp_path: Path) -> None:
    spec = EncoderSpec(str(bert))
    options: dict[str, Any] = {"encoder": spec, "cache": str(tmp_path), "options": Options(too_long="skip")}
    disk, stream = (
        scored(AntecedentHeads(), CoreferenceDataModule("sample", store=store, **options))
        for store in ("disk", "stream")
    )
    assert_scores_are_equal(disk, stream)


def test_nothing_is_written_and_groups_are_the_passes_of_a_store(
    make_data: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(extraction.BATCH_PIECES, "cpu", 60)
    data = make_data(store="stream", cache=str(tmp_path))
    data.setup("test")
    assert not list(tmp_path.rglob("*.safetensors"))
    store = data.stores["dev"]
    assert isinstance(store, Stream)
    groups = list(store.groups)
    assert sorted(item for group in groups for item in group) == list(range(len(store)))
    assert 1 < len(groups) < len(store)
    disk = make_data(cache=str(tmp_path / "disk"))  # made in the same passes
    disk.setup("test")
    for item, weights in store.each("attention", range(0, len(store), 2)):
        assert torch.equal(weights, disk.stores["dev"].read("attention", item))


def test_one_process_and_two_read_the_same_from_a_stream_and_a_store(
    run_config: Callable[..., Any], corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SingleHeads, "permutations", 9)
    given = [
        "measure",
        f"--config={CONFIG}",
        f"--data.corpus={corpus}",
        f"--data.encoder.name={tiny.save_mistral(tmp_path / 'encoder')}",
    ]
    found = {}
    for store, processes in (("stream", 1), ("stream", 2), ("disk", 3)):
        cache = f"--data.cache={tmp_path / f'{store}{processes}'}"
        options = [*given, cache, f"--data.store={store}"]
        _, record, folder = run_config(*options, processes=processes, own_data=True)
        written = list((tmp_path / f"{store}{processes}").rglob("*.safetensors"))
        assert bool(written) == (store == "disk")
        found[store, processes] = (
            record["scores"],
            {name: (folder / file).read_bytes() for name, file in record["tables"].items()},
        )
    assert found["stream", 1] == found["stream", 2] == found["disk", 3]


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA"), RuntimeError("DefaultCPUAllocator: not enough memory")]
)
def test_a_batch_beyond_the_memory_is_halved_and_the_numbers_stay(
    error: RuntimeError,
    make_data: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole, sizes = extraction.forward, list[int]()

    def limited(encoder: LoadedEncoder, parts: Any, items: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        if len(parts) > 2:
            raise error
        sizes.append(len(parts))
        return whole(encoder, parts, items)

    before = scored(changed(SingleHeads(), ensemble=1), make_data(store="stream"))
    monkeypatch.setattr(extraction, "forward", limited)
    data = make_data(cache=str(tmp_path))
    after = scored(changed(SingleHeads(), ensemble=1), data)
    assert max(sizes) == 2
    assert_scores_are_equal(before, after)
    assert data.provenance.audit["batches_halved_for_memory"] > 2  # type: ignore[operator]
    assert "inputs do not fit into the memory of cpu at once: the batch is halved." in caplog.text


def test_a_single_input_beyond_the_memory_is_named(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA")

    encoder = Encoder(EncoderSpec(str(bert)))
    monkeypatch.setattr(extraction, "forward", never)
    with pytest.raises(UserError, match="one input of 10 pieces does not fit into the memory of cpu"):
        encoder.attention(["the dog saw a"])
    monkeypatch.setattr(extraction, "forward", lambda *_: [][1])
    with pytest.raises(IndexError):
        encoder.attention(["the dog saw a"])
