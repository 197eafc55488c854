"""The contract of a measurement."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Self

import torch
from jsonargparse import Namespace
from torch import Tensor, nn

from attention_probing.attention import Encoder
from attention_probing.attention.quantities import QuantityName
from attention_probing.datamodules import SegmentBatch, TextDataModule
from attention_probing.datamodules.batches import Ranks, run_seed
from attention_probing.datamodules.corpus import CorpusDataModule, Data
from attention_probing.measures.by_head import HeadNumbers
from attention_probing.results import Result
from attention_probing.results.digests import digest
from attention_probing.results.errors import UserError


class Measure(nn.Module, Generic[Data]):
    """A measurement: it reads the batches of a datamodule, and computes one `Result` from them.

    Subclasses set `experiment` and `takes`, and implement `begin`, `update` and `result`. Numbers of items are gathered
    as `metrics.rows.Rows`. Metrics and models are submodules, which move to the device with the measurement.

    Attributes:
        experiment: Name of the measurement in `results.json`.
        takes: Class of the datamodule that the measurement reads.
        tells_time: True if `begin` says how long the measurement will take, after which `--dry` ends.
        seed: Seed of all random draws of the measurement; by default the seed of the run.
        data: The datamodule. `measure` sets it and the attributes below.
        device: Device of this process.
        ranks: Rank of this process, and number of processes.
        kept: Folder in which trained models and numbers are kept while the measurement runs; None keeps none. It is
            named by the command; what depends on files is kept in `kept_folder`.
        advance: Function that an `update` of many passes may call with the share of its batch that it has just
            finished, so that the progress of the loop goes on; by default it does nothing.
    """

    experiment: ClassVar[str]
    takes: ClassVar[type[Any]]
    tells_time: ClassVar[bool] = False
    data: Data

    def __init__(self) -> None:
        super().__init__()
        self.seed = run_seed(None)
        self.device = torch.device("cpu")
        self.ranks = Ranks()
        self.kept: Path | None = None
        self.advance: Callable[[float], None] = ignore

    @classmethod
    def data_of(cls, arguments: Namespace | Self, given: Namespace | None) -> Namespace | None:
        """Return the settings of the datamodule: the given ones, or those that a measurement or its arguments imply."""
        return given

    def kept_folder(self, data: CorpusDataModule[Any]) -> Path | None:
        """Return the folder in `kept` of what is computed from a datamodule that is set up; None keeps nothing.

        Its name depends on the checksums of the data and of the encoder, so that nothing is read from an earlier run
        of the same command with other files.
        """
        if self.kept is None:
            return None
        provenance = data.provenance
        content = json.dumps([provenance.encoder, provenance.data], sort_keys=True, default=str)
        return self.kept / digest(content.encode())[:16]

    def check_data(self, data: CorpusDataModule[Any]) -> None:
        """Check what can be told of a datamodule before it reads anything; by default nothing.

        Raises:
            UserError: The measurement cannot be made on such data.
        """

    def begin(self) -> None:
        """Check the data, create metrics, load models and train those that must be trained.

        It is called once, when the datamodule is set up, outside of inference mode. Afterwards all submodules are moved
        to the device; a model that is needed there earlier, `begin` moves itself.

        Raises:
            UserError: The data or the encoder are unsuitable.
        """

    def update(self, batch: Any) -> None:  # noqa: ANN401 - the batch of the datamodule
        """Measure one batch of dev or test; by default ignore it."""

    def result(self) -> Result | None:
        """Return the result; called once in every process, after all batches. Processes but the first may return None.

        Every process must take the rows and sums of every metric, because these gather from all processes.
        """
        raise NotImplementedError


def ignore(share: float) -> None:
    """Do nothing with a share of a batch: outside of a loop nobody shows progress."""


def check_measurement(measurement: Measure[Any]) -> None:
    """Check that the class of a measurement sets `takes` and implements `result`.

    Raises:
        UserError: It does not.
    """
    kind = type(measurement)
    if not hasattr(measurement, "takes"):
        raise UserError(f"{kind.__name__} must set `takes`, the class of its datamodule.")
    if kind.result is Measure.result:
        raise UserError(f"{kind.__name__} must implement `result`, which returns its Result.")


class MapMeasure(Measure[TextDataModule]):
    """A measurement of the attention maps of texts.

    `AttentionAnalyses` runs any number of them in one pass over the texts, and each of them once for every encoder of
    the datamodule. While the encoder reads a batch, `update_layer` receives the maps of each layer; then `update` ends
    the batch. Means by head are gathered as `by_head.HeadMeans`.

    Attributes:
        quantities: Quantities that the measurement takes. Rows of `norms`, and those of a model with attention sinks,
            are divided by their sums, because entropies, divergences and shares are those of distributions.
        compares: True if the measurement compares the given encoder with the encoder before its fine-tuning. If so,
            `update_layer` gets all layers of the given encoder, then all layers of the other encoder on the same batch,
            and only then `update` is called. `batch.encoder` names the encoder.
        encoder: Encoder whose maps are read. `AttentionAnalyses` sets it and `together`.
        together: Measurements in the same pass, by name.
    """

    takes = TextDataModule
    quantities: ClassVar[tuple[QuantityName, ...]] = ("attention", "attention_without_first", "norms")
    compares: ClassVar[bool] = False
    encoder: Encoder

    def __init__(self) -> None:
        super().__init__()
        self.together: Mapping[str, MapMeasure] = {}

    def update_layer(self, batch: SegmentBatch, layer: int, weights: Tensor) -> None:
        """Measure the attention maps of one layer on a batch of texts.

        Args:
            batch: The inputs.
            layer: The layer, from 0.
            weights: Attention `[batch, heads, from, to]`, valid only during the call. Every row sums to one, and the
                columns of the padding are zero. The rows of the padding have no meaning.
        """

    def by_head(self) -> Mapping[str, HeadNumbers]:
        """Return numbers for each attention head, `[layers, heads]` by name, which `Atlas` collects.

        Every process must call this method, because it gathers from all processes.
        """
        return {}

    def classes(self) -> Mapping[str, Sequence[str]]:
        """Return classes of the attention heads, such as their pattern, which `Atlas` collects.

        Every process must call this method, because it gathers from all processes.

        Returns:
            For each column of the table `atlas`, by name, a list with the class of each head, layer by layer.
        """
        return {}
