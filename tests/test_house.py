import ast
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pytorch_lightning import LightningModule

import attention_probing

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
NAME = "attention_probing"
FOLDERS: dict[str, str] = PROJECT["tool"]["setuptools"]["package-dir"]
"""Folder of each package below the name."""
ROOMS = [folder for folder in FOLDERS.values() if folder != "configs"]


def test_every_room_is_a_package_below_the_name_and_linked_there() -> None:
    assert {NAME, *FOLDERS} == set(PROJECT["tool"]["setuptools"]["packages"])
    assert {f"{NAME}.{folder}": folder for folder in FOLDERS.values()} == FOLDERS
    linked = {path.name for path in (ROOT / NAME).iterdir() if path.is_symlink()}
    assert linked == set(FOLDERS.values())
    for folder in linked:
        assert (ROOT / NAME / folder).resolve() == (ROOT / folder).resolve()
    # Nothing else of the checkout is installed.
    packages = {path.parent.name for path in ROOT.glob("[a-z]*/__init__.py")}
    assert packages - {NAME, "benchmarks", "studies", "tests", "build"} == set(ROOMS)


def test_every_file_of_a_room_and_of_the_configs_is_put_into_the_wheel() -> None:
    patterns: dict[str, list[str]] = PROJECT["tool"]["setuptools"]["package-data"]
    for package, folder in {NAME: NAME, **FOLDERS}.items():
        wanted = {path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts}
        taken = {*(ROOT / folder).glob("*.py")}
        for pattern in [*patterns["*"], *patterns.get(package, [])]:
            taken |= {*(ROOT / folder).glob(pattern)}
        assert wanted - taken == set(), package
    assert (ROOT / NAME / "py.typed").is_file()


def test_train_py_is_the_command() -> None:
    one, other = (
        subprocess.run([sys.executable, *program, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
        for program in (["train.py"], ["-m", NAME])
    )
    assert one.stdout == other.stdout
    assert one.stdout.startswith("Usage: probing ")


def test_nothing_names_a_room_without_the_package() -> None:
    """Neither code, nor a page, a notebook, or a string that a test runs."""
    rooms = rf"(?:{'|'.join(ROOMS)})"
    old = re.compile(
        rf"\bfrom {rooms}(\.\w+)* import |^\W*import {rooms}\b|python -m {rooms}\b|[\"']{rooms}\.[A-Z]\w+[\"']"
    )
    told = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in told.stdout.splitlines():
        path = ROOT / name
        if path.suffix in {".py", ".md", ".ipynb", ".txt", ".yaml", ".yml"} and name != "CHANGELOG.md":
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                assert not old.search(line), f"{name}:{number}: {line.strip()}"


PRIVATE = "pytorch-lightning"
"""The one package whose private parts are used, and which is therefore bound from above."""


def test_every_package_has_a_lower_bound_and_only_what_is_used_privately_an_upper_one() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    for requirement in [*PROJECT["project"]["dependencies"], *extras["demo"], *extras["dev"]]:
        assert ">=" in requirement
        assert ("<" in requirement) == requirement.startswith(PRIVATE)
        assert "==" not in requirement


def test_releases_of_lightning_that_are_compromised_or_not_tried_are_excluded() -> None:
    (lightning,) = (
        requirement
        for requirement in map(Requirement, PROJECT["project"]["dependencies"])
        if requirement.name == "pytorch-lightning"
    )
    versions = ("2.5.6", "2.6", "2.6.1", "2.6.2", "2.6.3", "2.6.4", "2.7", "3.0")
    assert [version for version in versions if version in lightning.specifier] == ["2.6", "2.6.1", "2.6.4"]


def test_the_pythons_that_are_checked_are_the_oldest_allowed_and_those_of_the_classifiers() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/check.yml").read_text(encoding="utf-8"))["jobs"]
    known = [one.rpartition(" ")[2] for one in PROJECT["project"]["classifiers"] if "Python :: 3." in one]
    assert PROJECT["project"]["requires-python"] == f">={known[0]}"
    for job in jobs.values():
        assert job["strategy"]["matrix"]["python"] == known
    assert {name: job["steps"][-1]["run"] for name, job in jobs.items()} == {
        "check": ".ci/run",
        "lowest": "make lowest",
    }
    assert (ROOT / ".ci/run").is_file()


def test_every_package_that_is_named_is_pinned_within_its_bounds() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {
        canonicalize_name(one.name): one for line in lines if not line.startswith("#") for one in [Requirement(line)]
    }
    extras = PROJECT["project"]["optional-dependencies"]
    for text in [*PROJECT["project"]["dependencies"], *extras["demo"], *extras["dev"]]:
        needed = Requirement(text)
        (pin,) = pinned[canonicalize_name(needed.name)].specifier
        assert pin.operator == "=="
        assert pin.version in needed.specifier, text


def test_the_version_is_that_of_the_citation_and_of_the_newest_changes() -> None:
    version = attention_probing.__version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == version
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[([^]]+)\]", changes, re.MULTILINE)[0] == version


def test_no_class_has_more_than_fifteen_methods_and_properties() -> None:
    """Without those of Python, such as `__init__`: a class with more has a second idea."""
    most = 15
    for room in ROOMS:
        for path in sorted((ROOT / room).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    own = [part.name for part in node.body if isinstance(part, ast.FunctionDef)]
                    plain = [name for name in own if not name.startswith("__")]
                    assert len(plain) <= most, f"{path.relative_to(ROOT)}: {node.name} has {len(plain)}"


def test_no_trained_module_has_more_than_three_classes_of_its_own_above_lightnings() -> None:
    """`TrainedModule`, a family, and what is published."""
    for name in ROOMS:
        for path in (ROOT / name).glob("*.py"):
            module = importlib.import_module(f"{NAME}.{name}.{path.stem}")
            for kind in vars(module).values():
                if isinstance(kind, type) and issubclass(kind, LightningModule):
                    own = [one.__name__ for one in kind.__mro__ if one.__module__.startswith(f"{NAME}.")]
                    assert len(own) <= 3, " → ".join(reversed(own))
