# SPDX-License-Identifier: Apache-2.0
"""Which kernel serves a problem on a target, why, what it needs, and what else could: facts from the generator alone.

No torch and no GPU. Not responsible for choosing (codegen.dispatch is) or for what is loaded in this process
(attnsmith.dispatch_table() is).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnsmith.codegen.dispatch import candidate_specs, entry
from attnsmith.codegen.errors import SpecError
from attnsmith.codegen.families import head_dim_unit
from attnsmith.codegen.resources import TARGETS, occupancy, smem_members, target_limits
from attnsmith.codegen.spec import Arch, DType, KernelSpec, Mask, Scheduler, TileConfig
from attnsmith.codegen.targets import parse_target, target_for_capability
from attnsmith.codegen.tiles import default_tiles

DEVICE_TARGETS = {"a100": "sm_80", "rtx3090": "sm_86", "rtx4090": "sm_89", "h100": "sm_90a", "h200": "sm_90a"}
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
    out_dtype: DType | None = None
    """Of the output; None: as q, or bf16 where q is 8-bit."""
    v_is_col_major: bool = False
    """True: v's keys are contiguous. FP8 only."""
    packs_gqa: bool = False
    """True: query heads of one key head share a tile's rows."""


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
        allowed=", ".join((*DEVICE_TARGETS, *TARGETS, "cuda")),
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
        out_dtype=problem.out_dtype,
        v_is_col_major=problem.v_is_col_major,
        packs_gqa=problem.packs_gqa,
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
            "out_dtype": specs[0].key.out_dtype.value if specs[0].key.out_dtype else None,
            "v_is_col_major": problem.v_is_col_major,
            "packs_gqa": problem.packs_gqa,
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
    if key.arch is Arch.SM90:
        lines += _pipeline_reasons(spec)
    return lines


_SCHEDULES = {
    Scheduler.SINGLE: "One CTA computes one tile.",
    Scheduler.STATIC: "Persistent CTAs take tiles in turn: with a full mask all tiles cost the same.",
    Scheduler.DYNAMIC: "Persistent CTAs take the longest tile that is left: causal tiles differ in length.",
}


def _pipeline_reasons(spec: KernelSpec) -> list[str]:
    """What an SM90 kernel's schedule does, and what it leaves to the fallback."""
    tile, key = spec.tile, spec.key
    lines = [_SCHEDULES[tile.scheduler], f"A producer warp loads K and V by TMA, {tile.num_stages} stages ahead."]
    lines += [text for is_set, text in _OVERLAPS if is_set(tile)]
    if key.dtype.is_fp8 and not key.v_is_col_major:
        lines.append("The producer transposes V: 8-bit tensor cores need keys contiguous.")
    if not key.dtype.is_fp8:
        lines.append("Tensors that TMA cannot describe run in the SM80 family's kernel, with the same result.")
    return lines


_OVERLAPS: tuple[tuple[Callable[[TileConfig], bool], str], ...] = (
    (lambda tile: tile.is_ping_pong, "Warpgroups take turns: one's softmax runs under another's products."),
    (lambda tile: tile.overlaps_softmax, "Within a warpgroup, softmax runs under the P V product of the block before."),
    (lambda tile: tile.p_in_smem, "P goes through shared memory: registers are full."),
    (lambda tile: tile.skips_rescale, "O is rescaled only when a row's maximum grew by more than 8 (log2)."),
    (lambda tile: tile.exp2_fma_eighths > 0, "A part of the exponentials is computed on the FMA pipes."),
)


def _head_dim_reason(problem: Problem, spec: KernelSpec) -> str:
    given = (problem.head_dim, problem.head_dim_v)
    built = (spec.key.head_dim, spec.key.head_dim_v)
    if not spec.key.pads_head_dim and given == built:
        return f"{_dims(given)} has a kernel of its own."
    unit = head_dim_unit(spec.key.dtype)
    is_tma = spec.key.arch is Arch.SM90
    how = "where TMA fills columns with zeros" if is_tma else "which reads columns beyond the given ones as zero"
    text = f"{_dims(given)} runs in the kernel for {_dims(built)}, {how}"
    if any(dim % unit for dim in given):
        return text + f"; the host first copies what is no multiple of {unit} to rows that are."
    return text + ", without a copy."


def _dims(dims: tuple[int, int]) -> str:
    return f"head_dim {dims[0]}" if dims[0] == dims[1] else f"head_dim {dims[0]} with head_dim_v {dims[1]}"
