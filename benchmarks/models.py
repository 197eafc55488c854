"""Cost of 1,000 sentences for each model: stream, heads, permutation test, extraction, probe, memory.

The models are the default encoder and the folders below `$PROBING_MODELS` (../models; `make models`).

`python -m benchmarks.models [--json FILE]`
"""

import os
from pathlib import Path
from unittest.mock import patch

from attention_probing.attention import Encoder, EncoderSpec, Options
from attention_probing.metrics.heads import permutation_p
from attention_probing.probes import AttentionOnlyProbe
from benchmarks.harness import Report, Settings, Treebanks, alternate, command, first_sentences, timed
from benchmarks.job import datamodule, run_heads
from benchmarks.memory import run_job
from benchmarks.probe_training import epoch
from benchmarks.streaming import Streamed

SENTENCES = 1000


def measure(settings: Settings, folder: Path, report: Report) -> None:
    """Cost of 1,000 sentences for each model: stream, heads, permutation test, extraction, probe, memory."""
    treebanks = Treebanks.choose(
        settings, folder, report, f"the first {SENTENCES:,} sentences of dev; train for the probe"
    )
    dev, train = (
        first_sentences([file], folder / f"{SENTENCES}-{file.name}", SENTENCES)
        for file in (treebanks.dev, treebanks.small)
    )
    for spec in encoders():
        _costs(
            spec, Path(spec.name).name, {"train": train, "dev": dev}, settings, folder / Path(spec.name).name, report
        )


def encoders() -> list[EncoderSpec]:
    """The default encoder, and the models below `$PROBING_MODELS`."""
    folder = Path(os.environ.get("PROBING_MODELS") or "../models")
    return [EncoderSpec(), *(EncoderSpec(str(path)) for path in sorted(folder.glob("*/")))]


def _costs(
    spec: EncoderSpec, name: str, files: dict[str, Path], settings: Settings, folder: Path, report: Report
) -> None:
    folder.mkdir()
    streamed = Streamed(files["dev"], Encoder(spec), folder, Options())
    tests: list[float] = []

    def test(*given: object, **options: object) -> object:
        result: list[object] = []
        tests.append(timed(lambda: result.append(permutation_p(*given, **options)))())  # type: ignore[arg-type]
        return result[0]

    def heads() -> None:
        with patch("attention_probing.measures.best_heads.permutation_p", test):
            run_heads(folder, {"dev": files["dev"], "test": files["dev"]}, spec, "stream", permutations=1000)

    seconds = alternate(settings.rounds, passes=timed(streamed), heads=timed(heads))
    report.figure(f"{name}_sentences", len(streamed.items), "of dev, read in each pass")
    report.seconds(f"{name}_passes_s", seconds["passes"], "most attended words of all heads, streamed")
    report.seconds(
        f"{name}_heads_s", seconds["heads"], "the heads experiment with loading, passes, tests and intervals"
    )
    report.seconds(f"{name}_permutation_s", tests, "its permutation test: 1,000 permutations for all relations")
    report.ratio(f"{name}_permutation_to_passes", tests, seconds["passes"], "that test ÷ the passes")

    def extract(round_: list[int]) -> None:
        round_.append(len(round_))
        datamodule(folder / f"cache-{len(round_)}", files["train"], files["dev"], encoder=spec).setup("fit")

    rounds: list[int] = []
    both = alternate(settings.rounds, extraction=timed(lambda: extract(rounds)))["extraction"]
    report.seconds(
        f"{name}_extraction_s", [one / 2 for one in both], "extraction to disk: half of that of twice as many sentences"
    )
    data = datamodule(folder / "cache-1", files["train"], files["dev"], encoder=spec)
    data.setup("fit")
    size = sum(file.stat().st_size for file in (folder / "cache-1").rglob("*") if file.is_file()) / 2e6
    report.figure(f"{name}_store_mb", size, "on disk: half of that of twice as many sentences")
    report.seconds(
        f"{name}_epoch_s",
        alternate(settings.rounds, one=epoch(AttentionOnlyProbe, data))["one"],
        "an epoch of the attention-only probe",
    )
    if settings.memory:
        peak = run_job("heads", folder, train=files["dev"], dev=files["dev"], encoder=spec.name).peak_mb
        report.figure(f"{name}_peak_mb", peak, "peak anonymous memory of the heads experiment, streamed")


main = command("models", measure)
