# SPDX-License-Identifier: Apache-2.0
"""Legality rules of the SM90 family alone: head-dim pairs, warpgroup tiles, FP8, and the pipeline options."""

from __future__ import annotations

from attnsmith.codegen.errors import SpecError
from attnsmith.codegen.families import head_dim_pairs, serving_head_dims
from attnsmith.codegen.resources_sm90 import ROWS_PER_WARPGROUP, VT_KEYS, WARPS_PER_WARPGROUP
from attnsmith.codegen.rule import Problem, Rule
from attnsmith.codegen.spec import Arch, KernelSpec, Mask, Scheduler

NUM_WARPS = (4, 8, 12)
"""One, two or three consumer warpgroups."""

ROWS_PER_WARP = ROWS_PER_WARPGROUP // WARPS_PER_WARPGROUP

MAX_BLOCK_N = 256
"""The widest wgmma."""

CLUSTER_SIZES = (1, 2)


def key_unit(spec: KernelSpec) -> int:
    """block_n is a multiple of this: the depth of one PV wgmma, 32 bytes of keys."""
    return 32 // spec.key.dtype.num_bytes


def _bad_pair(spec: KernelSpec, target: str) -> Problem:
    key = spec.key
    pairs = ", ".join(f"({d}, {dv})" for d, dv in head_dim_pairs(key.arch, key.dtype))
    try:
        do = "Use ({}, {}), which serves it with zero fill.".format(
            *serving_head_dims(key.arch, key.dtype, key.head_dim, key.head_dim_v)
        )
    except SpecError as error:
        do = error.do
    return Problem(
        f"head_dim {key.head_dim} with head_dim_v {key.head_dim_v}",
        f"(head_dim, head_dim_v) of {key.dtype.value} kernels: {pairs}",
        do,
    )


def _multicast_is_legal(spec: KernelSpec, target: str) -> bool:
    key, tile = spec.key, spec.tile
    in_step = key.mask is Mask.FULL and tile.scheduler is not Scheduler.DYNAMIC
    return tile.cluster_size == 1 or (in_step and not key.dtype.is_fp8)


