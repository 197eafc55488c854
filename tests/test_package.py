"""The package by its one name: what it exports, what an import loads, and a project that has packages of its own."""

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

import attention_probing
from attention_probing import commands, datamodules, fidelity, measures, models, probes, results
from attention_probing.commands.sweep_run import PROGRAM
from attention_probing.results import Result
from attention_probing.results.settings import ROOMS
from tests.rooms import exports

PACKAGE = Path(attention_probing.__file__).parent
FEW = 30
"""Most modules that `import attention_probing` may load; PyTorch alone loads a thousand."""


def python(code: str, folder: Path) -> str:
    """Run a program in a folder that holds what a project has of its own, and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_every_name_of_the_package_is_that_of_the_room_it_comes_from() -> None:
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    lines = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    names = [alias.name for node in lines for alias in node.names]
    assert sorted(names) == sorted(attention_probing.__all__)  # type: ignore[attr-defined]
    for node in lines:
        room = __import__(f"attention_probing.{node.module}", fromlist=["*"])
        for alias in node.names:
            assert alias.asname == alias.name
            assert getattr(attention_probing, alias.name) is getattr(room, alias.name)


def test_the_package_has_all_that_configs_name() -> None:
    """The classes of models and data, their parts, measurements and tests; specifications of batches are internal."""
    top: Mapping[str, object] = {name: getattr(attention_probing, name) for name in attention_probing.__all__}  # type: ignore[attr-defined]
    for name, kind in exports(datamodules, fidelity, measures, models, probes).items():
        of_config = isinstance(kind, type) and name.endswith(
            ("DataModule", "Probe", "Classifier", "Encoder", "Attention", "Heads", "Spec", "Model", "Task", "Source")
        )
        if of_config and name not in ("AttentionDataModule", "CorpusDataModule"):  # their bases
            assert top[name] is kind
    for kind in exports(fidelity).values():
        if isinstance(kind, type) and issubclass(kind, fidelity.FidelityTest):
            assert top[kind.__name__] is kind
    for kind in exports(measures).values():
        if isinstance(kind, type) and issubclass(kind, measures.Measure):
            assert top[kind.__name__] is kind
    assert top["Result"] is Result is results.Result


def test_the_import_of_the_package_loads_neither_pytorch_nor_numpy(tmp_path: Path) -> None:
    code = "import sys; before = {*sys.modules}; import attention_probing; print(*({*sys.modules} - before))"
    loaded = python(code, tmp_path).split()
    foreign = {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names}
    assert {name.partition(".")[0] for name in foreign} == {"attention_probing", "lazy_loader"}
    assert len(loaded) <= FEW


OWN = (*ROOMS, "commands", "configs", "metrics", "results", "train")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a package for each room, each of which ends the program that imports it."""
    for name in OWN:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise SystemExit('{name} of the project')\n", encoding="utf-8")
    (tmp_path / "configs" / "demo.yaml").write_text("model: 3\n", encoding="utf-8")
    return tmp_path


MEASURE = """
from attention_probing import DependencyDataModule, EncoderSpec, SingleHeads, measure
data = DependencyDataModule({corpus!r}, encoder=EncoderSpec({bert!r}), cache={cache!r}, batch_size=4)
print(measure(data, measurements=SingleHeads(trees=False)).answer)
"""


@pytest.mark.slow
@pytest.mark.core
def test_packages_of_a_project_change_nothing(project: Path, corpus: str, bert: Path, cache: str) -> None:
    """Neither in Python nor on the command line, whose working folder is on the path as well."""
    (other := project / "empty").mkdir()
    code = MEASURE.format(corpus=corpus, bert=str(bert), cache=cache)
    assert python(code, project) == python(code, other)
    words = ["measure", "clark2019/baselines", f"--corpus={corpus}", f"--data.cache={cache}", "--figures.formats=[]"]
    for program in (PROGRAM, (sys.executable, "-m", "attention_probing")):
        environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
        ended = subprocess.run(
            [*program, *words], cwd=project, env=environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
    assert len(list((project / "runs").rglob("results.json"))) == 2


MODULE = """
from attention_probing.probes.head_selection import AttentionOnlyProbe as Ours

class AttentionOnlyProbe(Ours):
    def __init__(self, extra: int = 1, **options):
        super().__init__(**options)

class Mine(AttentionOnlyProbe):
    pass
"""
"""A module with a class that has a name of ours."""


@pytest.mark.slow
@pytest.mark.core
def test_a_class_of_the_project_is_used_where_it_is_meant(tmp_path: Path) -> None:
    """Its package has the name of a room, and stands before that of a checkout, whose runs are started by a path."""
    room = ROOMS[-1]
    (tmp_path / room).mkdir()
    (tmp_path / room / "__init__.py").write_text(MODULE, encoding="utf-8")

    def class_path(*options: str) -> str:
        words = [*PROGRAM, "fit", "demo", *options, "--print_config"]
        told = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        return str(yaml.safe_load(told)["model"]["class_path"])

    assert class_path("--model", f"{room}.Mine") == f"{room}.Mine"
    own = f"{room}.AttentionOnlyProbe"
    assert class_path("--model", own, "--trust", room) == own
    assert class_path("--trust", room) == "attention_probing.AttentionOnlyProbe"  # the config names ours


def test_the_version_is_that_of_the_package_that_is_imported(tmp_path: Path) -> None:
    """An installed one, also where a checkout of another version is the working folder."""
    other = tmp_path / "attention_probing"
    other.mkdir()
    (other / "__init__.py").write_text("__version__ = '0.0.1'\n", encoding="utf-8")
    told = subprocess.run([*PROGRAM, "--version"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    where = Path(commands.__file__).resolve().parents[1]
    assert told == f"attention-probing {attention_probing.__version__}, in {where}\n"
    told = subprocess.run([*PROGRAM, "--configs"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert (Path(told.strip()) / "trainer" / "slurm.sh").is_file()
