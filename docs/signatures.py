"""Signatures of the reference without `**options`: those of the base class stand in their place."""

from typing import Any

from griffe import Class, Extension, Function, GriffeLoader, Module, ParameterKind, Parameters


class WholeSignatures(Extension):
    """Puts the options of the base class into a constructor that passes them on."""

    def on_package(self, *, pkg: Module, loader: GriffeLoader, **_: Any) -> None:  # noqa: ANN401, D102
        _complete_all(pkg)


def _complete_all(package: Module) -> None:
    """Complete the constructors of all classes in the modules of a package, and of the packages in it."""
    for module in package.modules.values():
        if module.is_alias:  # an import, such as the package itself
            continue
        for kind in module.classes.values():
            if not kind.is_alias and "__init__" in kind.members:
                _complete(kind)
        _complete_all(module)


def _complete(kind: Class) -> Parameters:
    """The parameters of a constructor, completed in place; of a class without one those of its base."""
    if "__init__" not in kind.members:
        return _complete(kind.mro()[0]) if kind.mro() else Parameters()
    constructor = kind.members["__init__"]
    assert isinstance(constructor, Function)
    own = constructor.parameters
    if (more := next((one for one in own if one.kind is ParameterKind.var_keyword), None)) is not None and kind.mro():
        passed_on = [one for one in _complete(kind.mro()[0]) if one.name not in own]
        constructor.parameters = Parameters(*(one for one in own if one is not more), *passed_on)
    return constructor.parameters