RULES_SM90: tuple[Rule, ...] = (
    Rule(
        id="head-dim-pair",
        summary="(head_dim, head_dim_v) is a pair that SM90 kernels are built for",
        predicate=lambda spec, target: (
            (spec.key.head_dim, spec.key.head_dim_v) in head_dim_pairs(spec.key.arch, spec.key.dtype)
        ),
        message=_bad_pair,
        arch=Arch.SM90,
    ),
    Rule(
        id="pads-head-dim",
        summary="no SM90 kernel needs pads_head_dim: TMA zero-fills smaller head dims in every one",
        predicate=lambda spec, target: not spec.key.pads_head_dim,
        message=lambda spec, target: Problem(
            "pads_head_dim True", "False on SM90: TMA zero-fills", "Leave pads_head_dim out."
        ),
        arch=Arch.SM90,
    ),
    Rule(
        id="v-col-major-fp8",
        summary="only 8-bit V may be column-major: 16-bit wgmma reads either order, so row-major serves it",
        predicate=lambda spec, target: spec.key.dtype.is_fp8 or not spec.key.v_is_col_major,
        message=lambda spec, target: Problem(
            f"v_is_col_major with {spec.key.dtype.value}",
            "v_is_col_major for e4m3 and e5m2",
            "Pass v row-major (head_dim_v contiguous).",
        ),
        arch=Arch.SM90,
    ),
    Rule(
        id="v-col-major-block-n",
        summary="a column-major V tile has whole rows of 128 keys, the span of its swizzle",
        predicate=lambda spec, target: not spec.key.v_is_col_major or spec.tile.block_n % VT_KEYS == 0,
        message=lambda spec, target: Problem(
            f"block_n {spec.tile.block_n} with v_is_col_major",
            f"multiples of {VT_KEYS}",
            f"Round block_n to a multiple of {VT_KEYS}.",
        ),
        arch=Arch.SM90,
        needs=("v-col-major-fp8",),
    ),
    Rule(
        id="block-m-warpgroups",
        summary="a warpgroup of 4 warps covers exactly the 64 query rows of its wgmma",
        predicate=lambda spec, target: spec.tile.block_m == ROWS_PER_WARP * spec.tile.num_warps,
        message=lambda spec, target: Problem(
            f"block_m {spec.tile.block_m} over {spec.tile.num_warps} warps",
            f"block_m {ROWS_PER_WARP * spec.tile.num_warps} with {spec.tile.num_warps} warps "
            f"({ROWS_PER_WARPGROUP} rows per warpgroup)",
            "Change block_m or num_warps.",
        ),
        arch=Arch.SM90,
        needs=("num-warps",),
    ),
    Rule(
        id="block-n-wgmma",
        summary="block_n is a multiple of the PV wgmma's depth, and at most the widest wgmma",
        predicate=lambda spec, target: 0 < spec.tile.block_n <= MAX_BLOCK_N and spec.tile.block_n % key_unit(spec) == 0,
        message=lambda spec, target: Problem(
            f"block_n {spec.tile.block_n}",
            f"multiples of {key_unit(spec)} up to {MAX_BLOCK_N} for {spec.key.dtype.value} "
            f"(the PV wgmma is {key_unit(spec)} keys deep)",
            f"Round block_n to a multiple of {key_unit(spec)}.",
        ),
        arch=Arch.SM90,
    ),
    Rule(
        id="p-in-smem-16-bit",
        summary="8-bit P goes through registers: its key order is the accumulator's, which shared memory would undo",
        predicate=lambda spec, target: not (spec.tile.p_in_smem and spec.key.dtype.is_fp8),
        message=lambda spec, target: Problem(
            f"p_in_smem with {spec.key.dtype.value}", "p_in_smem for fp16 and bf16", "Leave p_in_smem out."
        ),
        arch=Arch.SM90,
    ),
    Rule(
        id="ping-pong",
        summary="taking turns at the tensor cores takes at least two consumer warpgroups",
        predicate=lambda spec, target: not spec.tile.is_ping_pong or spec.tile.num_warps >= 2 * WARPS_PER_WARPGROUP,
        message=lambda spec, target: Problem(
            f"is_ping_pong with {spec.tile.num_warps} warps",
            f"{2 * WARPS_PER_WARPGROUP} warps or more",
            "Leave is_ping_pong out, or raise num_warps.",
        ),
        arch=Arch.SM90,
        needs=("num-warps",),
    ),
    Rule(
        id="fp8-rescale",
        summary="FP8 weights follow the row maximum at once: e4m3 would round the largest weight of a lagging base",
        predicate=lambda spec, target: not (spec.key.dtype.is_fp8 and spec.tile.skips_rescale),
        message=lambda spec, target: Problem(
            f"skips_rescale with {spec.key.dtype.value}",
            "skips_rescale with fp16 and bf16",
            "Set skips_rescale to False.",
        ),
        arch=Arch.SM90,
    ),
    Rule(
        id="cluster-size",
        summary="a cluster has one or two CTAs",
        predicate=lambda spec, target: spec.tile.cluster_size in CLUSTER_SIZES,
        message=lambda spec, target: Problem(
            f"cluster_size {spec.tile.cluster_size}", "1 or 2", "Pass one of these for cluster_size."
        ),
        arch=Arch.SM90,
    ),
    Rule(
        id="cluster-multicast",
        summary="CTAs of a cluster read the same key blocks at the same time: a full mask, tiles in turn, 16 bits",
        predicate=_multicast_is_legal,
        message=lambda spec, target: Problem(
            f"cluster_size 2 with {spec.key.dtype.value}, mask {spec.key.mask.value}, "
            f"scheduler {spec.tile.scheduler.value}",
            "cluster_size 2 with fp16 or bf16, mask full and scheduler single or static",
            "Set cluster_size to 1.",
        ),
        arch=Arch.SM90,
        needs=("cluster-size",),
    ),
    Rule(
        id="exp2-share",
        summary="the share of exp2 on the FMA pipes is counted in eighths",
        predicate=lambda spec, target: 0 <= spec.tile.exp2_fma_eighths <= 8,
        message=lambda spec, target: Problem(
            f"exp2_fma_eighths {spec.tile.exp2_fma_eighths}", "0 to 8", "Pass an exp2_fma_eighths in this range."
        ),
        arch=Arch.SM90,
    ),
)
