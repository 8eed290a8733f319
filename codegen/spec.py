# SPDX-License-Identifier: Apache-2.0
"""What is asked (ProblemKey) and how it is run (TileConfig), together a KernelSpec with its derived name.

Frozen values only. Not responsible for legality (rules.py), resources (resources.py) or source text (render.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Op(Enum):
    """The operation of a kernel."""

    FWD = "fwd"


class Arch(Enum):
    """The kernel family: which template and which instructions. A family compiles for one or more targets."""

    SM80 = "sm80"
    SM90 = "sm90"


class DType(Enum):
    """Element type of q, k and v."""

    FP16 = "fp16"
    BF16 = "bf16"
    E4M3 = "e4m3"
    E5M2 = "e5m2"

    @property
    def num_bytes(self) -> int:
        """Bytes per element."""
        return 1 if self in (DType.E4M3, DType.E5M2) else 2


class Mask(Enum):
    """Which keys a query row sees."""

    FULL = "full"
    CAUSAL = "causal"


@dataclass(frozen=True, kw_only=True)
class ProblemKey:
    """What is asked of a kernel: every field changes the generated source."""

    op: Op = Op.FWD
    """Operation."""
    arch: Arch
    """Kernel family."""
    dtype: DType
    """Element type of q, k, v."""
    head_dim: int
    """Head dim of q and k that the kernel is built for."""
    head_dim_v: int
    """Head dim of v and the output that the kernel is built for."""
    mask: Mask
    """Mask policy."""
    pads_head_dim: bool = False
    """True: the tensors' head dims may be smaller (multiples of 8); columns beyond them are predicated and zero-filled."""


@dataclass(frozen=True, kw_only=True)
class TileConfig:
    """How a problem is run: tile sizes and pipeline of one kernel."""

    block_m: int
    """Query rows per CTA."""
    block_n: int
    """Keys per iteration."""
    num_warps: int
    """Warps per CTA that compute."""
    num_stages: int = 1
    """Shared-memory buffers for K and for V, each."""


@dataclass(frozen=True, kw_only=True)
class KernelSpec:
    """One kernel: a problem and a tile. `name` is file stem, symbol, test id and profiler label; never parsed back."""

    key: ProblemKey
    """What is asked."""
    tile: TileConfig
    """How it is run."""

    @property
    def name(self) -> str:
        """For example `fwd_sm80_bf16_hdim128_causal_128x64_w4_s1`."""
        key, tile = self.key, self.tile
        head_dim = f"hdim{key.head_dim}"
        if key.head_dim_v != key.head_dim:
            head_dim += f"x{key.head_dim_v}"
        if key.pads_head_dim:
            head_dim += "pad"
        parts = [key.op.value, key.arch.value, key.dtype.value, head_dim, key.mask.value]
        return "_".join([*parts, f"{tile.block_m}x{tile.block_n}", f"w{tile.num_warps}", f"s{tile.num_stages}"])
