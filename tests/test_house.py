import ast
import importlib
import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pytorch_lightning import LightningModule

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = [*PROJECT["tool"]["setuptools"]["packages"], *PROJECT["tool"]["setuptools"]["py-modules"]]


@pytest.mark.parametrize("name", PACKAGES)
def test_packages_come_from_the_checkout(name: str) -> None:
    """Their names are plain words, and another distribution may have a package of the same name."""
    file = importlib.import_module(name).__file__
    assert file is not None
    assert Path(file).is_relative_to(ROOT)


def test_every_package_is_listed_and_neither_tests_nor_studies() -> None:
    found = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in ROOT.glob("[a-z]*/**/__init__.py")
        if "node_modules" not in path.parts
    }
    assert {name for name in found if name.partition(".")[0] not in {"tests", "studies", "build"}} == set(
        PROJECT["tool"]["setuptools"]["packages"]
    )


PRIVATE = "pytorch-lightning"
"""The one package whose private parts are used, and which is therefore bound from above."""


def test_every_bound_has_a_reason_and_only_what_is_used_privately_is_bound_from_above() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = PROJECT["project"]["optional-dependencies"]
    for requirement in [*PROJECT["project"]["dependencies"], *extras["demo"], *extras["dev"]]:
        assert ">=" in requirement
        assert ("<" in requirement) == requirement.startswith(PRIVATE)
        assert "==" not in requirement
        before, line = next(pair for pair in pairwise(text.splitlines()) if f'"{requirement}"' in pair[1])
        assert "#" in line or before.lstrip().startswith("#"), f"{requirement}: say why"


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
    version = PROJECT["project"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == version
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[([^]]+)\]", changes, re.MULTILINE)[0] == version


def test_no_class_has_more_than_fifteen_methods_and_properties() -> None:
    """Without those of Python, such as `__init__`: a class with more has a second idea."""
    most = 15
    for package in PROJECT["tool"]["setuptools"]["packages"]:
        for path in sorted((ROOT / package).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    own = [part.name for part in node.body if isinstance(part, ast.FunctionDef)]
                    plain = [name for name in own if not name.startswith("__")]
                    assert len(plain) <= most, f"{path.relative_to(ROOT)}: {node.name} has {len(plain)}"


def test_no_trained_module_has_more_than_three_classes_of_its_own_above_lightnings() -> None:
    """`TrainedModule`, a family, and what is published."""
    for name in PACKAGES[:-1]:
        for path in (ROOT / name).glob("*.py"):
            module = importlib.import_module(f"{name}.{path.stem}")
            for kind in vars(module).values():
                if isinstance(kind, type) and issubclass(kind, LightningModule):
                    own = [one.__name__ for one in kind.__mro__ if one.__module__.partition(".")[0] in PACKAGES]
                    assert len(own) <= 3, " → ".join(reversed(own))
