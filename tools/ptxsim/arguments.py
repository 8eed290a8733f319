# SPDX-License-Identifier: Apache-2.0
"""Python values -> the bytes of a kernel's parameter block and the allocations that they point into.

Responsible for typing each argument by the entry's parameter and for refusing what does not fit. Not responsible for
the launch. torch and numpy are never imported: their tensors are recognized by what they offer.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnsmith.tools.ptxsim.errors import LaunchError

_RAW = (bytes, bytearray, memoryview, ctypes._SimpleCData, ctypes.Structure, ctypes.Union, ctypes.Array)


@dataclass(frozen=True)
class Allocation:
    """A range of this process's memory that a kernel may touch as global memory."""

    address: int
    """First byte."""
    nbytes: int
    """Size in bytes."""
    name: str
    """How error messages call it."""
    is_writable: bool = True
    """False makes a store into it an error."""


@dataclass(frozen=True)
class ReadOnly:
    """Wraps a tensor argument that the kernel must not write."""

    tensor: Any
    """A CPU tensor or array."""


def pack(
    kernel: str, parameters: Sequence[Mapping[str, Any]], args: Sequence[Any] | bytes
) -> tuple[bytes, list[Allocation]]:
    """Parameter block and allocations of one launch.

    Args:
        kernel: the entry's name, for messages.
        parameters: the entry's parameters in order: name, size, align (bytes).
        args: one value per parameter, or the whole block as bytes. A tensor gives its address; an int or bool fills an
            integer parameter, a float one of 4 or 8 bytes; ctypes values and bytes are copied; None is a null pointer.

    Raises:
        LaunchError: a wrong number of arguments, or one that its parameter cannot hold.
    """
    total = _block_size(parameters)
    if isinstance(args, (bytes, bytearray, memoryview)):
        block = bytes(args)
        if len(block) != total:
            raise _refuse(kernel, f"a parameter block of {len(block)} bytes", f"{total} bytes")
        return block, []
    if len(args) != len(parameters):
        names = ", ".join(f"{p['name']} ({p['size']} B)" for p in parameters) or "none"
        raise _refuse(kernel, f"{len(args)} arguments", f"{len(parameters)}: {names}")
    args = [_plain(value) for value in args]
    packed = bytearray(total)
    allocations = []
    for parameter, offset, value in zip(parameters, _offsets(parameters), args, strict=True):
        name, size = str(parameter["name"]), int(parameter["size"])
        tensor, writable = (value.tensor, False) if isinstance(value, ReadOnly) else (value, True)
        described = _describe_tensor(tensor)
        if described is not None:
            address, first, nbytes, label, is_writable = described
            if nbytes:
                allocations.append(Allocation(first, nbytes, f"{name} {label}", writable and is_writable))
            value = address
        packed[offset : offset + size] = _encode(kernel, name, size, value)
    return bytes(packed), allocations


def merge(allocations: Iterable[Allocation]) -> list[Allocation]:
    """Sorted by address, overlapping ones (two views of one tensor) joined; a joined one is writable if any part is."""
    merged: list[Allocation] = []
    for item in sorted(allocations, key=lambda a: (a.address, a.nbytes)):
        last = merged[-1] if merged else None
        if last is None or item.address >= last.address + last.nbytes:
            merged.append(item)
            continue
        end = max(last.address + last.nbytes, item.address + item.nbytes)
        name = last.name if item.name == last.name else f"{last.name} / {item.name}"
        merged[-1] = Allocation(last.address, end - last.address, name, last.is_writable or item.is_writable)
    return merged


def _plain(value: Any) -> Any:
    """A numpy scalar as a Python number; anything else as it is."""
    is_numpy_scalar = hasattr(value, "__array_interface__") and not hasattr(value, "ctypes")
    return value.item() if is_numpy_scalar else value


def _offsets(parameters: Sequence[Mapping[str, Any]]) -> list[int]:
    offsets, end = [], 0
    for parameter in parameters:
        align = max(1, int(parameter.get("align") or 1))
        start = (end + align - 1) // align * align
        offsets.append(start)
        end = start + int(parameter["size"])
    return offsets


def _block_size(parameters: Sequence[Mapping[str, Any]]) -> int:
    return _offsets(parameters)[-1] + int(parameters[-1]["size"]) if parameters else 0


def _encode(kernel: str, name: str, size: int, value: Any) -> bytes:
    if isinstance(value, _RAW):
        data = bytes(value)
    elif value is None:
        data = bytes(size) if size == 8 else b""
    elif isinstance(value, int) or hasattr(value, "__index__"):
        return _encode_int(kernel, name, size, value.__index__())
    elif isinstance(value, float):
        if size not in (4, 8):
            raise _refuse(kernel, f"a float for {name} of {size} bytes", "4 or 8 bytes; pass ctypes or bytes otherwise")
        return struct.pack("<f" if size == 4 else "<d", value)
    else:
        raise _refuse(kernel, f"{type(value).__name__} for {name}", "tensor, int, float, None, ctypes value or bytes")
    if len(data) != size:
        raise _refuse(kernel, f"{len(data)} bytes for {name}", f"{size} bytes")
    return data


def _encode_int(kernel: str, name: str, size: int, value: int) -> bytes:
    if size not in (1, 2, 4, 8):
        raise _refuse(kernel, f"an int for {name} of {size} bytes", "1, 2, 4 or 8 bytes; pass bytes for a struct")
    if not -(1 << (8 * size - 1)) <= value < 1 << (8 * size):
        raise _refuse(kernel, f"{value} for {name}", f"an integer of {size} bytes")
    return (value & ((1 << (8 * size)) - 1)).to_bytes(size, "little")


def _describe_tensor(value: Any) -> tuple[int, int, int, str, bool] | None:
    """(address, first byte, bytes, label, writable) of a torch tensor or numpy array; None for anything else."""
    if hasattr(value, "data_ptr") and hasattr(value, "untyped_storage"):
        if str(value.device.type) != "cpu":
            raise LaunchError(
                f"simulate a kernel on a tensor: got one on {value.device}; allowed: cpu. Move it with tensor.cpu()."
            )
        return _span(value.data_ptr(), value.shape, [s * value.element_size() for s in value.stride()], value, True)
    interface = getattr(value, "__array_interface__", None)
    if isinstance(interface, dict) and hasattr(value, "strides"):
        address, is_readonly = interface["data"]
        return _span(address, value.shape, value.strides, value, not is_readonly)
    return None


def _span(
    address: int, shape: Sequence[int], byte_strides: Sequence[int], value: Any, is_writable: bool
) -> tuple[int, int, int, str, bool]:
    itemsize = value.element_size() if hasattr(value, "element_size") else value.itemsize
    label = f"{str(value.dtype).removeprefix('torch.')}{list(shape)}"
    if 0 in shape:
        return address, address, 0, label, is_writable
    reach = [(size - 1) * stride for size, stride in zip(shape, byte_strides, strict=True)]
    first = address + sum(step for step in reach if step < 0)
    nbytes = sum(abs(step) for step in reach) + itemsize
    return address, first, nbytes, label, is_writable


def _refuse(kernel: str, got: str, allowed: str) -> LaunchError:
    return LaunchError(
        f"launch {kernel}: got {got}; allowed: {allowed}. Pass args in the order of the entry's parameters "
        "(module.entry(kernel) lists them).",
        {"kind": "launch"},
    )
