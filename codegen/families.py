# SPDX-License-Identifier: Apache-2.0
"""What each kernel family multiplies: element types, and the head-dim pairs that kernels are built for.

One table for rules, dispatch and the C++ header. Not responsible for which problems a set covers (registry.py).
"""

from __future__ import annotations

from functools import cache
from itertools import product

from attnsmith.codegen.errors import SpecError
from attnsmith.codegen.spec import Arch, DType

HEAD_DIMS = (32, 64, 96, 128, 192, 256)
"""Head dims of the SM80 kernels. Every other size up to the largest runs in the next one, zero-filled."""

MAX_HEAD_DIM = HEAD_DIMS[-1]
"""The largest of every family."""

HEAD_DIM_UNIT = 8
"""Head dims are multiples of this at the kernel: 8 elements of 16 bits are one 16-byte copy."""

DTYPES: dict[Arch, tuple[DType, ...]] = {
    Arch.SM80: (DType.FP16, DType.BF16),
    Arch.SM90: (DType.FP16, DType.BF16, DType.E4M3, DType.E5M2),
}
"""Element types that the tensor cores of a family multiply."""

EQUAL_PAIRS_SM90 = tuple((head_dim, head_dim) for head_dim in (64, 96, 128, 192, 256))
"""(head_dim, head_dim_v) of SM90 kernels of every type. Smaller head dims run in them: TMA fills with zeros."""

MLA_PAIR = (192, 128)
"""Multi-head latent attention at training time: 128 + 64 rotary columns in q and k, 128 in v. 16-bit types."""

WIDE_V_PAIRS_SM90 = tuple((64, head_dim_v) for head_dim_v in (96, 128, 192, 256))
"""A narrow q and k with a wide v. 16-bit types."""


@cache
def head_dim_pairs(arch: Arch, dtype: DType) -> tuple[tuple[int, int], ...]:
    """(head_dim, head_dim_v) with a kernel, in the order in which they are tried: the fewest columns first."""
    if arch is Arch.SM80:
        pairs = tuple(product(HEAD_DIMS, HEAD_DIMS))
    else:
        pairs = EQUAL_PAIRS_SM90 if dtype.is_fp8 else (*EQUAL_PAIRS_SM90, MLA_PAIR, *WIDE_V_PAIRS_SM90)
    return tuple(sorted(pairs, key=lambda pair: (sum(pair), pair)))


def serving_head_dims(arch: Arch, dtype: DType, head_dim: int, head_dim_v: int) -> tuple[int, int]:
    """The smallest pair that covers both head dims; SpecError outside 1..256."""
    for pair in head_dim_pairs(arch, dtype):
        if 1 <= head_dim <= pair[0] and 1 <= head_dim_v <= pair[1]:
            return pair
    outside = next(value for value in (head_dim, head_dim_v) if not 1 <= value <= MAX_HEAD_DIM)
    raise SpecError(
        asked=f"choose a kernel for head_dim {outside}",
        got=f"head_dim {outside}",
        allowed=f"1 to {MAX_HEAD_DIM}",
        do=f"Split or project the heads to at most {MAX_HEAD_DIM}.",
    )


def head_dim_bucket(head_dim: int) -> int:
    """The smallest SM80 head dim with a kernel that is at least `head_dim`; SpecError outside 1..256."""
    return serving_head_dims(Arch.SM80, DType.FP16, head_dim, head_dim)[0]


def head_dim_unit(dtype: DType) -> int:
    """Head dims of tensors are multiples of this: 16 bytes, the step of cp.async and of TMA's strides."""
    return 2 * HEAD_DIM_UNIT // dtype.num_bytes


def round_head_dim(head_dim: int, dtype: DType = DType.FP16) -> int:
    """`head_dim` rounded up to what a kernel can read: whole `head_dim_unit`s (the host pads by a copy)."""
    unit = head_dim_unit(dtype)
    return -(-head_dim // unit) * unit
