# SPDX-License-Identifier: Apache-2.0
"""Which SM90 kernels are mutated, and the problems that must expose each mutation. What is edited is
mutations_sm90.py's."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import torch
from attnsmith import reference
from attnsmith.codegen.spec import KernelSpec, Mask, Scheduler
from torch import Tensor

from tests.sim.fwd_sm90_kernel import ROWS, Sm90Ptx, ptx_of, spec_like
from tests.sim.mutations import Case


def _small(prefix: str, *, block_m: int = 128, **changes: Any) -> KernelSpec:
    tile = {"block_m": block_m, "block_n": 64, "num_warps": block_m // 16, "num_stages": 2, "exp2_fma_eighths": 0}
    fields = {**tile, "is_ping_pong": block_m > 64, "cluster_size": 1, "p_in_smem": False, **changes}
    return spec_like(f"fwd_sm90_{prefix}", **fields)


STATIC, DYNAMIC, SINGLE = Scheduler.STATIC, Scheduler.DYNAMIC, Scheduler.SINGLE
KERNELS: tuple[KernelSpec, ...] = (
    _small("bf16_hdim64_full", scheduler=STATIC),
    _small("fp16_hdim64_causal", scheduler=DYNAMIC, block_m=192),
    _small("e4m3_bf16_hdim64_full", scheduler=STATIC),
    _small("e5m2_bf16_hdim64_causal", scheduler=DYNAMIC, block_n=128, v_is_col_major=True),
    _small("bf16_hdim96_full", scheduler=STATIC, p_in_smem=True),
    _small("bf16_hdim64_causal", scheduler=DYNAMIC, packs_gqa=True),
    _small("bf16_hdim64_full", scheduler=STATIC, cluster_size=2),
    _small("fp16_hdim96_causal", scheduler=SINGLE, block_m=64, num_stages=1, overlaps_softmax=False),
)
"""Ping-pong of two and three warpgroups, one without; static, dynamic and single schedulers; both layouts of FP8's V; P
through shared memory; packed heads; a cluster; two buffers and one; both loop forms; all swizzle modes but 32 bytes."""

PROBLEMS = """Problems: several tiles on one CTA (the last ones hold one row and one key), negative softmax_scale and a
few keys likewise; tiles on two CTAs in random order, with copies and wgmmas that take effect at random points. Where
the kernel has them: many tiles (dynamic scheduler), one tile per CTA (cluster), key blocks that the mask's boundary
crosses, NaN in V (rows are repaired). Elsewhere everything asynchronous takes effect as late as it may.
`other out` (FP8): not the unchanged kernel's values, though within the tolerance.

