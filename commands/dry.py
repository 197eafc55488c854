"""`--dry`: predict the memory, the space on disk and the time of a run, without weights; nothing is stored."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from attention_probing.attention.costs import Costs, PlannedEncoder, predict_costs
from attention_probing.attention.source import resolve
from attention_probing.commands import measure
from attention_probing.commands.command_line import CommandLine
from attention_probing.datamodules.attention import AttentionDataModule, cut_ahead
from attention_probing.results.errors import UserError, pluralize, setting
from attention_probing.results.memory import resident_bytes

OPTION = "--dry"

_PIECES = 512
_ROUNDS = 20
_SECONDS = 0.02  # of a round of matrix products


@dataclass(frozen=True)
class Prediction:
    """What a run will need until its data are ready; everything is read once.

    Attributes:
        encoder: The encoder, without weights.
        costs: Costs of each corpus file, by its splits.
        streams: True if the run stores nothing.
        host: Bytes that the program, the tokenizer and the corpora take.
        device: Kind of device of the run, `cpu` or `cuda`.
        rate: Floating-point operations of matrix products per second, measured; None for a device that is not here.
    """

    encoder: PlannedEncoder
    costs: Mapping[str, Costs]
    streams: bool
    host: int
    device: str
    rate: float | None

    @property
    def on_device(self) -> int:
        """Bytes of the weights and of the forward passes."""
        return self.encoder.weights + max(costs.memory for costs in self.costs.values())

    @property
    def memory(self) -> int:
        """Peak of the memory of the device; of a CPU, with what the program itself takes."""
        if self.device == "cpu":
            return self.host + self.on_device
        return self.on_device

    @property
    def disk(self) -> int:
        """Bytes of the stores."""
        return 0 if self.streams else sum(costs.disk for costs in self.costs.values())

    @property
    def operations(self) -> float:
        """Floating-point operations of all passes."""
        return sum(costs.operations for costs in self.costs.values())

    @property
    def seconds(self) -> float | None:
        """Least time of the passes: of their matrix products at the measured speed."""
        return None if self.rate is None else self.operations / self.rate


def run(line: CommandLine) -> None:
    """Predict what a command line will need, and print it.

    Raises:
        UserError: The command line is wrong, or its data are of a kind that cannot be predicted.
    """
    planned = replace(line, words=tuple(word for word in line.words if word != OPTION))
    data, stage, accelerator = _objects_of(planned)
    console = Console()
    console.print(layout(predict(data, stage, accelerator)))
    console.print("Nothing was computed or stored, and no weights were read.")


def _objects_of(line: CommandLine) -> tuple[object, str, str]:
    """Return the datamodule of a command line, the stage that it runs, and the accelerator that it asks for."""
    if line.command == "measure":
        parser, settings = measure.parse(line)
        objects = parser.instantiate(settings)
        measure.refuse_unfit(objects)
        return objects.data, "test", objects.trainer.accelerator
    from attention_probing.commands.lightning import CheckedCLI

    checked = CheckedCLI(line)
    return checked.datamodule, line.command, str(checked.settings.trainer.accelerator)


def predict(data: object, stage: str, accelerator: str = "auto") -> Prediction:
    """Predict what a stage of a datamodule needs to read its corpora with its encoder.

    Args:
        data: The datamodule.
        stage: Stage of Lightning, such as `fit`.
        accelerator: Kind of device, as for Lightning's Trainer.

    Raises:
        UserError: The datamodule keeps no attention, or has no encoder.
    """
    if not isinstance(data, AttentionDataModule):
        raise UserError(
            f"{OPTION} predicts data whose attention is stored or streamed (DependencyDataModule, "
            f"CoreferenceDataModule), but {type(data).__name__} is not. Run it on a few batches instead: "
            "--trainer.fast_dev_run true."
        )
    if data.encoder is None:
        raise UserError(f"{setting('data.encoder')} is null, so there is no encoder whose memory could be predicted.")
    device = _kind(accelerator)
    encoder = PlannedEncoder(resolve(data.encoder, weights=False))
    host = 0
    costs = {}
    for splits, items in cut_ahead(data, stage, encoder):
        costs[" and ".join(splits)] = predict_costs(encoder, items, device)
        host = max(host, resident_bytes())
    rate = measure_rate(device, encoder)
    return Prediction(encoder, costs, data.streams, host, device, rate)


def _kind(accelerator: str) -> str:
    """Return the kind of device that an accelerator of Lightning's Trainer stands for."""
    if accelerator == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return "cpu" if accelerator == "cpu" else "cuda"


