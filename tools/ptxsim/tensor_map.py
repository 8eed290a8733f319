# SPDX-License-Identifier: Apache-2.0
"""Tensor maps for simulated TMA copies: what cuTensorMapEncodeTiled makes on a GPU, in the simulator's own encoding.

Responsible for names and defaults. Not responsible for the checks nor for the layout: the core's tensor_map.hpp is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnsmith.tools.ptxsim import binding
from attnsmith.tools.ptxsim.errors import LaunchError

DATA_TYPES = {
    name: number
    for number, name in enumerate(
        ["uint8", "uint16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64", "bfloat16",
         "float32_ftz", "tfloat32", "tfloat32_ftz"]
    )
}  # fmt: skip
"""CUtensorMapDataType by name. fp8 tensors use uint8."""
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
"""CUtensorMapSwizzle by span in bytes; 0 is none."""


def encode_tensor_map(
    address: int,
    data_type: str,
    shape: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    *,
    element_strides: Sequence[int] | None = None,
    swizzle: int = 0,
    nan_fill: bool = False,
) -> bytes:
    """128 bytes to pass as a kernel's `const __grid_constant__ CUtensorMap` parameter.

    Args:
        address: first byte of the tensor, a multiple of 16.
        data_type: a key of DATA_TYPES.
        shape: extents in elements, innermost dimension first, one to five.
        strides: bytes between neighbours in dimensions 1 and up, multiples of 16.
        box: extents in elements of the box that one copy moves, each at most 256.
        element_strides: steps within the box per dimension, default 1.
        swizzle: span in bytes: 0, 32, 64 or 128.
        nan_fill: elements out of bounds become NaN instead of zero.

    Raises:
        LaunchError: what the driver would refuse.
    """
    if data_type not in DATA_TYPES or swizzle not in SWIZZLES:
        raise LaunchError(
            f"encode a tensor map: got data type {data_type!r}, swizzle {swizzle}; allowed: {', '.join(DATA_TYPES)}; "
            "swizzles of 0, 32, 64 and 128 bytes. Correct the arguments.",
            {"kind": "launch"},
        )
    steps: list[Any] = list(element_strides or [1] * len(shape))
    if not (len(shape) == len(strides) + 1 == len(box) == len(steps)):
        raise LaunchError(
            f"encode a tensor map: got {len(shape)} extents, {len(strides)} strides, {len(box)} box extents and "
            f"{len(steps)} element strides; allowed: one stride fewer than the others. Correct the arguments.",
            {"kind": "launch"},
        )
    return binding.core().encode_tensor_map(
        DATA_TYPES[data_type], address, list(shape), list(strides), list(box), steps, SWIZZLES[swizzle], int(nan_fill)
    )
