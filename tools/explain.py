# SPDX-License-Identifier: Apache-2.0
"""Which kernel serves a problem on a target, why, what it needs, and what else could: facts from the generator alone.

No torch and no GPU. Not responsible for choosing (codegen.dispatch is) or for what is loaded in this process
(attnsmith.dispatch_table() is).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnsmith.codegen.dispatch import candidate_specs, entry
from attnsmith.codegen.errors import SpecError
from attnsmith.codegen.resources import occupancy, smem_members, target_limits
from attnsmith.codegen.rules import HEAD_DIM_UNIT
from attnsmith.codegen.spec import DType, KernelSpec, Mask
from attnsmith.codegen.targets import parse_target, target_for_capability
from attnsmith.codegen.tiles import default_tiles

DEVICE_TARGETS = {"a100": "sm_80", "rtx3090": "sm_86", "rtx4090": "sm_89", "h100": "sm_90", "h200": "sm_90"}
"""Simulated device -> the compile target of its kernels (a unit test compares it with the bindings' table)."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What a caller would pass."""

    dtype: DType
    """Of q, k and v."""
    head_dim: int
    """Of q and k, as given: 1 to 256."""
    head_dim_v: int
    """Of v and the output."""
    mask: Mask
    """full or causal."""
    seqlen_q: int | None = None
    """Query rows; None: long."""


def resolve_target(name: str) -> str:
    """`a100`, `sim:a100`, `sm_80` or `cuda` (the GPU of this machine) as a compile target.

    Raises:
        SpecError: an unknown name, or `cuda` without a GPU.
    """
    short = name.removeprefix("sim:").lower()
    if short in DEVICE_TARGETS:
        return DEVICE_TARGETS[short]
    if short.split(":")[0] == "cuda":
        return _target_of_gpu(short)
    if any(character.isdigit() for character in short):
        return parse_target(short)
    raise SpecError(
        asked=f"explain for device {name}",
        got=repr(name),
        allowed=f"{', '.join(DEVICE_TARGETS)}, sm_80, sm_86, sm_89, sm_90, cuda",
        do="Pass one of these as --device.",
    )


def _target_of_gpu(name: str) -> str:
    import torch

    if not torch.cuda.is_available():
        raise SpecError(
            asked=f"explain for device {name}",
            got="no CUDA GPU in this machine",
            allowed="a GPU, or a device by name",
            do="Pass --device a100 (or another name): the answer needs no GPU.",
        )
    return target_for_capability(*torch.cuda.get_device_capability(name))


def explain(problem: Problem, target: str) -> dict[str, Any]:
    """JSON-ready: `kernel` (dispatch entry with resources), `why` (sentences), `alternatives` (entries, best first).

    Raises:
        SpecError: no kernel can serve the problem on the target.
    """
    specs = candidate_specs(
        dtype=problem.dtype,
        head_dim=problem.head_dim,
        head_dim_v=problem.head_dim_v,
        mask=problem.mask,
        target=target,
        seqlen_q=problem.seqlen_q,
    )
    rows = [describe(spec, target) for spec in specs]
    return {
        "target": target,
        "gpus": target_limits(target).gpus,
        "problem": {
            "dtype": problem.dtype.value,
            "head_dim": problem.head_dim,
            "head_dim_v": problem.head_dim_v,
            "mask": problem.mask.value,
            "seqlen_q": problem.seqlen_q,
        },
        "kernel": rows[0],
        "why": reasons(problem, specs[0], target),
        "alternatives": rows[1:],
    }


def describe(spec: KernelSpec, target: str) -> dict[str, Any]:
    """A dispatch entry with what it takes of an SM."""
    limits = target_limits(target)
    return {
        **entry(spec, target),
        "smem_members": smem_members(spec),
        "smem_allowed": limits.smem_per_block,
        "ctas_per_sm": occupancy(spec, target),
    }


def reasons(problem: Problem, spec: KernelSpec, target: str) -> list[str]:
    """Why `spec` is first, one sentence per decision, in the order in which dispatch decides."""
    key = spec.key
    lines = [f"{target} ({target_limits(target).gpus}) runs kernels of the {key.arch.name} family."]
    lines.append(_head_dim_reason(problem, spec))
    lines.append(f"Mask {key.mask.value} and dtype {key.dtype.value} are compiled in: each has kernels of its own.")
    row = next((row for row in default_tiles(key, target) if row.tile == spec.tile), None)
    if row is not None:
        lines.append(f"Tile {spec.tile.label}: {row.reason}.")
        if row.max_seqlen_q is not None:
            lines.append(f"seqlen_q {problem.seqlen_q} is at most {row.max_seqlen_q}, so the short tile comes first.")
    return lines


def _head_dim_reason(problem: Problem, spec: KernelSpec) -> str:
    given = (problem.head_dim, problem.head_dim_v)
    built = (spec.key.head_dim, spec.key.head_dim_v)
    if not spec.key.pads_head_dim:
        return f"{_dims(given)} has a kernel of its own."
    text = f"{_dims(given)} runs in the kernel for {_dims(built)}, which reads columns beyond the given ones as zero"
    if any(dim % HEAD_DIM_UNIT for dim in given):
        return text + "; the host first copies what is no multiple of 8 to rows that are."
    return text + ", without a copy."


def _dims(dims: tuple[int, int]) -> str:
    return f"head_dim {dims[0]}" if dims[0] == dims[1] else f"head_dim {dims[0]} with head_dim_v {dims[1]}"
