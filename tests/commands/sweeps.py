"""A stand-in for train.py, so that sweeps can be tested in no time, and sweeps of it."""

import sys
from pathlib import Path

PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path

if sys.argv[1:] == ["--check"]:
    (Path(__file__).parent / "checks.txt").open("a").write("checked\\n")
    asked = [dict(arg.split("=", 1) for arg in args[1:]) for args in json.load(sys.stdin)]
    configs = [Path(options["--config"]).read_text() for options in asked]
    if "broken" in configs:
        sys.exit("Oh: the program is broken")
    print(*[json.dumps(config if "unfit" in config else None) for config in configs], sep="\\n")
    sys.exit()
options = dict(arg.removeprefix("--").split("=", 1) for arg in sys.argv[2:])
here = Path(__file__).parent
if "deaf" in Path(options["config"]).read_text():
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
with (here / "calls.txt").open("a") as calls:
    calls.write(json.dumps({"command": sys.argv[1], "pid": os.getpid(), "threads": os.environ.get("OMP_NUM_THREADS"),
                            "foreign": [name for name in os.environ if name.startswith(("SLURM_", "SUBMITIT_"))],
                            **options}) + "\\n")
config = Path(options["config"]).read_text()
while "wait" in config and not (here / "go").exists():
    time.sleep(0.02)
if "crash" in config:
    print("Traceback (most recent call last):", "much\\r  ado", "", "Oh: nothing", sep="\\n", file=sys.stderr)
    sys.exit(4)
if "fail" in config:
    print("usage: much ado", file=sys.stderr)
    print("Error: nothing comes of nothing", file=sys.stderr)
    sys.exit(3)
if "warned" in config:
    print("Warning: the last line", file=sys.stderr, flush=True)
if "killed" in config:
    os.kill(os.getpid(), signal.SIGKILL)
if "silent" in config:
    print("Not tested: the test split is missing.")
    sys.exit(0)
folder = Path(options["trainer.default_root_dir"]) / "Probe" / "version_0"
folder.mkdir(parents=True)
scores = {"uas": 0.5 + 0.1 * int(options["seed_everything"]), "offset.uas": 0.25, "bad": None}
(folder / "results.json").write_text(json.dumps({
    "experiment": "probe", "seed": int(options["seed_everything"]), "tables": {}, "scores": scores,
    "units": dict.fromkeys(scores, "fraction"), "ratios": {}, "items": None,
    "audit": {"epochs": int(options["seed_everything"]) + 3},
    "encoder": {"name": "tiny"}, "data": {"test": {"file": "tiny.conllu", "sha256": options.get("sha", "1")}},
    **dict.fromkeys(("columns", "figures", "figure_data", "captions"), {}), "versions": {"source_sha256": "0"},
}))
sys.exit(5 if "afterwards" in config else 0)
"""


def write_program(folder: Path) -> list[str]:
    """Write the stand-in, which notes its calls in `calls.txt` beside it; returns its command."""
    file = folder / "program.py"
    file.write_text(PROGRAM, encoding="utf-8")
    return [sys.executable, str(file)]


def write_spec(folder: Path, text: str, **configs: str) -> Path:
    """Write a sweep and its configs beside it; returns the sweep's path."""
    for name, content in configs.items():
        (folder / f"{name}.yaml").write_text(content, encoding="utf-8")
    path = folder / "spec.yaml"
    path.write_text(text, encoding="utf-8")
    return path
