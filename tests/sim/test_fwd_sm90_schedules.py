# SPDX-License-Identifier: Apache-2.0
"""Bits of an SM90 kernel do not depend on timing: warps interleaved at random, asynchronous work landing at random, any
number of CTAs and of host threads. Every run looks for races and missing proxy fences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attnsmith.codegen.spec import KernelSpec, Scheduler
from attnsmith.tools.check import CheckCase, run_check
from torch import Tensor

from tests.sim.fwd_sm90_kernel import MANY_CTAS, SPECS, case_of, inputs_of, op_of, ptx_of, spec_like

NUM_SCHEDULES = 20


def small_case(spec: KernelSpec, **options: Any) -> CheckCase:
    """Three or more tiles for two CTAs, and more key blocks than the rings have buffers."""
    tile = spec.tile
    seqlen_q = tile.block_m + 7
    seqlen_k = tile.num_stages * tile.block_n + 5
    return case_of(spec, seqlen_q, seqlen_k, **{"nheads_k": 1, "group": 2, **options})


def bits(tensors: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return tensors[0].view(torch.int16), tensors[1].view(torch.int32)


def run_all(spec: KernelSpec, case: CheckCase, num_schedules: int = NUM_SCHEDULES) -> None:
    (q, k, v), descales = inputs_of(case)
    kernel, num_ctas = ptx_of(spec), 2 * spec.tile.cluster_size
    result = run_check(case, op_of(spec, num_ctas=num_ctas))
    assert result.ok, f"{case.label}: {dict(result.tensors)}"
    wanted = bits((result.outputs["out"], result.outputs["lse"]))
    for seed in range(num_schedules):
        options: dict[str, Any] = {"schedule": "random", "async_mode": "random", "seed": seed}
        out, lse, _ = kernel.run(
            q, k, v, descales=descales, num_ctas=num_ctas, num_threads=1 + seed % 2, collect_stats=False, **options
        )
        found = bits((out, lse))
        assert all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True)), f"{case.label}, seed {seed}"


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_twenty_random_schedules_give_the_same_bits(spec: KernelSpec) -> None:
    run_all(spec, small_case(spec))


VARIANTS = [
    spec_like("fwd_sm90_bf16_hdim128_full_128", cluster_size=2, block_n=128),
    spec_like("fwd_sm90_fp16_hdim64_full_192", cluster_size=2, scheduler=Scheduler.SINGLE),
    spec_like("fwd_sm90_e4m3_bf16_hdim128_causal_vcol"),
    spec_like("fwd_sm90_bf16_hdim64_causal_192", num_stages=3, block_n=96),
    spec_like("fwd_sm90_bf16_hdim128_full_64", num_stages=1),
    spec_like("fwd_sm90_bf16_hdim128_causal_128", overlaps_softmax=False),
    spec_like("fwd_sm90_bf16_hdim128_full_128", is_ping_pong=False, scheduler=Scheduler.DYNAMIC, block_n=128),
    spec_like("fwd_sm90_bf16_hdim64_causal_192", p_in_smem=True, block_n=64),
]


@pytest.mark.parametrize("spec", VARIANTS, ids=lambda spec: spec.name)
def test_variant(spec: KernelSpec) -> None:
    run_all(spec, small_case(spec), 8)


@pytest.mark.parametrize("group", [2, 7])
def test_packed(group: int) -> None:
    """Rows of a slab that no (query, head) uses are there with 7: what they hold must not matter."""
    spec = spec_like("fwd_sm90_fp16_hdim64_causal_packgqa")
    run_all(spec, small_case(spec, group=group), 8)


PERSISTENT = [spec for spec in SPECS if spec.tile.scheduler is not Scheduler.SINGLE]


@pytest.mark.parametrize("spec", PERSISTENT, ids=lambda spec: spec.name)
def test_any_number_of_ctas_gives_the_same_bits(spec: KernelSpec) -> None:
    case = small_case(spec, batch=2)
    (q, k, v), descales = inputs_of(case)
    runs = [ptx_of(spec).run(q, k, v, descales=descales, num_ctas=n)[:2] for n in (1, 3, MANY_CTAS)]
    assert all(torch.equal(x, y) for run in runs[1:] for x, y in zip(bits(run), bits(runs[0]), strict=True))
