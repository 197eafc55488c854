"""`--dry`: predict the memory, the space on disk and the time of a run, without weights; nothing is stored."""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from attention_probing.attention.costs import Costs, PlannedEncoder, predict_costs
from attention_probing.attention.extraction import return_free_memory
from attention_probing.attention.source import resolve
from attention_probing.commands import measure
from attention_probing.commands.command_line import CommandLine
from attention_probing.commands.twins import TwinName, twins_of
from attention_probing.datamodules.attention import AttentionDataModule, cut_ahead
from attention_probing.datamodules.corpus import STAGES
from attention_probing.measures.contract import Measure
from attention_probing.measures.loop import begin_measurement
from attention_probing.results.errors import UserError, pluralize, setting
from attention_probing.results.memory import peak_resident_bytes, resident_bytes

OPTION = "--dry"

_PIECES = 512
_ROUNDS = 10
_SECONDS = 0.02  # of a round of matrix products


@dataclass(frozen=True)
class RunCosts:
    """Costs of a run until its data are ready.

    Attributes:
        encoder: The encoder, without weights.
        costs: Costs of reading each corpus file once, by its splits.
        readings: Number of times that each file is read: 2 with `random_init`, of the splits of a test, and more with
            null twins.
        encoders: Number of encoders that are in memory at once: the given one, and with `random_init` one of random
            weights.
        streams: True if the run stores nothing.
        start: Bytes that the program takes before it loads an encoder.
        host: Bytes that the program, the tokenizer and the corpora take.
        reading: Most bytes that program and tokenizer take while the tokenizer is read.
        beside: Bytes that an encoder takes beside its weights; most are those of its tokenizer.
        mapped: Bytes of the files of weights, which are mapped while they are converted; 0 if they are not here, or if
            the weights stay in their type.
        device: Kind of device of the run, `cpu` or `cuda`.
        rate: Floating-point operations of matrix products per second, measured on this machine as if it were idle; None
            for a device that is not here.
    """

    encoder: PlannedEncoder
    costs: Mapping[str, Costs]
    readings: Mapping[str, int]
    encoders: int
    streams: bool
    start: int
    host: int
    reading: int
    beside: int
    mapped: int
    device: str
    rate: float | None

    @property
    def on_device(self) -> int:
        """Peak of the weights and the forward passes, in bytes."""
        if self.device != "cpu":
            return self._of_passes
        return max(self._of_passes, self._while_drawing)

    @property
    def is_of_drawing(self) -> bool:
        """True if most memory of a CPU is needed where the encoder of random weights is made."""
        return self.device == "cpu" and self._while_drawing > self._of_passes

    @property
    def _of_passes(self) -> int:
        """Bytes of weights and forward passes."""
        return self.encoders * self.encoder.weights + max(costs.memory for costs in self.costs.values())

    @property
    def _while_drawing(self) -> int:
        """Bytes of weights while the encoder of random weights is made, on the CPU, also for a GPU; 0 if there is none.

        Pretrained weights are read, whose files are mapped until all are converted; then random ones are drawn beside
        them, which get their embeddings. On a CPU the first encoder is there too, and memory that its passes have left.
        """
        if self.encoders == 1:
            return 0
        weights = self.encoder.weights
        read_and_drawn = weights + max(weights, self.mapped)
        if self.device != "cpu":
            return read_and_drawn
        return weights + read_and_drawn + max(costs.spare for costs in self.costs.values())

    @property
    def on_host(self) -> int:
        """Peak of the memory of the host: program, tokenizers and corpora, and the weights on their way to the device.

        An encoder is loaded in two steps, first the weights, then the tokenizer, whose file takes more while it is
        read than afterwards.
        """
        weights = self.encoder.weights
        loading = max(self.start + weights + self.mapped, self.reading + weights)
        later = self.host + (self.encoders - 1) * self.beside
        if self.device == "cpu":
            later += self.on_device
        else:
            later += self._while_drawing
        return max(loading, later)

    @property
    def memory(self) -> int:
        """Peak of the memory of the device, in bytes; of a CPU, with what the program itself takes."""
        return self.on_host if self.device == "cpu" else self.on_device

    @property
    def disk(self) -> int:
        """Bytes of the stores."""
        if self.streams:
            return 0
        return sum(self.readings[name] * costs.disk for name, costs in self.costs.items())

    @property
    def passes(self) -> int:
        """Number of forward passes."""
        return sum(self.readings[name] * costs.passes for name, costs in self.costs.items())

    @property
    def operations(self) -> float:
        """Floating-point operations of all passes."""
        return sum(self.readings[name] * costs.operations for name, costs in self.costs.items())

    @property
    def seconds(self) -> float | None:
        """Least time of the passes: of their matrix products at the measured speed."""
        return None if self.rate is None else self.operations / self.rate