Not in the list: `bar.warp.sync`, which means nothing to a simulator that executes a warp's lanes in lockstep, and hints
(prefetch, L2 cache policy)."""


@dataclass(frozen=True)
class Problem:
    """Inputs whose launch exercises one path of the kernel."""

    name: str
    q: Tensor
    k: Tensor
    v: Tensor
    causal: bool
    scale: float = 0.3
    options: dict[str, Any] = field(default_factory=dict)
    """Of the launch."""


def problems(spec: KernelSpec) -> list[Problem]:
    """The last query tile holds one row, the last key block one key. One CTA (or cluster) does several tiles, so that
    rings wrap; two do, in random order and with copies that land at random."""
    causal, block_m, block_n = spec.key.mask is Mask.CAUSAL, spec.tile.block_m, spec.tile.block_n
    heads_k, group = (2, 5) if spec.key.packs_gqa else (1, 2)  # five heads leave 4 rows of 64 unused
    rows = block_m // ROWS * (ROWS // group) if spec.key.packs_gqa else block_m
    few = {"num_ctas": spec.tile.cluster_size}

    def make(
        name: str,
        seqlen_q: int,
        seqlen_k: int,
        *,
        scale: float = 0.3,
        heads: int = heads_k,
        group: int = group,
        **options: Any,
    ) -> Problem:
        q = _normal(spec, 1, (1, seqlen_q, heads * group, spec.key.head_dim))
        k = _normal(spec, 2, (1, seqlen_k, heads, spec.key.head_dim))
        v = _normal(spec, 3, (1, seqlen_k, heads, spec.key.head_dim_v))
        if spec.key.v_is_col_major:
            columns = torch.zeros(1, heads, spec.key.head_dim_v, -(-seqlen_k // 16) * 16, dtype=v.dtype)
            v = columns.copy_(_padded(v.permute(0, 2, 3, 1), columns.shape[-1]))[..., :seqlen_k].permute(0, 3, 1, 2)
        return Problem(name, q, k, v, causal, scale, options)

    first = rows + 40 if causal else 0  # no whole number of key blocks before the diagonal: two blocks are masked
    random = {"schedule": "random", "async_mode": "random"}
    found = [
        make("one CTA", rows + 1, first + 4 * block_n + 1, **few),
        make("negative scale", rows + 1, block_n + 1, scale=-0.3, **few, **random),
        make("few keys", rows - 7, 9, **few),
        make("two CTAs", 2 * rows + 1, first + 3 * block_n + 1, **random, num_ctas=2 * spec.tile.cluster_size, seed=1),
    ]
    if spec.tile.cluster_size > 1:
        found.append(make("one tile per CTA", rows, 4 * block_n + 1, group=1, **few))
    if spec.tile.scheduler is Scheduler.DYNAMIC:
        found.append(make("many tiles", 1, 1, heads=28 if spec.key.packs_gqa else 14, **few))
    if causal:
        pairs = block_m // 2 if spec.key.packs_gqa else block_m
        found.append(make("boundary in a block", 2 * pairs, 2 * pairs + 5 * block_n // 2, group=2, **few))
        found.append(make("nearly a whole block", pairs, pairs + block_n - 2, group=2, **few))
        nan = make("NaN in V", rows + 1, rows + 1 + block_n, **few)
        nan.v[0, block_n + 9, 0, 3] = nan.v[0, block_n + 9, 0, -3] = float("nan")  # rows 0 to 8 do not see it
        found.append(nan)
    return found


def _normal(spec: KernelSpec, seed: int, shape: tuple[int, ...]) -> Tensor:
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype[spec.key.dtype.value])


def _padded(x: Tensor, columns: int) -> Tensor:
    return torch.nn.functional.pad(x.float(), (0, columns - x.shape[-1])).to(x.dtype)


def case_of(spec: KernelSpec, problem: Problem) -> Case:
    """The launch of a problem, with what is right for it."""
    q, k, v = problem.q, problem.k, problem.v
    options: dict[str, Any] = {"softmax_scale": problem.scale, "causal": problem.causal}
    ref, ref_lse = reference.attention(q, k, v, **options)
    bound = _bound(spec, problem, ref)

    def run(text: str) -> tuple[Tensor, Tensor]:
        launch = {"step_budget": 2_000_000, "num_threads": 1, "collect_stats": False, **problem.options}
        out, lse, _ = Sm90Ptx(spec, text).run(q, k, v, softmax_scale=problem.scale, **launch)
        return out, lse

    unchanged = functools.cache(lambda: run(ptx_of(spec).text)[0])

    def wrong(out: Tensor, lse: Tensor) -> str | None:
        finite = torch.isfinite(ref)
        same = torch.equal(out[~finite].double().isnan(), ref[~finite].isnan())
        if not same or not ((out.double() - ref)[finite].abs() <= bound).all():
            return "wrong out"
        if spec.key.dtype.is_fp8 and not torch.equal(out[finite], unchanged()[finite]):
            return "other out"
        return None if reference.compare_lse(lse, ref_lse).ok else "wrong lse"

    return Case(problem.name, run, wrong)


def _bound(spec: KernelSpec, problem: Problem, ref: Tensor) -> float:
    """FP8: the tolerance rule's. 16 bits: what rounding P and O explains."""
    if spec.key.dtype.is_fp8:
        options: dict[str, Any] = {"softmax_scale": problem.scale, "causal": problem.causal}
        same_dtype = reference.same_dtype_attention(problem.q, problem.k, problem.v, **options)
        return 2 * float((same_dtype.double() - ref)[torch.isfinite(ref)].abs().max()) + 1e-3
    eps = {"fp16": torch.finfo(torch.float16).eps, "bf16": torch.finfo(torch.bfloat16).eps}[spec.key.dtype.value]
    return eps * float(problem.v[torch.isfinite(problem.v)].abs().max()) + 1e-5


def cases_of(spec: KernelSpec) -> list[Case]:
    return [case_of(spec, problem) for problem in problems(spec)]
