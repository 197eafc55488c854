"""The lifecycle of trained modules, shown by a linear map that knows no corpus."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from attention_probing.models import Origin, TrainedModule, TrainingError, training_audit
from attention_probing.models.checkpoints import checkpoint_file, checkpoints_at, read_checkpoint
from attention_probing.results.errors import UserError, new_items


@dataclass(frozen=True)
class Width:
    inputs: int

    @classmethod
    def from_plain(cls, plain: Mapping[str, int]) -> "Width":
        return cls(**plain)


class Line(TrainedModule[Any, Width]):
    """y = w·x for inputs of a width that only the data know."""

    sizes_type = Width

    def __init__(self, rate: float = 0.1, power: int = 1) -> None:
        super().__init__()
        self.rate, self.power = rate, power

    def build(self, sizes: Width) -> None:
        self.line = nn.Linear(sizes.inputs, 1)

    def outcome(self) -> None: ...

    def setup(self, stage: str) -> None:
        """Do nothing: `bind` is called by hand."""

    def origin_of(self, data: object) -> Origin[Width]:
        raise NotImplementedError

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.line(inputs) ** self.power
        return found

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return nn.functional.mse_loss(self(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", nn.functional.mse_loss(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), self.rate)


class Other(Line):
    checkpoint_key = "other"


def loader() -> DataLoader[Any]:
    inputs = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4)


def trainer(folder: Path) -> Trainer:
    return Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        default_root_dir=folder,
        callbacks=[ModelCheckpoint(folder, "line")],
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def made(name: str = "sums", rate: float = 0.1, power: int = 1) -> Line:
    line = Line(rate, power)
    line.bind(Origin(Width(3), {"name": name}))
    return line


@pytest.fixture
def trained(tmp_path: Path) -> tuple[Line, Path]:
    line = made(rate=0.05, power=2)
    trainer(tmp_path).fit(line, loader(), loader())
    return line, tmp_path / "line.ckpt"


def test_a_checkpoint_is_enough_to_make_the_module_anew(trained: tuple[Line, Path]) -> None:
    line, path = trained
    before = torch.get_rng_state()
    loaded = Line.load_from_checkpoint(path)
    assert torch.equal(before, torch.get_rng_state())
    inputs = next(iter(loader()))[0]
    assert torch.equal(loaded(inputs), line(inputs))
    assert (loaded.rate, loaded.power, loaded.training, loaded.epochs) == (0.05, 2, False, 2)
    assert training_audit(loaded) == {"epochs": 2}
    assert training_audit(line) == {"epochs_run": 2}
    assert Line.load_from_checkpoint(path, power=1).power == 1
    assert (loaded.sizes, loaded.source) == (line.sizes, line.source)


def test_what_is_not_trained_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"Line was not trained: train it with `fit`, or give a checkpoint"):
        trainer(tmp_path).validate(made(), loader(), verbose=False)


def test_parameters_that_were_trained_on_something_else_are_refused(trained: tuple[Line, Path]) -> None:
    line, path = trained
    with pytest.raises(TrainingError, match="trained on other data \\(difference in name\\)"):
        made("products").on_load_checkpoint(dict(read_checkpoint(path)))
    with pytest.raises(TrainingError, match="trained on other data \\(difference in name\\)"):
        line.bind(Origin(Width(3), {"name": "products"}))
    line.bind(Origin(Width(3), {"name": "sums"}))
    with pytest.raises(TrainingError, match=r"This is no checkpoint of Other\. Give a file from check"):
        Other.load_from_checkpoint(path)
    with pytest.raises(TrainingError, match="does not name its class"):
        TrainedModule.load_from_checkpoint(path)


def test_parameters_of_other_shapes_are_refused_in_a_line(trained: tuple[Line, Path]) -> None:
    line, path = trained
    content = copy.deepcopy(dict(read_checkpoint(path)))
    content["state_dict"]["line.weight"] = torch.zeros(1, 4)
    with pytest.raises(
        TrainingError, match=r"another model, whose line\.weight has the shape \[1, 4\], not \[1, 3\]: give"
    ):
        line.on_load_checkpoint(content)


def test_a_checkpoint_of_the_command_line_says_its_class(trained: tuple[Line, Path], tmp_path: Path) -> None:
    _, path = trained
    content = dict(torch.load(path, weights_only=True))
    del content["hyper_parameters"]
    for name, found in ((f"{__name__}.Line", True), ("os.Line2", False)):
        content["config"] = f"model: {{class_path: {name}, init_args: {{rate: 0.5, power: 3}}}}"
        torch.save(content, tmp_path / "config.ckpt")
        if found:
            loaded: TrainedModule[Any, Width] = TrainedModule.load_from_checkpoint(tmp_path / "config.ckpt")
            assert isinstance(loaded, Line)
            assert (loaded.rate, loaded.power) == (0.5, 3)
        else:
            with pytest.raises(TrainingError, match=r"is a checkpoint of \w*, not of Line\. Give a checkpoint of Line"):
                Line.load_from_checkpoint(tmp_path / "config.ckpt")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (" ", r"texts\[0\] is empty"),
        ([], "texts is empty: give at least one"),
        ([["the", ""]], r"texts\[0\]\[1\] is empty\. Leave it out"),
        ([3], r"texts\[0\] is 3; it must be a string"),
    ],
)
def test_what_nothing_can_be_predicted_of_is_refused(given: list[object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        new_items("texts", given)


def test_one_text_by_itself_is_a_list_of_one() -> None:
    assert new_items("texts", "a fine film") == ["a fine film"]
    several = ["a film", ("a", "pair"), ["in", "words"]]
    assert new_items("texts", several) == several


def test_only_states_below_a_given_folder_are_left_out(tmp_path: Path) -> None:
    """Folders above it may have any name."""
    run = tmp_path / "state-of-the-art" / "version_0"
    trained = run / "checkpoints" / "state-1.ckpt"
    state = run / "state-1" / "last.ckpt"
    for file in (trained, state):
        file.parent.mkdir(parents=True)
        file.touch()
    assert checkpoints_at(run) == [trained]
    assert checkpoints_at(state) == [state]
    assert checkpoint_file(run) == trained
