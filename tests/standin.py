"""A stand-in accelerator: a device of PyTorch that computes on the CPU, and records its copies and synchronisations.

It refuses what a GPU refuses, such as an operation on tensors of both devices. PyTorch has one such device for each
process, so tests use it in a process of their own (`tests.standin_run`).
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal, Self, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "standin"

aten = torch.ops.aten

Kind = Literal["to device", "to host", "wait"]
Operation: TypeAlias = Any
"""An operation of PyTorch, `torch._ops.OpOverload`."""

WAITING = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
    aten.unique_dim.default,
    aten._unique2.default,
    aten.unique_consecutive.default,
    aten.repeat_interleave.Tensor,
    aten.bincount.default,
}
"""Operations whose result, or its size, the host must know: it waits until the device has computed all before them."""

INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}
"""Operations that count the true elements of a mask, for which the host waits too, if their indices are masks."""


@dataclass(frozen=True)
class Event:
    """A copy between host and device, or an operation for which the host waits.

    Attributes:
        kind: Direction of the copy; `wait` for an operation that copies no tensor.
        operation: Name of PyTorch's operation.
        numbers: Number of elements copied, 0 for `wait`.
        place: Module, line and function of the package that caused it.
    """

    kind: Kind
    operation: str
    numbers: int
    place: str


EVENTS: list[Event] = []
"""All events of this process, in their order."""


class OnDevice(Tensor):
    """A tensor on the stand-in device.

    Attributes:
        host: The tensor on the CPU that has its numbers.
    """

    host: Tensor

    @staticmethod
    def __new__(cls: type[Self], host: Tensor) -> Self:
        tensor: Self = torch.Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=torch.device(NAME, 0),
        )
        tensor.host = host
        return tensor

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"OnDevice({self.host!r})"

    def tolist(self) -> Any:  # noqa: ANN401 # as of Tensor
        """Copy the tensor to the host, which PyTorch's own does not do for a subclass."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override] # whose arguments mypy takes from a function that does nothing
        cls, operation: Operation, types: object, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:  # noqa: ANN401 # the result of an operation
        # In inference mode PyTorch neither takes operations apart nor lets other tensors be viewed.
        with torch.inference_mode(False), torch.no_grad():
            result = operation.decompose(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
            return run(operation, args, kwargs or {})


def run(operation: Operation, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 # of any type
    """Run an operation on the CPU, record it if it copies or waits, and return its result on its device."""
    if operation in (aten._to_copy.default, aten.copy_.default, aten._copy_from.default):
        return _copy(operation, args, kwargs)
    _refuse_both_devices(operation, args, kwargs)
    if operation in WAITING or (operation in INDEXING and _has_mask(args[1])):
        _record("wait", operation, 0)
    options = dict(kwargs)
    options.pop("device", None)
    result = operation(*tree_map(_host_of, tuple(args)), **tree_map(_host_of, options))
    written = [tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, OnDevice)]
    return tree_map(lambda value: _on_device(value, written), result)


def _copy(operation: Operation, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 # a tensor
    """Run a copy; record it if its two tensors are on two devices."""
    if operation is aten._to_copy.default:
        [source] = args
        device = torch.device(kwargs.get("device") or source.device)
        options = {name: value for name, value in kwargs.items() if name not in ("device", "non_blocking")}
        to_device = device.type == NAME
        _record_copy(operation, source, to_device=to_device)
        copied = operation(_host_of(source), **options)
        return OnDevice(copied) if to_device else copied
    target, source = args[:2]
    if operation is aten._copy_from.default:
        source, target = args[:2]
    _record_copy(operation, source, to_device=isinstance(target, OnDevice))
    _host_of(target).copy_(_host_of(source))
    return target


def _record_copy(operation: Operation, source: Tensor, *, to_device: bool) -> None:
    if not source.numel():
        return
    if to_device and not isinstance(source, OnDevice):
        _record("to device", operation, source.numel())
    elif not to_device and isinstance(source, OnDevice):
        _record("to host", operation, source.numel())


def _refuse_both_devices(operation: Operation, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise RuntimeError for tensors of both devices; a GPU takes single numbers and indices of the host."""
    tensors = [tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)]
    on_host = [tensor for tensor in tensors if not isinstance(tensor, OnDevice) and tensor.dim()]
    if len(on_host) == len(tensors) or not on_host:
        return
    if operation not in INDEXING:
        raise RuntimeError(f"Expected all tensors to be on the same device, but {operation} got some of {NAME} and cpu")
    for indices in on_host:
        _record("to device", operation, indices.numel())


def _has_mask(indices: Sequence[Tensor | None]) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _host_of(value: Any) -> Any:  # noqa: ANN401 # an argument of any type
    return value.host if isinstance(value, OnDevice) else value


def _on_device(value: Any, written: Sequence[OnDevice]) -> Any:  # noqa: ANN401 # a result of any type
    """Return the tensor of the device that wraps a result: one of the arguments, if the operation wrote into it."""
    if not isinstance(value, Tensor) or isinstance(value, OnDevice):
        return value
    for tensor in written:
        if tensor.host is value:
            return tensor
    return OnDevice(value)


def _record(kind: Kind, operation: Operation, numbers: int) -> None:
    EVENTS.append(Event(kind, str(operation), numbers, _place()))


def _place() -> str:
    """Return the innermost function of the package on the stack."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.startswith("attention_probing."):
            return f"{module}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return "elsewhere"


def _empty(size: Sequence[int], **options: Any) -> OnDevice:  # noqa: ANN401 # of PyTorch's factories
    return OnDevice(torch.empty(size, dtype=options.get("dtype")))


def _empty_strided(size: Sequence[int], stride: Sequence[int], **options: Any) -> OnDevice:  # noqa: ANN401
    return OnDevice(torch.empty_strided(size, stride, dtype=options.get("dtype")))


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy between the devices, where PyTorch itself makes a tensor of numbers."""
    copied: Tensor = _copy(aten._copy_from.default, (source, target), {})
    return copied


def register() -> torch.device:
    """Make the device known to this process, and return it."""
    _setup_privateuseone_for_python_backend(NAME)
    made: dict[str, Callable[..., Tensor]] = {
        "empty.memory_format": _empty,
        "empty_strided": _empty_strided,
        "_copy_from": _copy_from,
    }
    for name, make in made.items():
        LIBRARY.impl(name, make, "PrivateUse1")  # type: ignore[no-untyped-call]
    return torch.device(NAME, 0)


LIBRARY = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
