"""A stand-in for probing, so that sweeps can be tested in no time, and sweeps of it."""

import sys
from collections.abc import Iterable
from pathlib import Path

PROGRAM = """
import hashlib, json, os, signal, sys, time
from pathlib import Path

if sys.argv[1] == "export":
    Path(sys.argv[3]).mkdir()
    sys.exit()
options = dict(arg.removeprefix("--").split("=", 1) for arg in sys.argv[2:])
here = Path(__file__).parent
if "deaf" in Path(options["config"]).read_text():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with (here / "calls.txt").open("a") as calls:
    calls.write(json.dumps({"command": sys.argv[1], "pid": os.getpid(), "threads": os.environ.get("OMP_NUM_THREADS"),
                            "foreign": [name for name in os.environ if name.startswith(("SLURM_", "SUBMITIT_"))],
                            **options}) + "\\n")
config = Path(options["config"]).read_text()
while "wait" in config and not (here / "go").exists():
    time.sleep(0.02)
if "fail" in config:
    print("usage: much ado", file=sys.stderr)
    print("Error: nothing comes of nothing", file=sys.stderr)
    sys.exit(3)
if "killed" in config:
    os.kill(os.getpid(), signal.SIGKILL)
if "silent" in config:
    print("Not tested: the test split is missing.")
    sys.exit(0)
folder = Path(options["trainer.default_root_dir"]) / "Probe" / "version_0"
folder.mkdir(parents=True)
if "checkpoint" in config:
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "best.ckpt").touch()
scores = {"uas": 0.5 + 0.1 * int(options["seed_everything"]), "offset.uas": 0.25, "bad": None}
record = {
    "schema": 3, "experiment": "probe", "seed": int(options["seed_everything"]), "tables": {}, "scores": scores,
    "units": dict.fromkeys(scores, "fraction"), "ratios": {}, "items": None, "config": None,
    "audit": {"epochs": int(options["seed_everything"]) + 3},
    "encoder": {"name": "tiny"}, "data": {"test": {"file": "tiny.conllu", "sha256": options.get("sha", "1")}},
    **dict.fromkeys(("columns", "latex", "figures", "figure_data", "captions"), {}), "versions": {"source_sha256": "0"},
}
sealed = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
(folder / "results.json").write_text(json.dumps({**record, "checksums": {"results.json": sealed}}))
sys.exit(5 if "afterwards" in config else 0)
"""


def write_program(folder: Path) -> list[str]:
    """Write the stand-in, which notes its calls in `calls.txt` beside it; returns its command."""
    file = folder / "program.py"
    file.write_text(PROGRAM, encoding="utf-8")
    return [sys.executable, str(file)]


def nothing_wrong(lines: Iterable[list[str]]) -> list[None]:
    """The faults of command lines of the stand-in."""
    return [None for _ in lines]


def write_spec(folder: Path, text: str, **configs: str) -> Path:
    """Write a sweep and its configs beside it; returns the sweep's path."""
    for name, content in configs.items():
        (folder / f"{name}.yaml").write_text(content, encoding="utf-8")
    path = folder / "spec.yaml"
    path.write_text(text, encoding="utf-8")
    return path
