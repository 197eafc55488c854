"""Error messages of jsonargparse, rewritten in one line: option, class, fault and remedy.

jsonargparse has no hook for its messages. tests/models/test_configs.py provokes each of those that are rewritten here.
"""

import re
import sys

from attention_probing.models.configs import command_of
from attention_probing.results.errors import is_on_command_line, near, setting
from attention_probing.results.settings import exported_classes, in_a_line

_NO_MAPPING = re.compile(r"Unexpected config: ")
_KEY = re.compile(r'Parser key "([^"]+)":\s*')
_IN_CLASS = re.compile(r"Problem with given class_path '[\w.]*?(\w+)':")
_DENIED = re.compile(r"Importing '([\w.]+)' is not allowed")
_NO_CLASS = re.compile(r"(?:Expected a dot import path string: |has no attribute ')(\w+)")
_NOT_IN_MODULE = re.compile(r"module '([\w.]+)' has no attribute '(\w+)'")
_NO_MODULE = re.compile(r"No module named '[\w.]+'")
_NO_SUBCLASS = re.compile(r"does not correspond to a subclass of (LightningModule|Measure); Given value: (\S+)")
_REQUIRED = re.compile(r"the following arguments are required: ([\w, ]+);? Given value")
_LITERAL = re.compile(r"a typing\.Literal\[([^\]]*)\]")
_BASES = ("LightningModule", "LightningDataModule", "Measure", "CorpusDataModule")
"""Classes that the parser takes for the class of an option if none is named."""


def explain_error(message: str) -> str:
    """Return an error message of jsonargparse in one line: option, class, fault and remedy."""
    if _NO_MAPPING.search(message):  # jsonargparse shows the whole content
        return "this is not a config: it has no options, such as `model: …`"
    option = ".".join(_KEY.findall(message))
    classes = _IN_CLASS.findall(message)
    place = f"{option} ({classes[-1]})" if classes else option
    denied = _DENIED.search(message)
    no_module = _NO_MODULE.search(message)
    not_in_module = _NOT_IN_MODULE.search(message)
    no_class = _NO_CLASS.search(message)
    no_subclass = _NO_SUBCLASS.search(in_a_line(message))
    missing = _REQUIRED.search(in_a_line(message))
    if denied:
        fault = _explain_denied(denied[1])
    elif no_module:
        fault = f"{no_module[0]}. It was sought in the working folder and in PYTHONPATH"
    elif not_in_module:
        fault = _explain_not_in_module(not_in_module[1], not_in_module[2])
    elif no_subclass:
        fault = _explain_no_subclass(no_subclass[2], no_subclass[1])
    elif no_class:
        fault = _explain_no_class(no_class[1], option)
    elif missing:
        fault = _explain_missing(missing[1].split(", "), option)
    else:
        plain = _IN_CLASS.sub("", _KEY.sub("", message))
        fault = _LITERAL.sub(r"one of \1", in_a_line(plain))
        if classes and classes[-1] in _BASES:
            place = option
            fault += f": give --config or --{option} first, and its arguments under `init_args`"
    return f"{place}: {fault}" if place else fault


def _explain_denied(path: str) -> str:
    """Return the fault of settings that name a class of another package."""
    module = path.rpartition(".")[0]
    remedy = f"add --trust {module}" if is_on_command_line() else f"import {module} first"
    return f"{path} is in an external package, which only the command line may allow. If you trust it, {remedy}"


def _explain_no_class(name: str, option: str) -> str:
    """Return the fault of an option that is given a name which is not one of its classes."""
    if name not in exported_classes():
        if option in ("data.encoder", "data.tokenizer"):
            return f"{name} is no class. Name an encoder with {setting(f'{option}.name')}"
        return f"there is no class {name}{near(name, exported_classes())}"
    if option != "model":
        return f"{name} cannot be used here"
    command = command_of(name)
    kind = "a model that is trained" if command == "fit" else "a measurement"
    return f"{name} is {kind}. Run it with `probing {command}`"


def _explain_not_in_module(module: str, name: str) -> str:
    """Return the fault of settings that name a class which its module does not have."""
    names = vars(sys.modules[module]) if module in sys.modules else {}
    return f"{module} has no class {name}{near(name, names)}"


def _explain_no_subclass(path: str, base: str) -> str:
    """Return the fault of a model that is not of the base class which the models of the command extend."""
    if base == "Measure":
        return f"{path} is no Measure. If it is a model that is trained, run it with `probing fit`"
    return f"{path} is no {base}. If it is a measurement, run it with `probing measure`"


def _explain_missing(names: list[str], option: str) -> str:
    """Return the fault of an option, a class, that lacks arguments."""
    options = " and ".join(f"--{option}.{name}" for name in names)
    options = re.sub(r"--model\.checkpoints?\b", "--checkpoints", options)
    return f"{options} must be given"
