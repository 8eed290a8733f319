# SPDX-License-Identifier: Apache-2.0
"""Random orthogonal rotations of the head dim that spread outliers: signed Hadamard matrices of any size up to 256.

q and k rotated alike have the same scores, and their entries are nearly normal whatever they were, which is what an
8-bit float rounds best (incoherent processing: FlashAttention-3, section 3.3). Not responsible for rounding:
quantize.py is.
"""

from __future__ import annotations

import functools
import math

import torch
from attnsmith.checks import MAX_HEAD_DIM
from attnsmith.errors import ArgumentError, ArgumentTypeError
from torch import Tensor

MAX_SEED = 2**63 - 1


def incoherent_rotation(head_dim: int, seed: int = 0) -> Tensor:
    """The rotation that quantize_fp8(incoherent=True) applies: x @ rotation, along the head dim of q and of k.

    Args:
        head_dim: 1 to 256.
        seed: of the random signs; the same on every device and in every process.

    Returns:
        (head_dim, head_dim), fp32, on the CPU, orthogonal to fp32's accuracy. Powers of two, 12 times a power of two
        and other orders that Paley's construction gives are one signed Hadamard matrix. In between, the largest such
        order n covers the first n and then the last n of the dims.

    Raises:
        TypeError, ValueError: head_dim or seed out of range.
    """
    for name, value, least, most in (("head_dim", head_dim, 1, MAX_HEAD_DIM), ("seed", seed, 0, MAX_SEED)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise ArgumentTypeError(
                asked="make a rotation", got=f"{name} {value!r} of type {type(value).__name__}", allowed="an int",
                do=f"Pass an int for {name}.",
            )  # fmt: skip
        if not least <= value <= most:
            raise ArgumentError(
                asked="make a rotation", got=f"{name} {value}", allowed=f"{name} from {least} to {most}",
                do=f"Pass another {name}.",
            )  # fmt: skip
    return _rotation(head_dim, seed).clone()


@functools.lru_cache(maxsize=32)
def _rotation(head_dim: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    order = next(n for n in range(head_dim, 0, -1) if _has_hadamard(n))
    block = _hadamard(order) / math.sqrt(order)
    rotation = _random_signs(head_dim, generator)
    rotation[:, :order] = rotation[:, :order] @ block
    if order < head_dim:  # signs in between, for two Hadamard matrices that overlap may undo one another
        rotation = rotation @ _random_signs(head_dim, generator)
        rotation[:, -order:] = rotation[:, -order:] @ block
    return rotation.to(torch.float32)


def _random_signs(size: int, generator: torch.Generator) -> Tensor:
    """A diagonal matrix of 1 and -1; fp64."""
    return torch.diag(torch.randint(0, 2, (size,), generator=generator).to(torch.float64) * 2.0 - 1.0)


def _has_hadamard(order: int) -> bool:
    """Whether `_hadamard` makes this order: Sylvester's doubling of 1, or of p + 1 for a prime p = 3 mod 4."""
    return order == 1 or _is_paley(order) or (order % 2 == 0 and _has_hadamard(order // 2))


def _is_paley(order: int) -> bool:
    prime = order - 1
    return order % 4 == 0 and all(prime % divisor for divisor in range(2, math.isqrt(prime) + 1))


def _hadamard(order: int) -> Tensor:
    """Entries 1 and -1, rows orthogonal; fp64."""
    if order == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    if order & (order - 1) and _is_paley(order):
        return _paley(order - 1)
    return torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64), _hadamard(order // 2))


def _paley(prime: int) -> Tensor:
    """Paley's first construction, of order prime + 1: I + S, S the skew-symmetric matrix of quadratic residues."""
    squares = torch.tensor([x * x % prime for x in range(1, prime)])
    residue = torch.full((prime,), -1.0, dtype=torch.float64)
    residue[squares] = 1.0
    residue[0] = 0.0
    index = torch.arange(prime)
    skew = torch.zeros(prime + 1, prime + 1, dtype=torch.float64)
    skew[0, 1:], skew[1:, 0] = 1.0, -1.0
    skew[1:, 1:] = residue[(index[:, None] - index[None, :]) % prime]
    return skew + torch.eye(prime + 1, dtype=torch.float64)
