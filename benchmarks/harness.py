"""What the benchmarks share: the command line, the choice of the corpus, timing, table and JSON.

Everything runs on the CPU. The two sides of a ratio alternate (A B A B …), so that other programs on the machine slow
both of them down. Such noise only ever adds time: a figure is that of its best round, a ratio that of the best rounds
of its sides, and the rounds' own are shown beside them. Files go to a folder under `$TMPDIR` that is removed at the
end: point it at the kind of disk that the stores will lie on.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attention_probing.attention.source import EncoderError
from attention_probing.corpora.registry import locate
from attention_probing.corpora.sample import write_sample_treebank
from attention_probing.corpora.sentence import CorpusError
from attention_probing.datamodules import TextDataModule, TextSource

SMALL, LARGE = 2000, 12544
"""Sentences of the two training files whose peaks of memory are compared; LARGE is all of UD English EWT."""
SEEDS = 7
"""Of the embedded grammar, 2000 training sentences each: enough for LARGE."""


@dataclass(frozen=True)
class Settings:
    """What the command line says.

    Attributes:
        json: File for the figures, beside the table.
        corpus: Which one; None takes UD English EWT where the data root has it, else the embedded sample.
        limit: Most sentences of any file.
        rounds: How often each side of a ratio is timed.
        memory: Whether peaks of memory are measured, which takes a new process each.
    """

    json: Path | None = None
    corpus: str | None = None
    limit: int | None = None
    rounds: int = 3
    memory: bool = True


def found(corpus: str) -> str:
    """The corpus where the data root has it, else the embedded sample."""
    try:
        locate(corpus, None)
    except CorpusError:
        return "sample"
    return corpus


@dataclass(frozen=True)
class Treebanks:
    """Three CoNLL-U files: two of training, one the beginning of the other, and dev."""

    small: Path
    large: Path
    dev: Path

    @classmethod
    def choose(cls, settings: Settings, folder: Path, report: "Report", what: str) -> "Treebanks":
        """UD English EWT, or as many sentences of the embedded grammar, written to `folder`.

        The corpus is entered in the report; `what` says what is read of it.

        Raises:
            CorpusError: UD English EWT is asked for, and not under the data root.
        """
        corpus = settings.corpus or found("ud_english_ewt")
        limit = settings.limit or LARGE
        report.figure("corpus", corpus, what)
        return cls(
            small=first_sentences(_files(corpus, "train", folder), folder / "small.conllu", min(SMALL, limit)),
            large=first_sentences(_files(corpus, "train", folder), folder / "large.conllu", min(LARGE, limit)),
            dev=first_sentences(_files(corpus, "dev", folder), folder / "dev.conllu", limit),
        )


def _files(corpus: str, split: Literal["train", "dev"], folder: Path) -> Iterator[Path]:
    """The files of a split; those of the sample are drawn from one seed after the other, as many as are asked for."""
    if corpus == "sample":
        for seed in range(SEEDS):
            yield _drawn(folder / f"seed-{seed}", seed=seed)[split]
    else:
        yield locate(corpus, None)[split]


_drawn = cache(write_sample_treebank)


def first_sentences(sources: Iterable[Path], target: Path, most: int) -> Path:
    """Copy the first `most` sentences of some CoNLL-U files, read one after the other, to `target`."""
    left = most
    with target.open("w", encoding="utf-8", newline="\n") as copy:
        for source in sources:
            with source.open(encoding="utf-8", newline="\n") as lines:
                for line in lines:
                    copy.write(line)
                    left -= line == "\n"
                    if not left:
                        return target
    return target


def texts(settings: Settings, folder: Path, most: int) -> TextDataModule:
    """The first `most` segments of WikiText, two passages each, or of the embedded text; set up for `test`.

    Raises:
        CorpusError: Another corpus is asked for, and not under the data root.
    """
    source = TextSource(settings.corpus or found("wikitext"), packing="pairs", limit=min(most, settings.limit or most))
    data = TextDataModule([source], cache=str(folder))
    data.setup("test")
    return data


def timed(action: Callable[[], object]) -> Callable[[], float]:
    """The action as something that returns its own seconds."""

    def seconds() -> float:
        start = time.perf_counter()
        action()
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the passes of a GPU return before they are done
        return time.perf_counter() - start

    return seconds


def alternate(rounds: int, **sides: Callable[[], float]) -> dict[str, list[float]]:
    """What every side returns in every round, its seconds; in each round the sides follow one another."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            seconds[name].append(side())
    return seconds


