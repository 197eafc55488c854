"""The installed wheel: `make wheel-test` runs this in a folder that has the wheel, and of the checkout only tests."""

import importlib
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pytest

import attention_probing
from attention_probing.commands import CONFIGS
from attention_probing.results.settings import ROOMS
from tests.conftest import IS_CHECKOUT, ROOT

PACKAGE = Path(attention_probing.__file__).parent
installed = pytest.mark.skipif(IS_CHECKOUT, reason="`make wheel-test` tests the wheel")


def test_the_package_is_that_of_the_checkout_here_or_else_the_installed_one() -> None:
    if IS_CHECKOUT:
        assert PACKAGE == ROOT / "attention_probing"
        return
    own = Path(str(distribution("attention-probing").locate_file("attention_probing")))
    assert own == PACKAGE
    assert own.is_relative_to(sys.prefix)
    for room in ROOMS:
        path = importlib.import_module(f"attention_probing.{room}").__file__
        assert path is not None
        assert Path(path) == Path(path).resolve() == PACKAGE / room / "__init__.py"  # no link of a checkout
    assert PACKAGE / "configs" == CONFIGS


@installed
def test_every_module_of_the_wheel_is_imported() -> None:
    """None names a folder of the checkout, or a file that the wheel has not."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.stem not in ("__init__", "__main__"):
            importlib.import_module(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))


@installed
def test_the_wheel_has_one_name_all_data_and_no_large_file() -> None:
    """It is source code, 1.0 MB in version 3.1, of which no file takes over 50 kB; a corpus or a model would."""
    (wheel,) = ROOT.glob("*.whl")
    assert wheel.stat().st_size <= 1_500_000
    with ZipFile(wheel) as archive:
        names = archive.namelist()
        assert max(file.compress_size for file in archive.infolist()) <= 50_000
    tops = {name.partition("/")[0] for name in names}
    version = attention_probing.__version__
    assert tops == {"attention_probing", f"attention_probing-{version}.dist-info"}
    assert not [name for name in names if re.search(r"/(tests|studies|benchmarks|examples|docs)/|__pycache__", name)]
    files = {name.removeprefix("attention_probing/") for name in names}
    assert {"py.typed", "__init__.pyi", "configs/demo.yaml", "configs/trainer/slurm.sh"} <= files
    # A stub is read when a name is imported: without it there are no names.
    lazy = {path.parent.name for path in PACKAGE.glob("*/__init__.py") if "attach_stub" in path.read_text("utf-8")}
    assert {f"{room}/__init__.pyi" for room in lazy} <= files
    assert len(lazy) >= 7


@installed
@pytest.mark.slow
@pytest.mark.core
def test_several_processes_and_a_sweep_of_the_installed_command(tmp_path: Path) -> None:
    """Lightning starts the command again for each process, and a sweep starts it for each run."""
    (tmp_path / "plan.yaml").write_text(
        "name: own\nlabel: row\nscores: [uas]\nseeds: [0]\nrows:\n  one: {config: own.yaml}\n", encoding="utf-8"
    )
    demo = (CONFIGS / "demo.yaml").read_text(encoding="utf-8")
    (tmp_path / "own.yaml").write_text(demo.replace("max_epochs: 1000", "max_epochs: 1"), encoding="utf-8")
    probing = Path(sys.executable).with_name("probing")
    devices = ["--trainer.devices=2", "--trainer.accelerator=cpu"]
    for words in (["fit", "own.yaml", *devices], ["sweep", "plan.yaml"]):
        ended = subprocess.run(
            [probing, *words], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
        )
        assert ended.returncode == 0, ended.stderr
    assert len(list(tmp_path.rglob("results.json"))) == 3  # of the run, the run of the sweep, and the sweep
