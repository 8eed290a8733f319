# SPDX-License-Identifier: Apache-2.0
"""Every legality rule of a (spec, target) pair, once: command line, tuner and tests walk the same rows.

Not responsible for the numbers behind a rule (resources.py) or for choosing a tile (tiles.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from attnsmith.codegen.errors import SpecError, UnsupportedError
from attnsmith.codegen.render import has_template
from attnsmith.codegen.resources import (
    TARGETS,
    cta_smem_bytes,
    num_threads,
    register_breakdown,
    register_estimate,
    smem_members,
    static_smem_bytes,
    target_limits,
)
from attnsmith.codegen.spec import Arch, DType, KernelSpec

HEAD_DIMS = (32, 64, 96, 128, 192, 256)
"""Head dims that kernels are built for. Every other size up to the largest runs in the next one, zero-filled."""

HEAD_DIM_UNIT = 8
"""Head dims are multiples of this at the kernel: 8 elements of 16 bits are one 16-byte copy."""

SWIZZLE_COLUMNS = 32
"""Columns of the narrowest shared-memory swizzle atom."""

MMA_M, MMA_N, MMA_K = 16, 8, 16
"""mma.sync m16n8k16 of 16-bit types: rows, columns and depth of one instruction."""

NUM_WARPS = (4, 8)
ROW_TILES_PER_WARP = (1, 2)
MAX_STAGES = 4
MAX_BLOCK_N = 256

DTYPES: dict[Arch, tuple[DType, ...]] = {
    Arch.SM80: (DType.FP16, DType.BF16),
    Arch.SM90: (DType.FP16, DType.BF16, DType.E4M3, DType.E5M2),
}
"""Element types that the tensor cores of a family multiply."""


@dataclass(frozen=True)
class Problem:
    """Why a spec breaks a rule: what it has, what is allowed and what to do."""

    got: str
    allowed: str
    do: str


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One legality rule."""

    id: str
    """Stable name, for tests and messages."""
    summary: str
    """What must hold, in one sentence."""
    predicate: Callable[[KernelSpec, str], bool]
    """True when (spec, target) obeys the rule. Called only when the rules in `needs` hold."""
    message: Callable[[KernelSpec, str], Problem]
    """Explains a spec that breaks the rule."""
    needs: tuple[str, ...] = ()
    """Ids of earlier rules without which the predicate has no meaning."""
    error: type[SpecError] = SpecError
    """UnsupportedError (a NotImplementedError) where the hardware or this version cannot do it at all."""

    def to_error(self, spec: KernelSpec, target: str) -> SpecError:
        """The four-part error of a spec that breaks this rule."""
        problem = self.message(spec, target)
        asked = f"{spec.name} for {target}"
        return self.error(asked=asked, got=problem.got, allowed=problem.allowed, do=problem.do)


def _values(values: tuple[object, ...]) -> str:
    return ", ".join(str(getattr(value, "value", value)) for value in values)


def available_archs(spec: KernelSpec) -> tuple[Arch, ...]:
    """Kernel families that have a template for the spec's op."""
    return tuple(arch for arch in Arch if has_template(spec.key.op, arch))


def _no_fp8(spec: KernelSpec, target: str) -> Problem:
    return Problem(
        f"dtype {spec.key.dtype.value}: {spec.key.arch.name} has no FP8 MMA instruction",
        f"{_values(DTYPES[spec.key.arch])} on {spec.key.arch.name}; FP8 needs SM90 (H100, H200)",
        "Convert q, k and v to bf16 or fp16.",
    )


def _odd_head_dims(spec: KernelSpec, unit: int) -> str:
    """The head dims that `unit` does not divide, named; empty when it divides both."""
    dims = (("head_dim", spec.key.head_dim), ("head_dim_v", spec.key.head_dim_v))
    return ", ".join(f"{name} {value}" for name, value in dims if value % unit or value < unit)


def _bad_head_dim(name: str) -> Callable[[KernelSpec, str], Problem]:
    def message(spec: KernelSpec, target: str) -> Problem:
        value = getattr(spec.key, name)
        bucket = next((head_dim for head_dim in HEAD_DIMS if head_dim >= value > 0), None)
        do = f"Use {bucket} with pads_head_dim." if bucket else f"Use at most {HEAD_DIMS[-1]}."
        return Problem(f"{name} {value}", f"kernels of {name} {_values(HEAD_DIMS)}", do)

    return message