@dataclass
class Report:
    """Ratios and figures of one benchmark, for people and for programs."""

    benchmark: str
    ratios: dict[str, float] = field(default_factory=dict)
    figures: dict[str, float | str | list[float]] = field(default_factory=dict)
    _rows: dict[str, tuple[str, str, str, str]] = field(default_factory=dict)

    def ratio(self, name: str, above: list[float], below: list[float], meaning: str, *, wanted: str = "") -> None:
        """Enter best ÷ best as a ratio, and the ratios of the single rounds as the figure `<name>_rounds`."""
        self.ratios[name] = min(above) / min(below)
        rounds = [a / b for a, b in zip(above, below, strict=True)]
        self._enter(name, f"{self.ratios[name]:.3f}", rounds, wanted, meaning)

    def seconds(self, name: str, rounds: list[float], meaning: str, *, wanted: str = "") -> None:
        """Enter the least of several rounds as a figure, and all of them as the figure `<name>_rounds`."""
        self.figures[name] = min(rounds)
        self._enter(name, f"{min(rounds):,.3g}", rounds, wanted, meaning)

    def figure(self, name: str, value: float | str, meaning: str, *, wanted: str = "") -> None:
        """Enter a figure, its unit in its name."""
        self.figures[name] = value
        if isinstance(value, str):
            text = value
        else:
            text = f"{value:,.0f}" if isinstance(value, int) or value >= 1000 else f"{value:.3g}"
        self._enter(name, text, [], wanted, meaning)

    def _enter(self, name: str, value: str, rounds: list[float], wanted: str, meaning: str) -> None:
        spread = ""
        if len(rounds) > 1:
            self.figures[f"{name}_rounds"] = rounds
            spread = f"{min(rounds):,.3g} – {max(rounds):,.3g}"
        self._rows[name] = (value, spread, wanted, meaning)

    def table(self) -> Table:
        """One row for every ratio, then one for every figure."""
        computer = machine()
        table = Table(
            title=Text(f"{self.benchmark} on {self.figures.get('corpus', 'no corpus')}", style="bold"),
            caption=Text(
                f"{computer['cpu']}, {computer['cores']} cores, {computer['threads']} threads, torch "
                f"{computer['torch']}, Python {computer['python']}, {computer['device']}; best of the rounds"
            ),
            title_justify="left",
            caption_justify="left",
        )
        table.add_column("")
        for title in ("value", "rounds", "wanted"):
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("what", overflow="fold")
        for name in self.ratios:
            table.add_row(*map(Text, (name, *self._rows[name])))
        table.add_section()
        for name in (name for name in self._rows if name not in self.ratios):
            table.add_row(*map(Text, (name, *self._rows[name])))
        return table

    def to_json(self) -> str:
        """`{"benchmark", "machine", "ratios", "figures"}`."""
        names = {"benchmark": self.benchmark, "machine": machine()}
        content = names | {"ratios": self.ratios, "figures": self.figures}
        return json.dumps(content, indent=1) + "\n"


def machine() -> dict[str, str | int]:
    """What the figures were taken on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        cpu = platform.processor() or platform.machine()
    return {
        "cpu": cpu,
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": "cpu",
    }


def run(benchmark: str, measure: Callable[[Settings, Path, Report], None], arguments: list[str] | None) -> int:
    """Parse the command line, measure in a temporary folder, print the table, write the JSON; return the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{benchmark}", description=measure.__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument(
        "--corpus", choices=("ud_english_ewt", "sample"), help="default: the public one if there, else the sample"
    )
    parser.add_argument("--limit", type=int, help="most sentences of any file, for a quick look")
    parser.add_argument("--rounds", type=int, default=Settings.rounds, help="of every timing (%(default)s)")
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="leave peaks of memory out")
    settings = Settings(**vars(parser.parse_args(arguments)))
    if settings.rounds < 1 or (settings.limit is not None and settings.limit < 1):
        parser.error("--rounds and --limit must be 1 or more")
    if settings.json is not None and not settings.json.absolute().parent.is_dir():
        parser.error(f"--json: there is no folder {settings.json.absolute().parent}")
    if settings.memory and not Path("/proc/self/status").exists():
        parser.error("peaks of memory are read from /proc, which this system does not have: add --no-memory")
    report = Report(benchmark)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        try:
            measure(settings, Path(folder), report)
        except (CorpusError, EncoderError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    Console(width=None if sys.stdout.isatty() else 130).print(report.table())
    if settings.json is not None:
        settings.json.write_text(report.to_json(), encoding="utf-8")
    return 0


def command(benchmark: str, measure: Callable[[Settings, Path, Report], None]) -> Callable[[list[str] | None], int]:
    """Return the command line of a benchmark, see `run`; where its module is the program, run it and exit."""
    main = partial(run, benchmark, measure)
    if measure.__module__ == "__main__":
        raise SystemExit(main(None))
    return main
