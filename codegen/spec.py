# SPDX-License-Identifier: Apache-2.0
"""What is asked (ProblemKey) and how it is run (TileConfig), together a KernelSpec with its derived name.

Frozen values and their dict form only: a field has the right type here. Not responsible for legality (rules.py),
resources (resources.py) or source text (render.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, TypeVar

from attnsmith.codegen.errors import SpecError

E = TypeVar("E", bound=Enum)


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
        return 1 if self.is_fp8 else 2

    @property
    def is_fp8(self) -> bool:
        """True for the 8-bit types."""
        return self in (DType.E4M3, DType.E5M2)


class Mask(Enum):
    """Which keys a query row sees."""

    FULL = "full"
    CAUSAL = "causal"


class Scheduler(Enum):
    """How a kernel's CTAs come by their output tiles."""

    SINGLE = "single"
    """One CTA per tile."""
    STATIC = "static"
    """Persistent: as many CTAs as fit the GPU, tiles dealt out in turn."""
    DYNAMIC = "dynamic"
    """Persistent: a CTA takes the next tile from a counter in global memory, longest tiles first."""


def parse_enum(enum: type[E], text: object) -> E:
    """The member of `enum` whose value is `text` (any case); SpecError names the values that exist."""
    if isinstance(text, enum):
        return text
    word = str(text).strip().lower()
    for member in enum:
        if member.value == word:
            return member
    allowed = ", ".join(str(member.value) for member in enum)
    name = enum.__name__.lower()
    raise SpecError(asked=f"use {name} {text!s}", got=repr(text), allowed=allowed, do=f"Pass one of these as {name}.")


def _require_enum(owner: object, field_name: str, enum: type[Enum]) -> None:
    value = getattr(owner, field_name)
    if not isinstance(value, enum):
        raise SpecError(
            asked=f"make a {type(owner).__name__} with {field_name}={value!r}",
            got=type(value).__name__,
            allowed=f"a member of {enum.__name__} ({', '.join(str(m.value) for m in enum)})",
            do=f"Pass {enum.__name__}(...) for {field_name}.",
        )


def _require_bool(owner: object, field_name: str) -> None:
    value = getattr(owner, field_name)
    if not isinstance(value, bool):
        raise SpecError(
            asked=f"make a {type(owner).__name__} with {field_name}={value!r}",
            got=type(value).__name__,
            allowed="True or False",
            do="Pass a bool.",
        )


def _require_int(owner: object, field_name: str) -> None:
    value = getattr(owner, field_name)
    if isinstance(value, bool) or not isinstance(value, int):
        got = f"{value!r} ({type(value).__name__})"
        raise SpecError(
            asked=f"make a {type(owner).__name__} with {field_name}={value!r}",
            got=got,
            allowed="an int",
            do=f"Pass an int for {field_name}.",
        )


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
    """True: the tensors' head dims may be smaller (multiples of 8); columns beyond them are predicated, zero-filled.
    SM80 only: on SM90 every kernel serves smaller head dims, which TMA zero-fills."""
    out_dtype: DType | None = None
    """Element type of the output. None becomes `dtype`, or bf16 where that is 8-bit."""
    v_is_col_major: bool = False
    """True: v's keys are contiguous, (batch, nheads, head_dim_v, seqlen). FP8 only."""
    packs_gqa: bool = False
    """True: a tile's rows are (query row, query head of one key head's group), the head running fastest."""

    def __post_init__(self) -> None:
        for name, enum in (("op", Op), ("arch", Arch), ("dtype", DType), ("mask", Mask)):
            _require_enum(self, name, enum)
        if self.out_dtype is None:
            object.__setattr__(self, "out_dtype", DType.BF16 if self.dtype.is_fp8 else self.dtype)
        _require_enum(self, "out_dtype", DType)
        for name in ("head_dim", "head_dim_v"):
            _require_int(self, name)
        for name in ("pads_head_dim", "v_is_col_major", "packs_gqa"):
            _require_bool(self, name)