def run(line: CommandLine) -> None:
    """Predict what a command line will need, and print it; a measurement that tells its time is begun for it.

    Raises:
        UserError: The command line is wrong, or its data are of a kind that cannot be predicted.
    """
    planned = replace(line, words=tuple(word for word in line.words if word != OPTION))
    console = Console()
    objects = _objects_of(planned)
    if isinstance(objects.model, Measure) and objects.model.tells_time:
        objects.trainer.fabric().launch(partial(begin_measurement, objects.model, objects.data))
        if objects.twins:
            console.print(f"As long again for each of {pluralize(len(objects.twins), 'null twin')}.")
        console.print("Only a few passes were timed, and nothing was stored.")
        return
    console.print(layout(predict(objects.data, objects.stage, objects.accelerator, objects.twins)))
    console.print("Nothing was computed or stored, and no weights were read.")


def _objects_of(line: CommandLine) -> Any:  # noqa: ANN401 # a namespace
    """Return `model`, `data` and `trainer` of a command line, its `stage`, its `accelerator`, and its null `twins`."""
    if line.command == "measure":
        parser, settings = measure.parse(line)
        objects = parser.instantiate(settings)
        measure.refuse_unfit(objects)
        objects.stage = "test"
        objects.accelerator = objects.trainer.accelerator
        objects.twins = tuple(twins_of(settings))
        return objects
    from attention_probing.commands.lightning import CheckedCLI

    checked = CheckedCLI(line)
    accelerator = str(checked.settings.trainer.accelerator)
    data = checked.datamodule
    return SimpleNamespace(model=checked.model, data=data, stage=line.command, accelerator=accelerator, twins=())


def predict(data: object, stage: str, accelerator: str = "auto", twins: Collection[TwinName] = ()) -> RunCosts:
    """Predict what a stage of a datamodule needs to read its corpora with its encoder.

    Args:
        data: The datamodule.
        stage: Stage of Lightning, such as `fit`.
        accelerator: Kind of device, as for Lightning's Trainer.
        twins: Null twins that are measured after the run.

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
    start = resident_bytes()
    encoder = PlannedEncoder(resolve(data.encoder, weights=False))
    reading = peak_resident_bytes()
    beside = resident_bytes() - start
    rate = measure_rate(device, encoder)
    if device == "cpu":
        load_kernels(encoder.state_size)
    host = 0
    costs = {}
    readings = {}
    tests = data.random_init and stage in ("fit", "test")
    for splits, items in cut_ahead(data, stage, encoder):
        name = " and ".join(splits)
        costs[name] = predict_costs(encoder, items, device)
        reads = 2 if tests and {*splits} & {*STAGES["test"]} else 1
        readings[name] = reads + _readings_of_twins(reads, twins, streams=data.streams)
        return_free_memory()  # as before the passes of a run
        host = max(host, resident_bytes())
    mapped = sum(path.stat().st_size for path in encoder.source.weights)
    if mapped >= 0.9 * encoder.weights:  # in their own type they are mapped, not copied
        mapped = 0
    encoders = 2 if tests else 1
    return RunCosts(
        encoder, costs, readings, encoders, data.streams, start, host, reading, beside, mapped, device, rate
    )


def _readings_of_twins(reads: int, twins: Collection[TwinName], *, streams: bool) -> int:
    """Return the number of times that null twins read a file: each as often as the run, but not from a store.

    Args:
        reads: Number of times that the run reads the file.
        twins: Names of the twins. That of random weights has a store of its own; the other reads those of the run.
        streams: True if nothing is stored.
    """
    if streams:
        return reads * len(twins)
    return 1 if "random" in twins else 0


def _kind(accelerator: str) -> str:
    """Return the kind of device that an accelerator of Lightning's Trainer stands for."""
    is_cpu = accelerator == "cpu"
    if accelerator == "auto":
        is_cpu = not torch.cuda.is_available()
    return "cpu" if is_cpu else "cuda"


