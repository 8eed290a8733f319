# SPDX-License-Identifier: Apache-2.0
"""Extreme numbers on the SM90 forward kernels, 16-bit: lazy and eager rescaling, the exact form of huge scores, exp2 on
the FMA pipes, scales, infinities, NaN and where it may go, and bitwise equal repeats.

Kernels are launched raw, with small key blocks, so that few keys make many. Not responsible for FP8
(test_fwd_sm90_fp8.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import attnsmith
import pytest
import torch
from attnsmith import reference
from attnsmith.codegen.compile.nvrtc import compile_source
from attnsmith.codegen.spec import KernelSpec, Mask, Scheduler
from attnsmith.tools import ptxsim
from attnsmith.tools.check import torch_dtype
from torch import Tensor

from tests.sim.fwd_kernel import DTYPES, assert_close_to_reference, assert_within_rounding, normal
from tests.sim.fwd_sm90_kernel import Sm90Ptx, one_torch_thread, ptx_of, spec_like
from tests.sim.test_fwd_sm80_numerics import POISON, PROFILES, VIEWS, random_qkv, with_scores

BLOCK_N = 64
SKIP = spec_like("fwd_sm90_bf16_hdim64_full_64x128", block_n=BLOCK_N)
RESCALE = spec_like("fwd_sm90_fp16_hdim64_causal_64x128", block_n=BLOCK_N, skips_rescale=False, exp2_fma_eighths=1)
SERIAL = spec_like("fwd_sm90_bf16_hdim64_causal_64x128", block_n=BLOCK_N, overlaps_softmax=False, exp2_fma_eighths=2)
P_IN_SMEM = spec_like(
    "fwd_sm90_fp16_hdim64_full_64x128",
    block_m=128,
    block_n=BLOCK_N,
    num_warps=8,
    is_ping_pong=True,
    p_in_smem=True,
    exp2_fma_eighths=4,
)
PACKED = spec_like(
    "fwd_sm90_bf16_hdim64_causal_64x128",
    block_n=BLOCK_N,
    packs_gqa=True,
    scheduler=Scheduler.DYNAMIC,
    exp2_fma_eighths=8,
)
SPECS = {"skip": SKIP, "rescale-fma1": RESCALE, "serial-fma2": SERIAL, "psmem-fma4": P_IN_SMEM, "packed-fma8": PACKED}
NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def few_threads() -> Iterator[None]:
    with one_torch_thread():
        yield


@pytest.fixture(params=SPECS)
def kernel(request: pytest.FixtureRequest) -> Sm90Ptx:
    return ptx_of(SPECS[request.param])


@pytest.fixture(params=[name for name, spec in SPECS.items() if spec.key.mask is Mask.CAUSAL])
def causal_kernel(request: pytest.FixtureRequest) -> Sm90Ptx:
    return ptx_of(SPECS[request.param])


def dtype_of(kernel: Sm90Ptx) -> torch.dtype:
    return DTYPES[kernel.spec.key.dtype.value]


def options_of(kernel: Sm90Ptx) -> dict[str, bool]:
    return {"causal": kernel.spec.key.mask is Mask.CAUSAL}


def attend(
    kernel: Sm90Ptx, q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None
) -> tuple[Tensor, Tensor]:
    out, lse, _ = kernel.run(q, k, v, softmax_scale=softmax_scale, num_ctas=2)
    return out, lse


def check(
    kernel: Sm90Ptx, q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Run; out within rounding of P and O, lse by the rule."""
    result = attend(kernel, q, k, v, softmax_scale)
    assert_within_rounding(q, k, v, result, softmax_scale=softmax_scale, **options_of(kernel))
    return result


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


def test_scores_that_leave_fp32() -> None:
    """bf16 products beyond fp32 are infinite: +inf makes a row NaN, -inf in all keys makes it empty, as in PyTorch."""
    for spec in (SKIP, SERIAL):
        kernel = ptx_of(spec)
        q, k, v = random_qkv(spec.name, 128, 200)
        q[:, 3] = q[:, 4] = 0
        q[:, 3, :, 5], q[:, 4, :, 5] = 1e30, -1e30
        k[..., 5] = 1e30
        out, lse = attend(kernel, q, k, v)
        assert out[0, 3].isnan().all() and lse[0, :, 3].isnan().all()
        assert (out[0, 4] == 0).all() and (lse[0, :, 4] == -INF).all()
        ordinary = [i for i in range(128) if i not in (3, 4)]
        assert torch.isfinite(out[0, ordinary]).all() and torch.isfinite(lse[0][:, ordinary]).all()
        ref, _ = reference.attention(q[:, 5:], k, v, **options_of(kernel))
        assert (out[:, 5:].double() - ref).abs().max() < 0.03


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


