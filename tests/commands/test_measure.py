"""What `measure` does by itself on one CPU, where it does not import Lightning."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from jsonargparse import Namespace
from lightning_fabric import Fabric
from pytorch_lightning import seed_everything

from attention_probing.commands import measure
from attention_probing.commands.measure import Devices
from attention_probing.measures.devices import OneProcess
from attention_probing.results import UserError


def draws() -> list[float]:
    """A number of each generator."""
    return [random.random(), float(np.random.random()), float(torch.rand(()))]


@pytest.mark.parametrize("seed", [0, 7, (1 << 32) - 1])
def test_seeds_are_those_of_lightning(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "")
    seed_everything(seed, workers=True, verbose=False)
    expected = draws()
    measure._seed(Namespace(seed_everything=seed))  # type: ignore[no-untyped-call]
    assert draws() == expected


@pytest.mark.parametrize("seed", [-1, 1 << 32])
def test_a_seed_that_no_generator_takes_is_one_line(seed: int) -> None:
    with pytest.raises(UserError, match=rf"--seed_everything {seed}: a seed is a number from 0 to 4,294,967,295"):
        measure._seed(Namespace(seed_everything=seed))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("options", "alone"),
    [
        ({}, True),
        ({"accelerator": "cpu", "devices": 1, "precision": "32-true"}, True),
        ({"accelerator": "cpu", "devices": 2}, False),
        ({"accelerator": "cpu", "devices": [0, 1]}, False),
        ({"accelerator": "cpu", "strategy": "ddp"}, False),
        ({"accelerator": "cpu", "precision": "bf16-mixed"}, False),
        ({"accelerator": "gpu"}, False),
    ],
)
def test_fabric_is_left_out_for_one_cpu_alone(
    options: dict[str, Any], alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "is_launched", lambda: False)
    monkeypatch.setattr(measure, "_has_accelerator", lambda: False)
    assert Devices(**options).are_one_process == alone
    monkeypatch.setattr(measure, "is_launched", lambda: True)  # by SLURM or torchrun
    assert not Devices(**options).are_one_process
    monkeypatch.setattr(measure, "is_launched", lambda: False)
    monkeypatch.setattr(measure, "_has_accelerator", lambda: True)
    assert Devices(**options).are_one_process == (alone and options.get("accelerator") == "cpu")


def test_one_process_has_the_part_of_fabric_that_a_measurement_uses() -> None:
    one, fabric = OneProcess(), Fabric(accelerator="cpu", devices=1)
    assert (one.device, one.global_rank, one.world_size) == (fabric.device, fabric.global_rank, fabric.world_size)
    assert one.launch(lambda own: own) is one
    assert one.broadcast("value") == fabric.broadcast("value") == "value"