def load_kernels(size: int) -> None:
    """Run one layer of a transformer of this width, so that the code and the buffers of PyTorch's kernels are resident.

    They are loaded when they are first used, as in the first pass of a run; the planned passes use none.
    """
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        layer = torch.nn.TransformerEncoderLayer(size, nhead=1, activation="gelu", batch_first=True)
        layer(torch.rand(1, _PIECES, size))


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
    clock = time.perf_counter
    threads = 1
    if device == "cpu":  # processor time: other programs do not count
        clock = time.process_time
        threads = torch.get_num_threads()
    rates = []
    for _ in range(_ROUNDS):
        products = 0
        start = clock()
        while clock() - start < _SECONDS * threads:
            product = states @ matrix
            products += 1
        float(product[0, 0])  # waits for a GPU
        rates.append(products / (clock() - start))
    return max(rates) * threads * 2 * _PIECES * matrix.numel()


def layout(prediction: RunCosts) -> Table:
    """Return a prediction as a table of two columns."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, text in describe(prediction).items():
        table.add_row(Text(name, style="bold"), Text(text))
    return table


def describe(prediction: RunCosts) -> dict[str, str]:
    """Return the lines of a prediction by their names."""
    encoder = prediction.encoder
    files = ", ".join(prediction.costs)
    costs = prediction.costs.values()
    pieces_in_all = sum(one.pieces for one in costs)
    passes = pluralize(prediction.passes, "forward pass", "forward passes")
    kind = type(encoder.model).__name__
    heads = f"{encoder.layers} layers × {encoder.heads} heads"
    layers = f"{kind}, {heads}, {encoder.parameters:,} parameters"
    dtype = str(encoder.model.dtype).removeprefix("torch.")
    weights = f"{decimal(encoder.weights)} in {dtype}"
    if prediction.encoders > 1:
        layers += ", and the same with untrained layers"
        weights += ", twice"
    largest = max(costs, key=lambda one: one.layer)
    batch, pieces = largest.largest
    memory_of_pass = max(one.memory for one in costs)
    workers = max(one.workers for one in costs)
    store = f"{decimal(prediction.disk)} on disk"
    if prediction.streams:
        store = "nothing: the attention is streamed"
    return {
        "data": f"{files}: {pieces_in_all:,} pieces; {passes}",
        "encoder": layers,
        "weights": weights,
        "one layer": f"{decimal(largest.layer)} of attention in the largest pass, {batch} × {pieces} pieces; all "
        f"layers, {decimal(largest.attention)}, never exist at once",
        "passes": f"{decimal(memory_of_pass)}, {workers} at a time",
        "memory": _describe_memory(prediction),
        "store": store,
        "time": _describe_time(prediction),
    }


def _describe_memory(prediction: RunCosts) -> str:
    if prediction.device == "cpu":
        peak = (
            f"{decimal(prediction.memory)} at the peak, {decimal(prediction.host)} of it for program, tokenizer and "
            "corpus"
        )
        if prediction.is_of_drawing:
            peak += "; most is needed where random weights are drawn beside the pretrained ones, which are read again"
        return peak
    return f"{decimal(prediction.memory)} of each GPU at the peak, and {decimal(prediction.on_host)} of the host"


def _describe_time(prediction: RunCosts) -> str:
    work = f"{prediction.operations / 1e9:,.0f} billion operations of matrix products"
    if prediction.rate is None or prediction.seconds is None:
        return f"{work}; there is no GPU here to measure their speed"
    each = " for each reading" if prediction.streams else ""
    speed = f"{prediction.rate / 1e9:,.0f} billion a second, measured here"
    return f"at least {prediction.seconds:,.1f} s{each} for {work} at {speed}; all else comes on top"
