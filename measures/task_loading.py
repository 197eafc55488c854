"""Loading of the task of a measurement, and of the texts that it draws."""

from pathlib import Path
from typing import Any

import torch
from jsonargparse import Namespace
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor

from attention_probing.attention.ablation import PIECES
from attention_probing.corpora.splits import Split
from attention_probing.datamodules import ClassificationDataModule, PairDataModule, TextDataModule
from attention_probing.datamodules.corpus import CorpusDataModule, data_for
from attention_probing.measures.pair_tasks import pair_task
from attention_probing.measures.task import Classification, LanguageModelling, Task
from attention_probing.models.checkpoints import checkpoint_file, data_settings, read_checkpoint
from attention_probing.results import UserError


def load_task(
    measurement: str, checkpoint: Path | None, data: CorpusDataModule[Any], device: torch.device, seed: int
) -> Task:
    """Load the model of a measurement that scores it with attention heads ablated.

    With a checkpoint the task is the classification that the model was trained for. Without a checkpoint the task is
    language modelling, on texts (`TextDataModule`), or minimal pairs (`PairDataModule`).

    Args:
        measurement: Class name of the measurement, for messages.
        checkpoint: Checkpoint of a `TransformerClassifier`; None for language modelling or minimal pairs.
        data: Datamodule of the texts.
        device: Device of the model.
        seed: Seed of masked tokens.

    Raises:
        UserError: The model and the data do not fit.
    """
    if checkpoint is not None:
        labelled = data_for(f"{measurement} with a checkpoint", ClassificationDataModule, data)
        # Two copies of a batch at least run at once.
        labelled.eval_tokens = PIECES.get(device.type, PIECES["cuda"]) // 2
        return Classification.from_data(checkpoint, labelled, device)
    if isinstance(data, PairDataModule):
        return pair_task(data.splits["test"])
    texts = data_for(f"{measurement} without a checkpoint", TextDataModule, data)
    if len(texts.encoders) > 1 or texts.quantity != "attention":
        raise UserError(
            f"{measurement} replaces the attention of one encoder. Leave out `random_init`, `before` and `quantity`."
        )
    return LanguageModelling(texts.encoders["given"], seed)


def data_of_checkpoint(arguments: object, given: Namespace | None) -> Namespace | None:
    """Return the given data settings; without any, those in the checkpoint that a measurement or its arguments name."""
    checkpoint = getattr(arguments, "checkpoint", None)
    if given is not None or checkpoint is None:
        return given
    path = checkpoint_file(checkpoint)
    return data_settings(path, read_checkpoint(path))


def has_split(data: CorpusDataModule[Any], split: Split) -> bool:
    """Return False if the texts lack a split: minimal pairs have one split alone."""
    if isinstance(data, TextDataModule):
        return data.has_split(split)
    return not isinstance(data, PairDataModule)


def draw_texts(task: Task, data: CorpusDataModule[Any], split: Split, most: int, seed: int) -> list[dict[str, Tensor]]:
    """Draw random texts of a split, and return batches of the model's inputs for them.

    All processes draw the same texts.

    Args:
        task: The task.
        data: Datamodule of the texts.
        split: The split; if texts for language modelling or minimal pairs lack it, all test data are used.
        most: Largest number of texts.
        seed: Seed of the draw.
    """
    if has_split(data, split):
        return task.draw(data, split, most, seed)
    if not isinstance(data, PairDataModule):
        rank_zero_warn(
            f"The data have no {split} split, so the replacements for ablated heads are computed on texts of the "
            f"test split, which are scored too. To keep them apart, give corpora with a {split} split."
        )
    return task.draw(data, None, most, seed)