def _too_much_smem(spec: KernelSpec, target: str) -> Problem:
    parts = ", ".join(f"{name} {size}" for name, size in smem_members(spec).items())
    lower = "block_n or num_stages" if spec.tile.num_stages > 1 else "block_n or block_m"
    return Problem(
        f"{cta_smem_bytes(spec)} B of shared memory ({parts}, static {static_smem_bytes(spec)})",
        f"{target_limits(target).smem_per_block} B per CTA on {target}",
        f"Lower {lower}.",
    )


def _too_many_registers(spec: KernelSpec, target: str) -> Problem:
    parts = ", ".join(f"{name} {count}" for name, count in register_breakdown(spec).items())
    return Problem(
        f"about {register_estimate(spec)} registers per thread ({parts})",
        f"{target_limits(target).max_registers_per_thread} per thread, or the compiler spills",
        "Lower block_n, or raise num_warps.",
    )


RULES: tuple[Rule, ...] = (
    Rule(
        id="target-known",
        summary="the compile target is one that attnsmith builds for",
        predicate=lambda spec, target: target in TARGETS,
        message=lambda spec, target: Problem(
            f"target {target!r}", _values(tuple(TARGETS)), "Pass one of these targets."
        ),
    ),
    Rule(
        id="arch-available",
        summary="this version has a kernel template for the family",
        predicate=lambda spec, target: has_template(spec.key.op, spec.key.arch),
        message=lambda spec, target: Problem(
            f"arch {spec.key.arch.value}, which has no {spec.key.op.value} kernel in this version",
            _values(available_archs(spec)) or "none",
            "Use arch sm80: its kernels also compile for sm_90 (H100, H200).",
        ),
        error=UnsupportedError,
    ),
    Rule(
        id="target-of-family",
        summary="the compile target has the instructions of the kernel family",
        predicate=lambda spec, target: spec.key.arch in target_limits(target).archs,
        needs=("target-known",),
        message=lambda spec, target: Problem(
            f"arch {spec.key.arch.value} for target {target}",
            _values(target_limits(target).archs) + f" on {target}",
            "Pass a target of the kernel's family.",
        ),
    ),
    Rule(
        id="dtype-in-mma",
        summary="the family's tensor cores multiply the element type",
        predicate=lambda spec, target: spec.key.dtype in DTYPES[spec.key.arch],
        needs=("arch-available",),
        message=_no_fp8,
        error=UnsupportedError,
    ),
    Rule(
        id="head-dim-aligned",
        summary="head dims are whole 16-byte chunks: what one cp.async and one ldmatrix row move",
        predicate=lambda spec, target: not _odd_head_dims(spec, HEAD_DIM_UNIT),
        message=lambda spec, target: Problem(
            _odd_head_dims(spec, HEAD_DIM_UNIT),
            f"multiples of {HEAD_DIM_UNIT}",
            "Pad the tensors' last dimension; the public functions do.",
        ),
    ),
    Rule(
        id="head-dim-swizzle",
        summary="head dims are whole swizzle atoms of 32 or 64 columns, so that ldmatrix has no bank conflicts",
        predicate=lambda spec, target: not _odd_head_dims(spec, SWIZZLE_COLUMNS),
        message=lambda spec, target: Problem(
            _odd_head_dims(spec, SWIZZLE_COLUMNS),
            f"multiples of {SWIZZLE_COLUMNS} (a swizzle atom is 8 rows x 32 or 64 columns)",
            "Use the next larger kernel with pads_head_dim.",
        ),
        needs=("head-dim-aligned",),
    ),
    Rule(
        id="head-dim-supported",
        summary="head_dim is one that kernels are built for",
        predicate=lambda spec, target: spec.key.head_dim in HEAD_DIMS,
        message=_bad_head_dim("head_dim"),
    ),
    Rule(
        id="head-dim-v-supported",
        summary="head_dim_v is one that kernels are built for",
        predicate=lambda spec, target: spec.key.head_dim_v in HEAD_DIMS,
        message=_bad_head_dim("head_dim_v"),
    ),
    Rule(
        id="num-warps",
        summary="4 or 8 warps: one or two per SM sub-partition",
        predicate=lambda spec, target: spec.tile.num_warps in NUM_WARPS,
        message=lambda spec, target: Problem(
            f"num_warps {spec.tile.num_warps}", _values(NUM_WARPS), "Pass one of these for num_warps."
        ),
    ),
    Rule(
        id="threads-per-block",
        summary="the CTA's threads fit the target's limit",
        predicate=lambda spec, target: num_threads(spec) <= target_limits(target).max_threads_per_block,
        needs=("target-known", "num-warps"),
        message=lambda spec, target: Problem(
            f"{num_threads(spec)} threads",
            f"{target_limits(target).max_threads_per_block} per CTA on {target}",
            "Lower num_warps.",
        ),
    ),
    Rule(
        id="block-m-covered",
        summary="each warp covers one or two MMA tiles of 16 query rows",
        predicate=lambda spec, target: spec.tile.block_m in _legal_block_m(spec.tile.num_warps),
        needs=("num-warps",),
        message=lambda spec, target: Problem(
            f"block_m {spec.tile.block_m} over {spec.tile.num_warps} warps",
            f"block_m {_values(_legal_block_m(spec.tile.num_warps))} with {spec.tile.num_warps} warps "
            f"(m{MMA_M}n{MMA_N}k{MMA_K}: {MMA_M} or {2 * MMA_M} rows per warp)",
            "Change block_m or num_warps.",
        ),
    ),
    Rule(
        id="block-n-covered",
        summary="block_n is a multiple of the depth of the PV product's MMA",
        predicate=lambda spec, target: 0 < spec.tile.block_n <= MAX_BLOCK_N and spec.tile.block_n % MMA_K == 0,
        message=lambda spec, target: Problem(
            f"block_n {spec.tile.block_n}",
            f"multiples of {MMA_K} up to {MAX_BLOCK_N} (P is the k{MMA_K} operand of the PV product)",
            f"Round block_n to a multiple of {MMA_K}.",
        ),
    ),
    Rule(
        id="num-stages",
        summary="K and V each have one to four shared-memory buffers",
        predicate=lambda spec, target: 1 <= spec.tile.num_stages <= MAX_STAGES,
        message=lambda spec, target: Problem(
            f"num_stages {spec.tile.num_stages}: too {'few' if spec.tile.num_stages < 1 else 'many'} stages",
            f"1 to {MAX_STAGES}",
            "Pass a num_stages in this range.",
        ),
    ),
    Rule(
        id="shared-memory",
        summary="Q, K and V tiles fit the target's shared memory",
        predicate=lambda spec, target: cta_smem_bytes(spec) <= target_limits(target).smem_per_block,
        needs=("target-known",),
        message=_too_much_smem,
    ),
    Rule(
        id="registers",
        summary="accumulators and operands fit the register file",
        predicate=lambda spec, target: register_estimate(spec) <= target_limits(target).max_registers_per_thread,
        needs=("target-known", "num-warps"),
        message=_too_many_registers,
    ),
)


def _legal_block_m(num_warps: int) -> tuple[int, ...]:
    return tuple(MMA_M * row_tiles * num_warps for row_tiles in ROW_TILES_PER_WARP)


def violations(spec: KernelSpec, target: str) -> list[Rule]:
    """The rules that (spec, target) breaks, in order. A rule is judged only when the rules it needs hold."""
    broken: list[Rule] = []
    for rule in RULES:
        judged = broken_ids(broken).isdisjoint(rule.needs)
        if judged and not rule.predicate(spec, target):
            broken.append(rule)
    return broken


def broken_ids(rules: Iterable[Rule]) -> set[str]:
    """The ids of `rules`."""
    return {rule.id for rule in rules}


def check(spec: KernelSpec, target: str) -> None:
    """Raise the four-part error of the first rule that (spec, target) breaks.

    Raises:
        SpecError: a rule is broken; UnsupportedError when the hardware or this version cannot do it at all.
    """
    broken = violations(spec, target)
    if broken:
        raise broken[0].to_error(spec, target)


def is_legal(spec: KernelSpec, target: str) -> bool:
    """True when (spec, target) obeys every rule."""
    return not violations(spec, target)
