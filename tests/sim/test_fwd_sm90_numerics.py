# SPDX-License-Identifier: Apache-2.0
"""Extreme numbers on the SM90 forward kernels, 16-bit: lazy and eager rescaling, the exact form of huge scores, exp2 on
the FMA pipes, scales, and bitwise equal repeats.

Kernels are launched raw. Not responsible for FP8 (test_fwd_sm90_fp8.py) or NaN (test_fwd_sm90_nonfinite.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from attnsmith import reference
from attnsmith.codegen.compile.nvrtc import compile_source
from attnsmith.codegen.spec import KernelSpec
from attnsmith.tools import ptxsim
from torch import Tensor

from tests.sim.extreme_sm90 import BLOCK_N, INF, NAN, PACKED, RESCALE, SPECS, attend, check, dtype_of, options_of
from tests.sim.fwd_kernel import assert_close_to_reference, assert_within_rounding, normal
from tests.sim.fwd_sm90_kernel import Sm90Ptx, one_torch_thread, ptx_of, spec_like
from tests.sim.test_fwd_sm80_numerics import PROFILES, VIEWS, random_qkv, with_scores


@pytest.fixture(autouse=True)
def few_threads() -> Iterator[None]:
    with one_torch_thread():
        yield


@pytest.fixture(params=SPECS)
def kernel(request: pytest.FixtureRequest) -> Sm90Ptx:
    return ptx_of(SPECS[request.param])


# exp2 on the FMA pipes

EXP2_SOURCE = """
#include "attnsmith/sm90/softmax.hpp"
extern "C" __global__ void exp2_points(float const* x, float* y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    y[i] = attnsmith::sm90::exp2_fma(x[i]);
  }
}
"""


def exp2_fma(x: Tensor) -> Tensor:
    """attnsmith::sm90::exp2_fma of every element, as kernels are compiled: subnormals flushed."""
    kernel = compile_source(EXP2_SOURCE, "exp2_points", target="sm_90a", extra_flags=["--ftz=true"])
    y = torch.full_like(x, NAN)
    with ptxsim.load(kernel.ptx) as module:
        module.launch("exp2_points", 64, 256, [x, y, x.numel()], device="h100")
    return y


def exp2_points() -> Tensor:
    """A million arguments: the whole range, where most weights are, and both sides of every integer and half."""
    generator = torch.Generator().manual_seed(1)
    spread = torch.rand(1 << 19, generator=generator) * (127.49 + 126) - 126
    common = 9 - torch.rand(1 << 18, generator=generator) * 25
    small = torch.randn(1 << 17, generator=generator) * 10.0 ** -torch.randint(0, 30, (1 << 17,), generator=generator)
    steps = torch.arange(-252, 256, dtype=torch.float32) / 2
    around = torch.stack([steps, steps.nextafter(torch.tensor(INF)), steps.nextafter(torch.tensor(-INF))]).flatten()
    return torch.cat([spread, common, small, around]).clamp(-126, 127.49)


def test_exp2_fma_is_as_exact_as_mufu() -> None:
    x = torch.cat([exp2_points(), torch.tensor([-INF, NAN, -0.0, 0.0, -127.0, -127.5, -128.0, -1e4, -3e38])])
    y = exp2_fma(x)
    special, y, x = y[-9:], y[:-9], x[:-9]
    truth = x.double().exp2()
    relative = ((y.double() - truth) / truth).abs()
    is_normal = truth >= torch.finfo(torch.float32).tiny * (1 + 2.0**-22)  # the rest may be flushed to 0
    worst = int(relative.where(is_normal, 0.0).argmax())
    assert relative[worst] <= 2.0**-22, f"exp2({x[worst]}) = {y[worst]}"
    assert ((y == 0) | (relative <= 2.0**-22)).all()
    assert (y[x <= 9] <= 512 * (1 + 2.0**-22)).all() and (y >= 0).all()
    assert special[1].isnan() and torch.equal(special[[0, 4, 5, 6, 7, 8]], torch.zeros(6))
    assert torch.equal(special[[2, 3]], torch.ones(2))


# Rows whose maximum moves: key blocks are visited from the last to the first


@pytest.mark.parametrize("seqlen_k", [512, 500])
@pytest.mark.parametrize("profile", PROFILES)
def test_moving_maximum(kernel: Sm90Ptx, profile: str, seqlen_k: int) -> None:
    """Lazily rescaled: by less than 8 in total never, by more each time. Every block keeps its share either way."""
    levels = torch.tensor([PROFILES[profile](j // BLOCK_N) for j in range(seqlen_k)])
    jitter = normal(seqlen_k, dtype=torch.float32, seed=11) * 0.25
    q, k, v = with_scores(kernel.spec.name, torch.ones(128), levels + jitter)
    check(kernel, q, k, v, math.log(2))


@pytest.mark.parametrize("growth", [1.0, 3.0, 7.9, 8.1])
def test_a_slow_growth_over_many_blocks(kernel: Sm90Ptx, growth: float) -> None:
    """The base lags behind by up to 8 for several blocks, then catches up, many times over."""
    levels = torch.tensor([-growth * (j // BLOCK_N) for j in range(20 * BLOCK_N)])
    q, k, v = with_scores(kernel.spec.name, torch.ones(64), levels)
    check(kernel, q, k, v, math.log(2))


@pytest.mark.parametrize("low", [-4.0, -20.0, -300.0])
def test_an_alternating_maximum(kernel: Sm90Ptx, low: float) -> None:
    levels = torch.tensor([low * (j // BLOCK_N % 2) - 0.5 * (j // BLOCK_N) for j in range(640)])
    q, k, v = with_scores(kernel.spec.name, torch.ones(128), levels)
    check(kernel, q, k, v, math.log(2))


def test_rows_of_one_tile_move_differently(kernel: Sm90Ptx) -> None:
    """One warp's rows grow, stay and fall at once; rescaling is decided for the warp and applied per row."""
    slopes = torch.linspace(-2, 2, 128)[torch.randperm(128, generator=torch.Generator().manual_seed(5))]
    levels = torch.tensor([8.0 * (j // BLOCK_N) for j in range(500)])
    q, k, v = with_scores(kernel.spec.name, slopes, levels)
    check(kernel, q, k, v, math.log(2))


@pytest.mark.parametrize("base", [-1000.0, 0.0, 1000.0])
def test_lse_is_exact_however_the_maximum_came_about(kernel: Sm90Ptx, base: float) -> None:
    """Keys of one block have one score: lse in closed form, absolutely, whatever base the sum was taken with."""
    levels = torch.tensor([base - 7.0 * (j // BLOCK_N) for j in range(512)])
    q, k, v = with_scores(kernel.spec.name, torch.ones(64), levels)
    _, lse = attend(kernel, q, k, v, math.log(2))
    _, expected = reference.attention(q, k, v, softmax_scale=math.log(2), **options_of(kernel))
    assert (lse.double() - expected).abs().max() <= 2.0**-23 * max(4.0, 2 * abs(base))


def test_very_low_scores_are_not_lost(kernel: Sm90Ptx) -> None:
    """All scores near -1e4 (log2): nothing underflows, since weights are relative to the row's maximum."""
    q, k, v = random_qkv(kernel.spec.name, 128, 333)
    q[..., 5], k[..., 5] = 256.0, -256.0
    check(kernel, q, k, v)


# The exact form: rows whose base exceeds 2^24 (log2)


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["positive", "negative"])
@pytest.mark.parametrize("seqlen", [1, 129])
def test_very_large_finite_values(kernel: Sm90Ptx, seqlen: int, sign: float) -> None:
    value = 133120.0 if dtype_of(kernel) is torch.bfloat16 else 60000.0
    x = torch.full((1, seqlen, 2, 64), value, dtype=dtype_of(kernel))
    out, lse = attend(kernel, x, x[:, :, :1] * sign, x[:, :, :1])
    assert (out == x).all()
    expected = torch.tensor(sign * 64 * float(x[0, 0, 0, 0]) ** 2 / 8, dtype=torch.float64)
    assert lse.double().allclose(expected, rtol=1e-3)


LARGE = {torch.bfloat16: [2.0**10, 2.0**13, 2.0**17], torch.float16: [2.0**10, 2.0**13, 2.0**15]}


@pytest.mark.parametrize("seqlen_k", [65, 257, 300])
@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["positive", "negative"])
def test_equal_huge_scores(kernel: Sm90Ptx, seqlen_k: int, sign: float) -> None:
    """All scores of a row are equal, so out is the mean of the seen values; their base has 40 significant bits."""
    for large in LARGE[dtype_of(kernel)]:
        for step in (0, 40, 112):
            rows = torch.full((128,), large * (1 + step / 128))
            keys = torch.full((seqlen_k,), sign * large * (1 + (step // 2 + 1) / 128))
            check(kernel, *with_scores(kernel.spec.name, rows, keys))


def fine_scores(kernel: Sm90Ptx, rows: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """with_scores plus 2^-10 of the row's factor times a number below 5 of each key. For a row of 2^14 these are steps
    of 16, the smallest that fp32 has above 2^27; with softmax_scale ln(2) / 8 a factor of 4 between weights."""
    q, k, v = with_scores(kernel.spec.name, rows, keys)
    q[..., 6] = q[..., 5] * 2.0**-10
    k[0, :, 0, 6] = (torch.arange(len(keys)) * 7 % 5).to(k.dtype)
    return q, k, v


WHERE = {
    "first-block": lambda block: 1.0,
    "masked-block": lambda block: 1.0 if block == 6 else 2.0**-8,
    "later-block": lambda block: 1.0 if block <= 2 else 2.0**-8,
    "last-block": lambda block: 1.0 if block == 0 else 2.0**-8,
    "grows-inside": lambda block: 1.0 + 2.0**-5 * (7 - block),
    "one-block-of-many": lambda block: 1.0 if block == 3 else 0.0,
}
"""Key block, of 8 -> its share of the largest score."""


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["positive", "negative"])
@pytest.mark.parametrize("where", WHERE)
def test_rows_enter_the_exact_form(kernel: Sm90Ptx, where: str, sign: float) -> None:
    """Every 3rd row's scores reach 1.5 * 2^27 somewhere, the others' 2^4: warps hold both kinds."""
    rows = torch.tensor([2.0**14 if i % 3 == 0 else 2.0**-9 for i in range(128)])
    keys = sign * torch.tensor([1.5 * 2.0**13 * WHERE[where](j // BLOCK_N) for j in range(500)])
    check(kernel, *fine_scores(kernel, rows, keys), softmax_scale=math.log(2) / 8)


@pytest.mark.parametrize("row", [0, 77, 127])
@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["positive", "negative"])
def test_one_huge_row_among_ordinary_ones(kernel: Sm90Ptx, row: int, sign: float) -> None:
    q, k, v = random_qkv(kernel.spec.name, 128, 333)
    q[:, row] = 0
    q[:, row, :, 5] = 2.0**14
    k[..., 5] = sign * 2.0**10
    k[:, 100:, :, 5] = sign * (2.0**10 + 8)
    check(kernel, q, k, v)


@pytest.mark.parametrize("index", [255, 300, 3], ids=["first-visited", "masked", "last-visited"])
def test_one_huge_key(kernel: Sm90Ptx, index: int) -> None:
    """One key takes all the weight of every row that sees it, whichever block it is in."""
    q, k, v = random_qkv(kernel.spec.name, 128, 333)
    q[..., 5] = 2.0**10
    k[..., 5] = 0
    k[:, index, :, 5] = 2.0**10
    check(kernel, q, k, v, 2.0**7)


def test_ordinary_rows_have_the_same_bits_beside_huge_ones() -> None:
    """Without lazy rescaling a row's base depends on that row alone, so its neighbours' form may not show."""
    kernel = ptx_of(RESCALE)
    q, k, v = random_qkv(kernel.spec.name, 128, 333)
    q[..., 5] = 1.0
    wanted, wanted_lse = attend(kernel, q, k, v)
    others = [i for i in range(128) if i % 5]
    q[:, others, :, 5] = 2.0**-13
    q[:, ::5, :, 5] = 2.0**15
    k[..., 5] *= 2.0**13
    scaled, scaled_lse = attend(kernel, q, k, v)
    assert float(scaled_lse[:, :, ::5].abs().min()) > 2.0**24
    assert torch.equal(scaled[:, others], wanted[:, others])
    assert torch.equal(scaled_lse[:, :, others], wanted_lse[:, :, others])


# Scales


@pytest.mark.parametrize("scale", [-0.125, -3.0, 0.0, 1e-6, 1e-30, 30.0, -1e4, 1e20, 1e36])
@pytest.mark.parametrize("seqlen_k", [64, 200])
def test_softmax_scale(kernel: Sm90Ptx, seqlen_k: int, scale: float) -> None:
    q, k, v = random_qkv(kernel.spec.name, 128, seqlen_k)
    result = check(kernel, q, k, v, scale)
    if abs(scale) < 1:
        assert_close_to_reference(q, k, v, result, softmax_scale=scale, **options_of(kernel))


@pytest.mark.parametrize("scale", [3e37, 2e38, -2e38])
@pytest.mark.parametrize("seqlen_k", [1, 70])
def test_scaled_scores_beyond_fp32(kernel: Sm90Ptx, seqlen_k: int, scale: float) -> None:
    """The largest key has all the weight, also where every scaled score of the row is below -3.4e38."""
    q, k, v = random_qkv(kernel.spec.name, 64, seqlen_k)
    q, k = (q.abs(), k.abs()) if scale < 0 else (q, k)
    out, _ = attend(kernel, q, k, v, scale)
    ref, _ = reference.attention(q, k, v, softmax_scale=scale, **options_of(kernel))
    assert (out.double() - ref).abs().max() <= torch.finfo(q.dtype).eps * float(v.abs().max())


def test_a_negative_scale_is_a_flipped_q(kernel: Sm90Ptx) -> None:
    q, k, v = random_qkv(kernel.spec.name, 130, 333)
    out, lse = attend(kernel, q, k, v, -0.3)
    flipped, flipped_lse = attend(kernel, -q, k, v, 0.3)
    assert torch.equal(out, flipped) and torch.equal(lse, flipped_lse)


# Memory and order


@pytest.mark.parametrize("view", [name for name in VIEWS if name != "expanded-batch"])
def test_strided_inputs_give_the_same_bits(kernel: Sm90Ptx, view: str) -> None:
    q = normal(2, 130, 4, 64, dtype=dtype_of(kernel), seed=1)
    k, v = (normal(2, 203, 2, 64, dtype=dtype_of(kernel), seed=seed) for seed in (2, 3))
    views = [VIEWS[view](x) for x in (q, k, v)]
    wanted, wanted_lse = attend(kernel, *(x.contiguous() for x in views))
    out, lse = attend(kernel, *views)
    assert torch.equal(out, wanted) and torch.equal(lse, wanted_lse)


@pytest.mark.parametrize("group", [3, 5, 6, 7, 64])
def test_packed_groups_that_do_not_fill_a_tile(group: int) -> None:
    """Rows that no query head uses hold what a tile before left there: no vote of a warp may see it."""
    kernel = ptx_of(PACKED)
    q = normal(1, 70, group, 64, dtype=torch.bfloat16, seed=1)
    k, v = (normal(1, 130, 1, 64, dtype=torch.bfloat16, seed=seed) for seed in (2, 3))
    q[:, ::4] *= 1000
    wanted, wanted_lse, _ = kernel.run(q, k, v)
    assert_within_rounding(q, k, v, (wanted, wanted_lse), causal=True)
    for num_ctas in (1, 3):
        out, lse, _ = kernel.run(q, k, v, num_ctas=num_ctas)
        assert torch.equal(out, wanted) and torch.equal(lse, wanted_lse), f"{num_ctas} CTAs"


DYNAMIC = spec_like("fwd_sm90_bf16_hdim64_causal_192x128", exp2_fma_eighths=2)
STATIC = spec_like("fwd_sm90_bf16_hdim64_full_192x128")


@pytest.mark.parametrize("spec", [DYNAMIC, STATIC, PACKED], ids=["dynamic", "static", "packed"])
def test_repeats_give_the_same_bits_whoever_computes_a_tile(spec: KernelSpec) -> None:
    """Lazy rescaling may not depend on what a CTA computed before, nor on the order of its tiles."""
    kernel = ptx_of(spec)
    q = normal(2, 500, 4, 64, dtype=torch.bfloat16, seed=1)
    k, v = (normal(2, 400, 2, 64, dtype=torch.bfloat16, seed=seed) for seed in (2, 3))
    q[:, 100:120] *= 30
    wanted, wanted_lse, _ = kernel.run(q, k, v)
    assert_within_rounding(q, k, v, (wanted, wanted_lse), **options_of(kernel))
    for num_ctas, seed in ((3, 0), (3, 1), (2, 2), (7, 3), (1, 4)):
        out, lse, _ = kernel.run(q, k, v, num_ctas=num_ctas, schedule="random", seed=seed)
        assert torch.equal(out, wanted) and torch.equal(lse, wanted_lse), f"{num_ctas} CTAs, seed {seed}"