def test_a_scale_of_zero_keeps_nan(kernel: Sm90Ptx) -> None:
    """0 times NaN or infinity is NaN."""
    q, k, v = random_qkv(kernel.spec.name, 100, 200)
    q[:, 5, :, 9], q[:, 60, :, 0] = NAN, INF
    result = attend(kernel, q, k, v, 0.0)
    assert_same_kinds(result, reference.attention(q, k, v, softmax_scale=0.0, **options_of(kernel)))


def test_a_negative_scale_is_a_flipped_q(kernel: Sm90Ptx) -> None:
    q, k, v = random_qkv(kernel.spec.name, 130, 333)
    out, lse = attend(kernel, q, k, v, -0.3)
    flipped, flipped_lse = attend(kernel, -q, k, v, 0.3)
    assert torch.equal(out, flipped) and torch.equal(lse, flipped_lse)


# NaN and infinity


def assert_same_kinds(result: tuple[Tensor, Tensor], ref: tuple[Tensor, Tensor]) -> None:
    """NaN and each infinity exactly where the reference has them; a small error elsewhere."""
    for got, wanted in zip(result, ref, strict=True):
        assert torch.equal(got.isnan(), wanted.isnan())
        assert torch.equal(got.isposinf(), wanted.isposinf()) and torch.equal(got.isneginf(), wanted.isneginf())
        finite = torch.isfinite(wanted)
        assert (got.double() - wanted)[finite].abs().max() < 0.05


@pytest.mark.parametrize("seqlen_k", [256, 300])
@pytest.mark.parametrize("key", [0, 63, 128])
@pytest.mark.parametrize("poison", POISON)
@pytest.mark.parametrize("tensor", ["k", "v"])
def test_poison_in_a_seen_key_reaches_every_row_that_sees_it(
    kernel: Sm90Ptx, tensor: str, poison: str, key: int, seqlen_k: int
) -> None:
    """All 128 rows see the key, also under the causal mask. It stays out of the other key head."""
    q = normal(1, 128, 4, 64, dtype=dtype_of(kernel), seed=1)
    k, v = (normal(1, seqlen_k, 2, 64, dtype=dtype_of(kernel), seed=seed) for seed in (2, 3))
    {"k": k, "v": v}[tensor][:, key, 1, 9] = POISON[poison]
    result = attend(kernel, q, k, v)
    ref = reference.attention(q, k, v, **options_of(kernel))
    assert torch.isfinite(ref[0][:, :, :2]).all()
    assert (tensor, poison) == ("k", "-inf") or not torch.isfinite(ref[0][:, :, 2:]).all()
    assert_same_kinds(result, ref)


def test_a_key_of_nan_makes_every_row_nan(kernel: Sm90Ptx) -> None:
    q, k, v = random_qkv(kernel.spec.name, 130, 130)
    k[:, 0] = NAN
    out, lse = attend(kernel, q, k, v)
    assert out.isnan().all() and lse.isnan().all()


@pytest.mark.parametrize("poison", POISON)
def test_poison_in_a_query_row_stays_in_that_row(kernel: Sm90Ptx, poison: str) -> None:
    q, k, v = random_qkv(kernel.spec.name, 130, 333)
    q[:, 40, :, 9] = POISON[poison]
    out, lse = attend(kernel, q, k, v)
    assert out[:, 40].isnan().all() and lse[:, :, 40].isnan().all()
    others = [i for i in range(130) if i != 40]
    ref, ref_lse = reference.attention(q, k, v, **options_of(kernel))
    assert_same_kinds((out[:, others], lse[:, :, others]), (ref[:, others], ref_lse[:, :, others]))


@pytest.mark.parametrize("seqlen_q,seqlen_k", [(1, 1), (65, 3), (100, 65), (64, 193)])
@pytest.mark.parametrize("poison", POISON)
def test_poison_beyond_the_sequence_is_never_seen(kernel: Sm90Ptx, poison: str, seqlen_q: int, seqlen_k: int) -> None:
    """q, k and v are slices of buffers that hold poison before, between heads and after."""
    plain = random_qkv(kernel.spec.name, seqlen_q, seqlen_k)
    views = []
    for x in plain:
        buffer = torch.full((1, x.shape[1] + 256, x.shape[2] + 2, 80), POISON[poison], dtype=x.dtype)
        views.append(buffer[:, 128 : 128 + x.shape[1], 1:-1, 8:-8].copy_(x))
    wanted, wanted_lse = attend(kernel, *plain)
    assert torch.isfinite(wanted).all()
    out, lse = attend(kernel, *views)
    assert torch.equal(out, wanted) and torch.equal(lse, wanted_lse)


@pytest.mark.parametrize("poison", POISON)
def test_poison_in_a_future_key_is_never_seen(causal_kernel: Sm90Ptx, poison: str) -> None:
    q, k, v = random_qkv(causal_kernel.spec.name, 128, 200)
    k[:, 150:] = POISON[poison]
    out, lse = attend(causal_kernel, q, k, v)
    ref, ref_lse = reference.attention(q, k, v, causal=True)
    seen = 150 - (200 - 128)
    assert_same_kinds((out[:, :seen], lse[:, :, :seen]), (ref[:, :seen], ref_lse[:, :, :seen]))