@dataclass(frozen=True, kw_only=True)
class TileConfig:
    """How a problem is run: tile sizes and pipeline of one kernel. What is beyond num_stages is SM90's."""

    block_m: int
    """Query rows per CTA."""
    block_n: int
    """Keys per iteration."""
    num_warps: int
    """Warps per CTA that compute. SM90 adds a producer warpgroup to them."""
    num_stages: int = 1
    """Shared-memory buffers for K and for V, each."""
    scheduler: Scheduler = Scheduler.SINGLE
    """How CTAs come by tiles."""
    cluster_size: int = 1
    """CTAs of a cluster, which compute neighbouring query tiles and load each K and V tile once between them."""
    is_ping_pong: bool = False
    """True: consumer warpgroups take turns at the tensor cores, so that one's softmax runs under another's GEMMs."""
    overlaps_softmax: bool = False
    """True: within a warpgroup, softmax of key block j runs under the P V product of the block before it."""
    p_in_smem: bool = False
    """True: P is the P V product's operand in shared memory instead of registers."""
    skips_rescale: bool = True
    """True: O is rescaled only when some row maximum grew by more than 8 (log2); False: whenever one grew."""
    exp2_fma_eighths: int = 0
    """Of 8 weights, how many are computed by a polynomial on the FMA pipes instead of MUFU.EX2."""

    def __post_init__(self) -> None:
        for name in ("block_m", "block_n", "num_warps", "num_stages", "cluster_size", "exp2_fma_eighths"):
            _require_int(self, name)
        for name in ("is_ping_pong", "overlaps_softmax", "p_in_smem", "skips_rescale"):
            _require_bool(self, name)
        _require_enum(self, "scheduler", Scheduler)

    @property
    def label(self) -> str:
        """The tile's part of a kernel name, for example `128x64_w4_s1` or `128x128_w8_s2_dynamic_pp_overlap`."""
        parts = [f"{self.block_m}x{self.block_n}", f"w{self.num_warps}", f"s{self.num_stages}"]
        options = (
            (self.scheduler is not Scheduler.SINGLE, self.scheduler.value),
            (self.cluster_size != 1, f"c{self.cluster_size}"),
            (self.is_ping_pong, "pp"),
            (self.overlaps_softmax, "overlap"),
            (self.p_in_smem, "psmem"),
            (not self.skips_rescale, "rescale"),
            (self.exp2_fma_eighths != 0, f"fma{self.exp2_fma_eighths}"),
        )
        return "_".join(parts + [text for is_set, text in options if is_set])


@dataclass(frozen=True, kw_only=True)
class KernelSpec:
    """One kernel: a problem and a tile. `name` is file stem, symbol, test id and profiler label; never parsed back."""

    key: ProblemKey
    """What is asked."""
    tile: TileConfig
    """How it is run."""

    @property
    def name(self) -> str:
        """For example `fwd_sm80_bf16_hdim128_causal_128x64_w4_s1`; an injective function of the spec's fields."""
        key = self.key
        head_dim = f"hdim{key.head_dim}"
        if key.head_dim_v != key.head_dim:
            head_dim += f"x{key.head_dim_v}"
        if key.pads_head_dim:
            head_dim += "pad"
        parts = [key.op.value, key.arch.value, key.dtype.value, head_dim, key.mask.value]
        if key.out_dtype is not key.dtype and key.out_dtype is not None:
            parts.insert(3, key.out_dtype.value)
        parts += ["vcol"] * key.v_is_col_major + ["packgqa"] * key.packs_gqa
        return "_".join([*parts, self.tile.label])

    def to_dict(self) -> dict[str, Any]:
        """Every field by its own name, flat and JSON-ready (enums as their values), plus the derived `name`."""
        row: dict[str, Any] = {"name": self.name}
        for part in (self.key, self.tile):
            for field in fields(part):
                value = getattr(part, field.name)
                row[field.name] = value.value if isinstance(value, Enum) else value
        return row

    @staticmethod
    def from_dict(row: Mapping[str, Any]) -> KernelSpec:
        """The inverse of `to_dict`; other keys are ignored, a missing field or a wrong value raises SpecError."""
        enums: dict[str, type[Enum]] = {
            "op": Op,
            "arch": Arch,
            "dtype": DType,
            "mask": Mask,
            "out_dtype": DType,
            "scheduler": Scheduler,
        }
        parts: list[dict[str, Any]] = []
        for cls in (ProblemKey, TileConfig):
            names = [field.name for field in fields(cls)]
            missing = [name for name in names if name not in row]
            if missing:
                raise SpecError(
                    asked="read a kernel spec from a dict",
                    got=f"no {', '.join(missing)}",
                    allowed="every field of ProblemKey and TileConfig",
                    do="Write it with KernelSpec.to_dict().",
                )
            parts.append({name: parse_enum(enums[name], row[name]) if name in enums else row[name] for name in names})
        return KernelSpec(key=ProblemKey(**parts[0]), tile=TileConfig(**parts[1]))
