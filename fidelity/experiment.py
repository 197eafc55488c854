"""All tests over all checkpoints: every classifier reads every text once, and each test asks it what it must."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from pytorch_lightning import LightningModule
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor, nn

from datamodules import ClassificationDataModule, TextBatch
from datamodules.sampling import run_seed
from fidelity.base import FidelityTest, Score, Subject
from fidelity.checkpoints import Checkpoint, FidelityError, load
from fidelity.examples import Example, example_page, examples_of
from fidelity.reading import read
from fidelity.summary import comparison_table, fidelity_table, result_scores, summary_table
from metrics.bootstrap import Resampled, mean, resample
from metrics.classification import f1_score
from metrics.progress import Progress, counted
from metrics.rows import ItemRows
from results import Result

OWN = ("gold", "predicted", "words", "correct")
"""What is kept of every text, also of one that no test measures."""


class Fidelity(LightningModule):
    """Whether attention explains the decisions of trained classifiers, by every test that is named.

    Run it with `python train.py test`. Without `--data` the texts are those that the first checkpoint was trained on;
    the tests read its test split. Texts of fewer than two words are classified, but not tested.

    Args:
        checkpoints: file or files of trained classifiers; a folder stands for all below. Those that differ in nothing
            but the seed are one variant; the variant of the first is what the others are compared with.
        tests: what is measured.
        level: level of attention that is tested; None for the sentences of a hierarchical classifier, else for all.
        examples: texts of the page of examples, evenly spread over the split; 0 for no page.
        steps: of integrated gradients.
        eval_tokens: bound of a batch, in padded tokens; None for that of the data.
        seed: of everything that is drawn; None for that of the run.

    Raises:
        FidelityError: there is no checkpoint or no test, a test is named twice, or a number is too small.
    """

    experiment = "fidelity"
    example_input_array = None

    def __init__(
        self,
        checkpoints: list[str] | str,
        tests: list[FidelityTest],
        level: str | None = None,
        examples: int = 10,
        steps: int = 50,
        eval_tokens: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        if examples < 0 or steps < 1 or (eval_tokens is not None and eval_tokens < 1):
            raise FidelityError(
                f"--model.init_args: examples {examples}, steps {steps} and eval_tokens {eval_tokens}: give examples 0 "
                f"or more, and the others 1 or more."
            )
        paths = [checkpoints] if isinstance(checkpoints, str) else checkpoints
        if not paths:
            raise FidelityError(
                "There is no checkpoint: name one or more with --model.init_args.checkpoints '[a.ckpt, b.ckpt]'."
            )
        names = [test.name for test in tests]
        if not names or len(set(names)) < len(names):
            raise FidelityError(f"--model.init_args.tests: name one or more, each once, and not {names}.")
        self.paths, self.tests = [Path(path).expanduser() for path in paths], tests
        self.level, self.examples, self.steps, self.eval_tokens = level, examples, steps, eval_tokens
        self._seed = seed
        self.result: Result | None = None
        self.checkpoints: list[Checkpoint] = []

    @property
    def data(self) -> ClassificationDataModule:
        """The datamodule of the run.

        Raises:
            FidelityError: it is not one of labelled texts.
        """
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, ClassificationDataModule):
            raise FidelityError(f"Fidelity tests classifiers of texts, and {type(data).__name__} has no labelled ones.")
        return data

    @property
    def seed(self) -> int:
        """Its own seed, or that of the run."""
        return run_seed(self._seed)

    def setup(self, stage: str) -> None:
        """Load the classifiers.

        Raises:
            FidelityError: a checkpoint cannot be used.
        """
        if self.checkpoints:
            return
        self.checkpoints = load(self.paths, self.data)
        self.data.eval_tokens = self.eval_tokens or self.data.eval_tokens
        self.models = nn.ModuleList(checkpoint.model for checkpoint in self.checkpoints)
        classes = len(self.data.labels)
        self._columns = [(test, column) for test in self.tests for column in test.columns(classes)]
        width = len(OWN) + len(self._columns)
        self.rows = nn.ModuleList(ItemRows(width) for _ in self.checkpoints)

    def on_test_start(self) -> None:
        """Prepare the tests; some train models of their own."""
        with torch.inference_mode(False), torch.enable_grad():
            for test in self.tests:
                test.begin(self.checkpoints, self.data, self.device, self.seed)
        total = len(self.data.splits["test"])
        self._chosen = frozenset(np.linspace(0, total - 1, min(self.examples, total), dtype=int).tolist())
        self._found: list[Example] = []
        batches = int(self.trainer.num_test_batches[1])  # those of a part, where the trainer reads one
        rank_zero_info(
            f"{counted(total, 'text')} in the test split, {counted(batches, 'batch', 'batches')} to read, "
            f"{counted(len(self.checkpoints), 'classifier')}, {counted(len(self.tests), 'test')}."
        )
        # A batch of many checkpoints takes minutes, and the progress bar counts batches.
        self._progress = Progress("Fidelity", batches * len(self.checkpoints))

    def test_step(self, batch: TextBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Measure the test split."""
        if batch.split != "test" or not len(batch.index):
            return
        # What is made in inference mode can take no part in a gradient, the batch itself included.
        with torch.inference_mode(False), torch.enable_grad():
            batch = _copied(batch)
            for place, checkpoint in enumerate(self.checkpoints):
                self._measure(place, checkpoint, batch)
                self._progress.advance()

    def _measure(self, place: int, checkpoint: Checkpoint, batch: TextBatch) -> None:
        output, reading = read(
            checkpoint, batch, self.level, seed=self.seed, pad=self.data.vocabulary.pad, steps=self.steps
        )
        predicted = output.logits.argmax(-1)
        own = [batch.labels, predicted, batch.words.sum(1), predicted == batch.labels]
        numbers = torch.full((len(batch.index), len(self._columns)), torch.nan, dtype=torch.float64)
        if reading is not None:
            tested = torch.isin(batch.index, reading.batch.index).cpu()
            found, colours = [], {"attention": reading.attention}
            for test in self.tests:
                measured = test.measure(reading)
                columns = test.columns(len(self.data.labels))
                found += [measured.numbers[column].detach().double().cpu() for column in columns]
                colours |= measured.tokens
            numbers[tested] = torch.stack(found, 1)
            if self._chosen.intersection(batch.index.tolist()):
                self._found += examples_of(reading, colours, self._chosen)
        rows = self.rows[place]
        assert isinstance(rows, ItemRows)
        rows.update(batch.index, torch.cat([torch.stack(own, 1).double().cpu(), numbers], 1).to(batch.index.device))

    def on_test_epoch_end(self) -> None:
        """Sum up, and fill `result`."""
        subjects = []
        progress = Progress("Scores and their intervals", len(self.checkpoints))
        for pair in zip(self.checkpoints, self.rows, strict=True):
            subjects.append(self._subject(*pair))
            progress.advance()
        tables = {"fidelity": fidelity_table(subjects)}
        if len({subject.variant for subject in subjects}) > 1:
            tables["comparison"] = comparison_table(subjects)
        figures: dict[str, Any] = {}
        total, measured = len(self.data.splits["test"]), len(subjects[0].values)
        # Less than all of them where the trainer was told to read a part.
        audit: dict[str, object] = {} if measured == total else {"texts": f"{measured} of {total}"}
        audit["checkpoints"] = {
            one.name: {"file": str(one.path), "sha256": one.digest, "skipped_texts": _tested(subject).count(False)}
            for one, subject in zip(self.checkpoints, subjects, strict=True)
        }
        if len(tested := {tuple(_tested(subject)) for subject in subjects}) > 1:
            audit["compared_over_different_texts"] = f"{len(tested)} sets, for their levels of attention differ"
        for test in self.tests:
            tables |= test.tables(subjects)
            figures |= test.figures(subjects)
            audit |= {f"{test.name}.{name}": value for name, value in test.audit().items()}
        tables["summary"] = summary_table(subjects)  # behind the others, near to where the eye falls
        if examples := _gathered(self._found):
            figures["examples"] = example_page(examples, self.data, self.checkpoints)
        ids = self.data.splits["test"].ids
        items = pd.concat(
            [one.values.assign(checkpoint=one.name, id=[ids[text] for text in one.values.index]) for one in subjects],
            ignore_index=True,
        )
        self.result = Result(self.experiment, result_scores(subjects), tables, figures, audit, items)

    def _subject(self, checkpoint: Checkpoint, rows: nn.Module) -> Subject:
        assert isinstance(rows, ItemRows)
        texts, values = rows.compute()
        rows.reset()
        names = [*OWN, *(f"{test.name}.{column}" for test, column in self._columns)]
        frame = pd.DataFrame(values, columns=names, index=texts)
        classes, positive = len(self.data.labels), self.data.positive
        scores = {
            "f1": _estimate(frame, "", Score(("gold", "predicted"), f1_score(positive, classes), "fraction")),
            "accuracy": _estimate(frame, "", Score(("correct",), mean, "fraction")),
        }
        for test in self.tests:
            for name, score in test.scores(classes, positive).items():
                scores[f"{test.name}.{name}"] = _estimate(frame, f"{test.name}.", score)
        return Subject(checkpoint.name, checkpoint.variant, checkpoint.seed, classes, positive, frame, scores)


def _estimate(frame: pd.DataFrame, prefix: str, score: Score) -> Resampled:
    values: NDArray[np.float64] = frame[[f"{prefix}{column}" for column in score.columns]].to_numpy(np.float64)
    return resample(score.statistic, values, score.unit)


def _tested(subject: Subject) -> list[bool]:
    tests = subject.values.drop(columns=list(OWN))
    found: list[bool] = tests.notna().any(axis=1).tolist()
    return found


def _copied(batch: TextBatch) -> TextBatch:
    return replace(batch, **{name: value.clone() for name, value in vars(batch).items() if isinstance(value, Tensor)})


def _gathered(found: Sequence[Example]) -> list[Example]:
    """Those of all devices."""
    parts: list[Any] = [list(found)]
    if dist.is_available() and dist.is_initialized():
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, list(found))
    return [example for part in parts for example in part]