@pytest.mark.parametrize("poison", POISON)
def test_poison_in_a_future_value_is_never_seen(causal_kernel: Sm90Ptx, poison: str) -> None:
    """0 times NaN or infinity is NaN, so a weight of 0 alone does not hide a value."""
    q, k, v = random_qkv(causal_kernel.spec.name, 128, 200)
    seen = 150 - (200 - 128)
    v[:, 150:] = POISON[poison]
    out, lse = attend(causal_kernel, q, k, v)
    result = (out[:, :seen], lse[:, :, :seen])
    assert_within_rounding(q[:, :seen], k[:, :150], v[:, :150], result, causal=True)
    assert not torch.isfinite(out[:, seen:]).any()


@pytest.mark.parametrize("seqlen_q,seqlen_k", [(128, 200), (200, 130), (300, 300), (65, 65)])
@pytest.mark.parametrize("scale", [0.125, -0.2, 0.0])
def test_scattered_poison_reaches_exactly_what_sees_it(
    causal_kernel: Sm90Ptx, scale: float, seqlen_q: int, seqlen_k: int
) -> None:
    """NaN and both infinities in single elements of V, a key of NaN, a huge row: where each output is not finite."""
    dtype = dtype_of(causal_kernel)
    q = normal(2, seqlen_q, 4, 64, dtype=dtype, seed=1)
    k, v = (normal(2, seqlen_k, 2, 64, dtype=dtype, seed=seed) for seed in (2, 3))
    for key, column, value in [(50, 0, NAN), (60, 1, INF), (61, 2, -INF), (62, 3, INF), (64, 3, -INF), (33, 63, INF)]:
        v[0, key, 0, column] = value
    k[1, 64, 1, 17] = NAN
    result = attend(causal_kernel, q, k, v, scale)
    ref = reference.attention(q, k, v, causal=True, softmax_scale=scale)
    assert not torch.isfinite(ref[0]).all()
    assert_same_kinds(result, ref)


@pytest.mark.parametrize("group", [1, 3, 5])
@pytest.mark.parametrize(("dtype", "head_dim", "head_dim_v"), [("bf16", 128, 72), ("fp16", 256, 256), ("e4m3", 96, 80)])
def test_scattered_poison_in_the_kernels_of_the_api(dtype: str, head_dim: int, head_dim_v: int, group: int) -> None:
    """Tiles of several warpgroups, packed heads, head dims smaller than the kernel's."""
    q = normal(2, 70, 2 * group, head_dim, dtype=torch.float32, seed=1).to(torch_dtype(dtype))
    k, v = (
        normal(2, 333, 2, dim, dtype=torch.float32, seed=seed).to(torch_dtype(dtype))
        for dim, seed in ((head_dim, 2), (head_dim_v, 3))
    )
    v[1, 300, 1, head_dim_v - 1] = v[0, 40, 0, 5] = v[1, 310:, 0] = NAN
    k[0, 320, 1] = NAN
    with attnsmith.simulate("h100"):
        out, lse, _ = attnsmith.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    launch = attnsmith.last_launch()
    assert launch is not None and f"sm90_{dtype}" in launch.kernel and ("packgqa" in launch.kernel) == (group > 1)
    ref = reference.attention(q, k, v, causal=True)
    assert ref[0].isnan().any() and not ref[0].isnan().all()
    assert_same_kinds((out, lse), ref)


def test_poison_of_every_future_value_beside_huge_rows(causal_kernel: Sm90Ptx) -> None:
    """The row that is computed anew has scores of 2^24: its maximum is subtracted before it is scaled."""
    q, k, v = random_qkv(causal_kernel.spec.name, 128, 200)
    q[:, ::3] = 0
    q[:, ::3, :, 5], k[..., 5] = 2.0**14, 2.0**10
    v[:, 150:] = NAN
    seen = 150 - (200 - 128)
    out, lse = attend(causal_kernel, q, k, v)
    assert_within_rounding(q[:, :seen], k[:, :150], v[:, :150], (out[:, :seen], lse[:, :, :seen]), causal=True)


@pytest.mark.parametrize("tensor", ["k", "v"])
def test_rows_that_see_no_key_are_empty_whatever_the_keys_hold(causal_kernel: Sm90Ptx, tensor: str) -> None:
    q, k, v = random_qkv(causal_kernel.spec.name, 300, 100)
    {"k": k, "v": v}[tensor][:] = NAN
    out, lse = attend(causal_kernel, q, k, v)
    assert (out[:, :200] == 0).all() and (lse[:, :, :200] == -INF).all()
    assert out[:, 200:].isnan().all() and lse[:, :, 200:].isnan().all() == (tensor == "k")


def test_no_keys(kernel: Sm90Ptx) -> None:
    q, k, v = random_qkv(kernel.spec.name, 70, 0)
    out, lse = attend(kernel, q, k, v)
    assert (out == 0).all() and (lse == -INF).all()


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