def measure_rate(device: str, encoder: PlannedEncoder) -> float | None:
    """Return the floating-point operations per second of a matrix product of the encoder's size; None without device.

    Args:
        device: Kind of device.
        encoder: The encoder, whose sizes and type the matrices have.
    """
    if device != "cpu" and not torch.cuda.is_available():
        return None
    size = encoder.state_size
    states = torch.rand(_PIECES, size, device=device).to(encoder.model.dtype)
    matrix = torch.rand(size, 4 * size, device=device).to(encoder.model.dtype)
    rates = []
    for _ in range(_ROUNDS):  # other programs slow some of them down
        products = 0
        start = time.perf_counter()
        while time.perf_counter() - start < _SECONDS:
            product = states @ matrix
            products += 1
        float(product[0, 0])  # waits for a GPU
        rates.append(products / (time.perf_counter() - start))
    return max(rates) * 2 * _PIECES * matrix.numel()


def layout(prediction: Prediction) -> Table:
    """Return a prediction as a table of two columns."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, text in describe(prediction).items():
        table.add_row(Text(name, style="bold"), Text(text))
    return table


def describe(prediction: Prediction) -> dict[str, str]:
    """Return the lines of a prediction by their names."""
    encoder = prediction.encoder
    costs = prediction.costs.values()
    largest = max(costs, key=lambda one: one.layer)
    batch, pieces = largest.largest
    heads = f"{encoder.layers} layers × {encoder.heads} heads"
    dtype = str(encoder.model.dtype).removeprefix("torch.")
    passes = sum(one.passes for one in costs)
    workers = max(one.workers for one in costs)
    lines = {
        "data": f"{', '.join(prediction.costs)}: {sum(one.pieces for one in costs):,} pieces in "
        f"{pluralize(passes, 'forward pass', 'forward passes')}",
        "encoder": f"{type(encoder.model).__name__}, {heads}, {encoder.parameters:,} parameters",
        "weights": f"{decimal(encoder.weights)} in {dtype}",
        "one layer": f"{decimal(largest.layer)} of attention in the largest pass, {batch} × {pieces} pieces; all "
        f"layers, {decimal(largest.attention)}, never exist at once",
        "passes": f"{decimal(max(one.memory for one in costs))}, {workers} at a time",
        "memory": _describe_memory(prediction),
        "store": "nothing: the attention is streamed" if prediction.streams else f"{decimal(prediction.disk)} on disk",
        "time": _describe_time(prediction),
    }
    return lines


def _describe_memory(prediction: Prediction) -> str:
    if prediction.device == "cpu":
        own = decimal(prediction.host)
        return f"{decimal(prediction.memory)} at the peak, {own} of it for program, tokenizer and corpus"
    return f"{decimal(prediction.memory)} of each GPU at the peak, and {decimal(prediction.host)} of the host"


def _describe_time(prediction: Prediction) -> str:
    work = f"{prediction.operations / 1e9:,.0f} billion operations of matrix products"
    if prediction.rate is None or prediction.seconds is None:
        return f"{work}; there is no GPU here to measure their speed"
    each = " for each reading" if prediction.streams else ""
    speed = f"{prediction.rate / 1e9:,.0f} billion a second, measured here"
    return f"at least {prediction.seconds:,.1f} s{each}: {work} at {speed}"
