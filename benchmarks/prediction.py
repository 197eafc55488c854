"""What `--dry` predicts of the stores of a treebank, beside what making them takes, for each model.

The models are the default encoder and the folders below `$PROBING_MODELS` (../models; `make models`). Prediction and
run are processes of their own. Memory is the peak of the resident memory less that of the program before it reads
anything.

`python -m benchmarks.prediction [--json FILE]`
"""

from pathlib import Path

from attention_probing.attention import EncoderSpec
from benchmarks.harness import Report, Settings, Treebanks, command
from benchmarks.memory import run_job
from benchmarks.models import encoders


def measure(settings: Settings, folder: Path, report: Report) -> None:
    """Predicted and measured memory, space and time of the stores of a treebank, for each model."""
    treebanks = Treebanks.choose(settings, folder, report, "train (2,000 sentences) and dev")
    for spec in encoders():
        compare(spec, treebanks, folder / Path(spec.name).name, report)


def compare(spec: EncoderSpec, treebanks: Treebanks, folder: Path, report: Report) -> None:
    """Predict the stores of two files, make them, and report both."""
    folder.mkdir()
    train = treebanks.small
    dev = treebanks.dev
    predicted = run_job("dry", folder / "nothing", train=train, dev=dev, encoder=spec.name).seconds
    measured = run_job("stores", folder / "stores", train=train, dev=dev, encoder=spec.name).seconds
    name = folder.name
    report.figure(f"{name}_weights_mb", predicted["weights_mb"], "predicted size of the weights")
    report.figure(f"{name}_layer_mb", predicted["layer_mb"], "predicted size of one layer's attention, largest pass")
    for quantity in ("memory_mb", "disk_mb", "passes_s"):
        report.figure(f"{name}_predicted_{quantity}", predicted[quantity], "predicted")
        report.figure(f"{name}_measured_{quantity}", measured[quantity], "measured")
    for quantity, wanted in (("memory_mb", "0.9 – 1.1"), ("disk_mb", "0.99 – 1.01"), ("passes_s", "≤ 1")):
        meaning = f"predicted ÷ measured {quantity.partition('_')[0]}"
        report.ratio(f"{name}_{quantity}", [predicted[quantity]], [measured[quantity]], meaning, wanted=wanted)


main = command("prediction", measure)
