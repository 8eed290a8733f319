# SPDX-License-Identifier: Apache-2.0
"""Bits do not depend on timing: warps interleaved at random, cp.async landing at random, any number of host threads."""

from __future__ import annotations

import pytest
import torch
from attnsmith.codegen.spec import KernelSpec, Mask

from tests.sim.fwd_kernel import DTYPES, SPECS, Ptx, assert_close_to_reference, normal, ptx_of, spec_named

NUM_SCHEDULES = 20
KERNELS = [
    "fwd_sm80_bf16_hdim32_causal_64x128_w4_s1",
    "fwd_sm80_bf16_hdim64_full_128x128_w4_s1",
    "fwd_sm80_fp16_hdim64_causal_128x64_w4_s2",
    "fwd_sm80_bf16_hdim64_full_128x64_w4_s2",
    "fwd_sm80_fp16_hdim96_full_64x64_w4_s2",
    "fwd_sm80_bf16_hdim96_causal_64x64_w4_s2",
    "fwd_sm80_fp16_hdim128_full_128x64_w4_s1",
    "fwd_sm80_bf16_hdim128_causal_128x128_w8_s1",
    "fwd_sm80_bf16_hdim128_full_64x64_w4_s2",
    "fwd_sm80_fp16_hdim192_causal_128x64_w8_s1",
    "fwd_sm80_bf16_hdim256_full_128x64_w8_s1",
]
INPUTS = ["ordinary", "negative-scale", "huge-row", "nan-in-v"]
"""The last two have tiles done again, which adds barriers."""


def run_all(kernel: Ptx, inputs: str) -> None:
    spec, dtype = kernel.spec, DTYPES[kernel.spec.key.dtype.value]
    causal, d = spec.key.mask is Mask.CAUSAL, spec.key.head_dim
    seqlen_q, seqlen_k = spec.tile.block_m + 3, 3 * spec.tile.block_n + 5
    q = normal(1, seqlen_q, 2, d, dtype=dtype, seed=d)
    k, v = (normal(1, seqlen_k, 1, d, dtype=dtype, seed=d + i) for i in (1, 2))
    scale = -0.2 if inputs == "negative-scale" else 0.2
    if inputs == "huge-row":
        q[:, 9], q[:, 9, :, 3], k[..., 3] = 0, 2.0**12, 2.0**10
    if inputs == "nan-in-v":
        v[:, seqlen_k - 20, 0, 5] = float("nan")
    out, lse, _ = kernel.run(q, k, v, softmax_scale=scale)
    if inputs in ("ordinary", "negative-scale"):
        assert_close_to_reference(q, k, v, (out, lse), causal=causal, softmax_scale=scale)
    for seed in range(NUM_SCHEDULES):
        options = {"schedule": "random", "async_mode": "random", "seed": seed, "num_threads": 1 + seed % 2}
        found, found_lse, _ = kernel.run(q, k, v, softmax_scale=scale, **options)
        same = torch.equal(found.view(torch.int16), out.view(torch.int16))
        assert same and torch.equal(found_lse.view(torch.int32), lse.view(torch.int32)), f"{inputs}, seed {seed}"


@pytest.mark.parametrize("name", KERNELS)
def test_twenty_random_schedules_give_the_same_bits(name: str) -> None:
    run_all(ptx_of(spec_named(name)), "ordinary")


@pytest.mark.parametrize("inputs", INPUTS[1:])
@pytest.mark.parametrize("name", [KERNELS[0], KERNELS[2], KERNELS[4]])
def test_rare_paths_give_the_same_bits_too(name: str, inputs: str) -> None:
    run_all(ptx_of(spec_named(name)), inputs)


def first_of_each_shape() -> list[KernelSpec]:
    """One kernel per head dim, mask and number of stages."""
    found = {(s.key.head_dim, s.key.mask, s.tile.num_stages): s for s in reversed(SPECS)}
    return list(found.values())


@pytest.mark.parametrize("spec", first_of_each_shape(), ids=lambda spec: spec.name)
def test_a_random_schedule_of_every_shape(spec: KernelSpec) -> None:
    q = normal(1, 70, 2, spec.key.head_dim, dtype=DTYPES[spec.key.dtype.value], seed=1)
    k, v = (normal(1, 150, 1, spec.key.head_dim, dtype=q.dtype, seed=seed) for seed in (2, 3))
    out, lse, _ = ptx_of(spec).run(q, k, v)
    for schedule, async_mode in (("random", "late"), ("round_robin", "random")):
        found, found_lse, _ = ptx_of(spec).run(q, k, v, schedule=schedule, async_mode=async_mode, seed=99)
        assert torch.equal(found, out) and torch.equal(found_lse, lse), (schedule, async_mode)
