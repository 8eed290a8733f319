# SPDX-License-Identifier: Apache-2.0
"""Every legality rule of a (spec, target) pair, once: command line, tuner and tests walk the same rows.

Each family has rows of its own (rules_sm80.py, rules_sm90.py) between those of both. Not responsible for the numbers
behind a rule (resources.py) or for choosing a tile (tiles.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from attnsmith.codegen import rules_sm80, rules_sm90
from attnsmith.codegen.errors import UnsupportedError
from attnsmith.codegen.families import DTYPES, HEAD_DIM_UNIT, HEAD_DIMS
from attnsmith.codegen.render import has_template
from attnsmith.codegen.resources import (
    TARGETS,
    cta_smem_bytes,
    num_threads,
    register_breakdown,
    register_estimate,
    register_limit,
    smem_members,
    static_smem_bytes,
    target_limits,
)
from attnsmith.codegen.rule import Problem, Rule, listed
from attnsmith.codegen.rules_sm80 import odd_head_dims
from attnsmith.codegen.spec import Arch, DType, KernelSpec

__all__ = ["DTYPES", "HEAD_DIMS", "HEAD_DIM_UNIT", "RULES", "Problem", "Rule", "check", "is_legal", "violations"]

MAX_STAGES = 4

NUM_WARPS = {Arch.SM80: rules_sm80.NUM_WARPS, Arch.SM90: rules_sm90.NUM_WARPS}
"""Computing warps per CTA."""


def available_archs(spec: KernelSpec) -> tuple[Arch, ...]:
    """Kernel families that have a template for the spec's op."""
    return tuple(arch for arch in Arch if has_template(spec.key.op, arch))


def _no_fp8(spec: KernelSpec, target: str) -> Problem:
    return Problem(
        f"dtype {spec.key.dtype.value}: {spec.key.arch.name} has no FP8 MMA instruction",
        f"{listed(DTYPES[spec.key.arch])} on {spec.key.arch.name}; FP8 needs SM90 (H100, H200)",
        "Convert q, k and v to bf16 or fp16.",
    )


def out_dtypes(spec: KernelSpec) -> tuple[DType, ...]:
    """Element types that the output may have."""
    return (DType.BF16, DType.FP16) if spec.key.dtype.is_fp8 else (spec.key.dtype,)


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
        f"{register_limit(spec, target)} per thread, or the compiler spills",
        "Lower block_n, or raise num_warps.",
    )


COMMON: tuple[Rule, ...] = (
    Rule(
        id="target-known",
        summary="the compile target is one that attnsmith builds for",
        predicate=lambda spec, target: target in TARGETS,
        message=lambda spec, target: Problem(
            f"target {target!r}", listed(tuple(TARGETS)), "Pass one of these targets."
        ),
    ),
    Rule(
        id="arch-available",
        summary="this version has a kernel template for the family",
        predicate=lambda spec, target: has_template(spec.key.op, spec.key.arch),
        message=lambda spec, target: Problem(
            f"arch {spec.key.arch.value}, which has no {spec.key.op.value} kernel in this version",
            listed(available_archs(spec)) or "none",
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
            listed(target_limits(target).archs) + f" on {target}",
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
        id="out-dtype",
        summary="the output has the inputs' type, or a 16-bit one where they are 8-bit",
        predicate=lambda spec, target: spec.key.out_dtype in out_dtypes(spec),
        message=lambda spec, target: Problem(
            f"out_dtype {listed([spec.key.out_dtype])} for {spec.key.dtype.value}",
            listed(out_dtypes(spec)),
            "Pass one of these for out_dtype, or leave it out.",
        ),
    ),
    Rule(
        id="head-dim-aligned",
        summary="head dims are whole 16-byte chunks: what one cp.async and one ldmatrix row move",
        predicate=lambda spec, target: not odd_head_dims(spec, HEAD_DIM_UNIT),
        message=lambda spec, target: Problem(
            odd_head_dims(spec, HEAD_DIM_UNIT),
            f"multiples of {HEAD_DIM_UNIT}",
            "Pad the tensors' last dimension; the public functions do.",
        ),
    ),
    Rule(
        id="num-warps",
        summary="one or two computing warps per SM sub-partition, or up to three on SM90",
        predicate=lambda spec, target: spec.tile.num_warps in NUM_WARPS[spec.key.arch],
        message=lambda spec, target: Problem(
            f"num_warps {spec.tile.num_warps}", listed(NUM_WARPS[spec.key.arch]), "Pass one of these for num_warps."
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
)
"""Before the family's own rules."""

RESOURCES: tuple[Rule, ...] = (
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
        predicate=lambda spec, target: register_estimate(spec) <= register_limit(spec, target),
        needs=("target-known", "num-warps"),
        message=_too_many_registers,
    ),
)
"""After them."""

RULES: tuple[Rule, ...] = (*COMMON, *rules_sm80.RULES_SM80, *rules_sm90.RULES_SM90, *RESOURCES)
"""In the order in which they are judged."""


def violations(spec: KernelSpec, target: str) -> list[Rule]:
    """The rules that (spec, target) breaks, in order. A rule is judged only when the rules it needs hold."""
    broken: list[Rule] = []
    for rule in RULES:
        judged = broken_ids(broken).isdisjoint(rule.needs)
        if judged and not rule.holds(spec, target):
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
