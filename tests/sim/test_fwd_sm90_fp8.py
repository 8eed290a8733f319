# SPDX-License-Identifier: Apache-2.0
"""FP8 on the SM90 forward kernels at extremes: descales of every kind, the types' largest numbers, the range of P,
results beyond fp16, and NaN: what sees it gives NaN, what does not stays right.

Kernels are launched raw. Not responsible for quantization (test_fp8_outliers.py) or for ordinary inputs (the grid).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from attnsmith import reference
from attnsmith.codegen.spec import DType, KernelSpec, Mask
from attnsmith.quantize import to_col_major
from attnsmith.tools.check import torch_dtype
from torch import Tensor

from tests.sim.extreme_sm90 import assert_same_kinds
from tests.sim.fwd_kernel import normal
from tests.sim.fwd_sm90_kernel import Sm90Ptx, one_torch_thread, ptx_of, spec_like
from tests.sim.test_fwd_sm80_numerics import POISON, PROFILES

BLOCK_N = 128
SPECS = {
    "e4m3-full": spec_like("fwd_sm90_e4m3_bf16_hdim64_full_64x128", exp2_fma_eighths=4),
    "e4m3-causal-vcol": spec_like("fwd_sm90_e4m3_bf16_hdim64_causal_64x128", v_is_col_major=True, skips_rescale=False),
    "e5m2-causal": spec_like("fwd_sm90_e5m2_bf16_hdim64_causal_64x128", exp2_fma_eighths=8),
    "e5m2-full-vcol-fp16": spec_like(
        "fwd_sm90_e5m2_bf16_hdim64_full_64x128", v_is_col_major=True, out_dtype=DType.FP16, overlaps_softmax=False
    ),
    "e4m3-causal-packed-fp16": spec_like(
        "fwd_sm90_e4m3_bf16_hdim64_causal_64x128", packs_gqa=True, out_dtype=DType.FP16, exp2_fma_eighths=2
    ),
}
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
    return torch_dtype(kernel.spec.key.dtype.value)


def is_causal(kernel: Sm90Ptx) -> bool:
    return kernel.spec.key.mask is Mask.CAUSAL


def out_dtype_of(spec: KernelSpec) -> torch.dtype:
    assert spec.key.out_dtype is not None
    return torch_dtype(spec.key.out_dtype.value)


def random_qkv(kernel: Sm90Ptx, seqlen_q: int, seqlen_k: int, batch: int = 1, nheads_k: int = 1) -> list[Tensor]:
    """N(0, 1), two query heads for each key head."""
    shapes = ((seqlen_q, 2 * nheads_k), (seqlen_k, nheads_k), (seqlen_k, nheads_k))
    return [
        normal(batch, seqlen, heads, 64, dtype=torch.float32, seed=i).to(dtype_of(kernel))
        for i, (seqlen, heads) in enumerate(shapes)
    ]


def with_scores(kernel: Sm90Ptx, rows: Tensor, keys: Tensor) -> list[Tensor]:
    """Scores of row i and key j are rows[i] * keys[j], both rounded to 8 bits; v random."""
    q, k, v = random_qkv(kernel, len(rows), len(keys))
    wide = [torch.zeros(x.shape) for x in (q, k)]
    wide[0][0, :, :, 5], wide[1][0, :, :, 5] = rows[:, None], keys[:, None]
    return [wide[0].to(q.dtype), wide[1].to(k.dtype), v]


def descales(*values: float | Tensor) -> dict[str, Tensor]:
    """Of q, k and v: (1, 1) from a number."""
    names = ("q_descale", "k_descale", "v_descale")
    return {name: x if isinstance(x, Tensor) else torch.full((1, 1), x) for name, x in zip(names, values, strict=True)}


def attend(
    kernel: Sm90Ptx,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    factors: dict[str, Tensor] | None = None,
    softmax_scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    if kernel.spec.key.v_is_col_major:
        v = to_col_major(v.view(torch.uint8)).view(v.dtype)
    out, lse, _ = kernel.run(q, k, v, descales=factors, softmax_scale=softmax_scale, num_ctas=2)
    return out, lse


def check(
    kernel: Sm90Ptx,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    factors: dict[str, Tensor] | None = None,
    softmax_scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Run; out by the tolerance rule, whose yardstick rounds P to e4m3 too, lse within 1e-3."""
    out, lse = attend(kernel, q, k, v, factors, softmax_scale)
    options = {"causal": is_causal(kernel), "softmax_scale": softmax_scale, **(factors or {})}
    ref, ref_lse = reference.attention(q, k, v, **options)
    found = reference.compare(
        out, ref, reference.same_dtype_attention(q, k, v, out_dtype=out_dtype_of(kernel.spec), **options)
    )
    assert found.ok, f"out: {found}"
    found_lse = reference.compare_lse(lse, ref_lse)
    assert found_lse.ok, f"lse: {found_lse}"
    return out, lse


def assert_within_rounding(
    kernel: Sm90Ptx, inputs: list[Tensor], result: tuple[Tensor, Tensor], softmax_scale: float | None = None
) -> None:
    """out within what rounding P to 3 bits, below 2^-9 of the largest weight to a multiple of 2^-17, and O explain."""
    q, k, v = inputs
    ref, ref_lse = reference.attention(q, k, v, causal=is_causal(kernel), softmax_scale=softmax_scale)
    largest = float(v.double().abs().max())
    bound = largest * (2.0**-4 + torch.finfo(result[0].dtype).eps + k.shape[1] * 2.0**-18)
    error = (result[0].double() - ref).abs().amax(dim=(0, 2, 3))
    wrong = (~(error <= bound)).nonzero().flatten().tolist()
    assert not wrong, f"out: rows {wrong}, worst {float(error.max())}, allowed {bound}"
    found_lse = reference.compare_lse(result[1], ref_lse)
    assert found_lse.ok, f"lse: {found_lse}"


# Descales


@pytest.mark.parametrize("seqlen_q,seqlen_k", [(70, 300), (130, 96)])
def test_every_batch_and_key_head_has_descales_of_its_own(kernel: Sm90Ptx, seqlen_q: int, seqlen_k: int) -> None:
    """Of both signs, and 0; in strided tables."""
    q, k, v = random_qkv(kernel, seqlen_q, seqlen_k, batch=2, nheads_k=3)
    table = torch.randn(3, 2, 6, generator=torch.Generator().manual_seed(4))[:, :, ::2]
    table[0, 0, 1] = table[2, 1, 2] = 0.0
    out, _ = check(kernel, q, k, v, descales(*table))
    assert (out[1, :, 4:] == 0).all() and (out[0] != 0).any()


@pytest.mark.parametrize("scale", [-0.3, 0.0])
def test_signs_of_scale_and_descales_multiply(kernel: Sm90Ptx, scale: float) -> None:
    q, k, v = random_qkv(kernel, 100, 200)
    results = [check(kernel, q, k, v, descales(a, b, 1.0), scale) for a, b in ((1.0, 1.0), (-1.0, -1.0))]
    assert torch.equal(results[0][0], results[1][0])
    flipped, _ = check(kernel, q, k, v, descales(-1.0, 1.0, -1.0), scale)
    if scale != 0:
        negated, _ = attend(kernel, q, k, v, None, -scale)
        assert torch.equal(flipped, -negated)


@pytest.mark.parametrize(
    "factors", [(1e-15, 1e15, 1.0), (1e-20, 1e-20, 1.0), (30.0, 1.0, 1e-30), (1e9, 1e9, 1e30)], ids=str
)
def test_descales_of_any_magnitude(kernel: Sm90Ptx, factors: tuple[float, float, float]) -> None:
    q, k, v = random_qkv(kernel, 100, 200)
    if factors[2] != 1e30:
        check(kernel, q, k, v, descales(*factors))
    elif kernel.spec.key.out_dtype is DType.BF16:
        out, _ = attend(kernel, q, k, v, descales(*factors))
        ref, _ = reference.attention(q, k, v, causal=is_causal(kernel), **descales(*factors))
        assert ((out.double() - ref).abs() <= 2.0**-8 * ref.abs()).all()  # one key has all the weight


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_a_descale_of_nan_reaches_its_heads_only(kernel: Sm90Ptx, name: str) -> None:
    q, k, v = random_qkv(kernel, 64, 200, nheads_k=2)
    factors = descales(torch.ones(1, 2), torch.ones(1, 2), torch.ones(1, 2))
    wanted, wanted_lse = attend(kernel, q, k, v, factors)
    factors[f"{name}_descale"][0, 1] = NAN
    out, lse = attend(kernel, q, k, v, factors)
    assert out[:, :, 2:].isnan().all() and torch.equal(out[:, :, :2], wanted[:, :, :2])
    assert lse[:, 2:].isnan().all() == (name != "v") and torch.equal(lse[:, :2], wanted_lse[:, :2])


@pytest.mark.parametrize("value", [NAN, INF, -1.0, 0.0])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_rows_without_keys_are_zero_whatever_the_descale(causal_kernel: Sm90Ptx, name: str, value: float) -> None:
    q, k, v = random_qkv(causal_kernel, 100, 40)
    factors = {**descales(1.0, 1.0, 1.0), f"{name}_descale": torch.full((1, 1), value)}
    out, lse = attend(causal_kernel, q, k, v, factors)
    assert (out[:, :60] == 0).all() and (lse[:, :, :60] == -INF).all()
    assert not math.isnan(value) or out[:, 60:].isnan().all()


# The types' largest numbers, and the range of P and of the result


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["positive", "negative"])
def test_the_largest_numbers_of_the_type(kernel: Sm90Ptx, sign: float) -> None:
    """q and k at 448 or 57344: scores of up to 2^37; all equal, so out is the mean. v stays what it is: 448 is kept."""
    largest = torch.finfo(dtype_of(kernel)).max
    q, k, v = random_qkv(kernel, 130, 300)
    q[:], k[:] = torch.tensor(largest).to(q.dtype), torch.tensor(sign * largest).to(q.dtype)
    check(kernel, q, k, v)
    v[:] = q[0, 0, 0, 0]
    factors = None if out_dtype_of(kernel.spec) is torch.bfloat16 else descales(1.0, 1.0, 0.5)
    out, _ = attend(kernel, q, k, v, factors)
    assert (out == largest * (1.0 if factors is None else 0.5)).all()


def test_one_key_of_the_largest_values_among_ordinary_ones(kernel: Sm90Ptx) -> None:
    """Every row that sees key 20 gives its value: large and exact, while the rest of the weights vanish."""
    q, k, v = random_qkv(kernel, 128, 300)
    largest = torch.finfo(dtype_of(kernel)).max
    q[..., 5] = torch.tensor(64.0).to(q.dtype)
    k[:, 20, :, 5] = torch.tensor(largest).to(k.dtype)
    v[:, 20] = torch.tensor(-largest).to(v.dtype)
    out, _ = attend(kernel, q, k, v)
    assert (out == -largest).all()


@pytest.mark.parametrize("growth", [0.3, 0.5, 0.75, 0.8, 0.97, 1.4, 8.0, 8.7])
def test_the_largest_weight_is_neither_rounded_nor_saturated(kernel: Sm90Ptx, growth: float) -> None:
    """The maximum grows once. A base that lags gives weights of 2^(8 + growth): above 448 from 0.81 on, and before
    that rounded to 3 bits, all in the same direction."""
    levels = torch.tensor([0.0 if j >= BLOCK_N else growth for j in range(2 * BLOCK_N + 40)])
    q, k, v = random_qkv(kernel, 64, len(levels))
    q[:], k[:] = 0.0, 0.0
    q[..., 5] = torch.ones(()).to(q.dtype)
    k[0, :, 0, 5] = (levels > 0).to(k.dtype)
    v[:, :BLOCK_N] = torch.tensor(448.0).to(v.dtype)
    out, lse = attend(kernel, q, k, v, None, growth * math.log(2))
    assert_within_rounding(kernel, [q, k, v], (out, lse), growth * math.log(2))
    ref, _ = reference.attention(q, k, v, causal=is_causal(kernel), softmax_scale=growth * math.log(2))
    relative = ((out.double() - ref) / ref).abs().max()
    assert relative <= torch.finfo(out.dtype).eps + 1e-3


@pytest.mark.parametrize("factor", [2.0, 16.0, 64.0])
def test_large_scores(kernel: Sm90Ptx, factor: float) -> None:
    """Of up to 2^18: one key has most of a row's weight, and a base rounded to fp32 would round that weight."""
    q, k, v = random_qkv(kernel, 130, 400)
    q, k = ((x.float() * factor).to(x.dtype) for x in (q, k))
    check(kernel, q, k, v)


@pytest.mark.parametrize("seqlen_k", [512, 500])
@pytest.mark.parametrize("profile", PROFILES)
def test_moving_maximum(kernel: Sm90Ptx, profile: str, seqlen_k: int) -> None:
    levels = torch.tensor([PROFILES[profile](j // BLOCK_N) for j in range(seqlen_k)])
    inputs = with_scores(kernel, torch.ones(64), levels)
    result = attend(kernel, *inputs, None, math.log(2))
    assert_within_rounding(kernel, inputs, result, math.log(2))


@pytest.mark.parametrize("depth", [4.0, 8.0, 12.0, 15.0])
def test_many_small_weights_sum_up(kernel: Sm90Ptx, depth: float) -> None:
    """One key of weight 1 and v = 0; 1023 of 2^-depth and v = 1. e4m3 keeps 2^-15, because P is scaled by 2^8."""
    q, k, v = random_qkv(kernel, 64, 1024 + 64)
    q[:], k[:] = 0.0, 0.0
    q[..., 5] = torch.ones(()).to(q.dtype)
    k[:, 7, :, 5] = torch.tensor(8.0).to(k.dtype)
    v[:] = torch.ones(()).to(v.dtype)
    v[:, 7] = 0.0
    scale = depth / 8 * math.log(2)
    out, lse = attend(kernel, q, k, v, None, scale)
    ref, ref_lse = reference.attention(q, k, v, causal=is_causal(kernel), softmax_scale=scale)
    assert ref.min() > 0 and ((out.double() - ref) / ref).abs().max() <= 2.0**-8
    assert reference.compare_lse(lse, ref_lse).ok


@pytest.mark.parametrize("name", ["e5m2-full-vcol-fp16", "e4m3-causal-packed-fp16"])
def test_results_beyond_fp16_become_infinite(name: str) -> None:
    kernel = ptx_of(SPECS[name])
    q, k, v = random_qkv(kernel, 70, 200)
    factors = descales(1.0, 1.0, 3e5)
    out, lse = attend(kernel, q, k, v, factors)
    ref, ref_lse = reference.attention(q, k, v, causal=is_causal(kernel), **factors)
    clear = ((ref.abs() - 65520).abs() > 20000) | (ref.abs() < 40000)
    assert torch.equal(out[clear].isinf(), ref[clear].abs() > 65520) and out.isinf().any() and not out.isnan().any()
    assert torch.equal(out[out.isinf()] > 0, ref[out.isinf()] > 0)
    assert reference.compare_lse(lse, ref_lse).ok


# NaN


@pytest.mark.parametrize("seqlen_k", [256, 300])
@pytest.mark.parametrize("key", [0, 63, 128])
@pytest.mark.parametrize("tensor", ["k", "v"])
def test_nan_in_a_seen_key_reaches_every_row_that_sees_it(
    kernel: Sm90Ptx, tensor: str, key: int, seqlen_k: int
) -> None:
    q, k, v = random_qkv(kernel, 128, seqlen_k, nheads_k=2)
    {"k": k, "v": v}[tensor][:, key, 1, 9] = NAN
    result = attend(kernel, q, k, v)
    ref = reference.attention(q, k, v, causal=is_causal(kernel))
    assert ref[0][:, :, 2:].isnan().any() and torch.isfinite(ref[0][:, :, :2]).all()
    assert_same_kinds(result, ref, allowed=0.3)


def test_nan_in_a_query_row_stays_in_that_row(kernel: Sm90Ptx) -> None:
    q, k, v = random_qkv(kernel, 130, 333)
    q[:, 40, :, 9] = NAN
    result = attend(kernel, q, k, v)
    ref = reference.attention(q, k, v, causal=is_causal(kernel))
    assert ref[0][:, 40].isnan().all()
    assert_same_kinds(result, ref, allowed=0.3)


@pytest.mark.parametrize("poison", POISON)
def test_poison_in_future_keys_and_values_is_never_seen(causal_kernel: Sm90Ptx, poison: str) -> None:
    """e4m3 has no infinity: there it is NaN."""
    q, k, v = random_qkv(causal_kernel, 128, 200)
    q[0, ::5], k[0, ::7] = q[0, ::5].float().mul(16).to(q.dtype), k[0, ::7].float().mul(8).to(k.dtype)
    seen = 150 - (200 - 128)
    clean, _ = check(causal_kernel, q, k, v, descales(0.5, -2.0, 3.0))
    bad = torch.tensor(POISON[poison])
    bad = bad.to(q.dtype) if q.dtype is torch.float8_e5m2 else torch.tensor(NAN).to(q.dtype)
    k[:, 150:], v[:, 150:] = bad, bad
    out, _ = attend(causal_kernel, q, k, v, descales(0.5, -2.0, 3.0))
    assert not torch.isfinite(out[:, seen:]).any()
    ref, _ = reference.attention(q, k, v, causal=True, **descales(0.5, -2.0, 3.0))
    allowed = torch.maximum((clean.double() - ref)[:, :seen].abs().max(), torch.tensor(0.02))
    assert (out.double() - ref)[:, :seen].abs().max() <= allowed


@pytest.mark.parametrize("seqlen_q,seqlen_k", [(128, 200), (200, 130), (65, 65)])
def test_scattered_nan_reaches_exactly_what_sees_it(causal_kernel: Sm90Ptx, seqlen_q: int, seqlen_k: int) -> None:
    q, k, v = random_qkv(causal_kernel, seqlen_q, seqlen_k, batch=2, nheads_k=2)
    for key, column in ((50, 0), (60, 1), (61, 17), (33, 63)):
        v[0, key, 0, column] = NAN
    k[1, 64, 1, 17] = NAN
    result = attend(causal_kernel, q, k, v)
    ref = reference.attention(q, k, v, causal=True)
    assert ref[0].isnan().any() and not ref[0].isnan().all()
    assert_same_kinds(result, ref, allowed=0.3)


@pytest.mark.parametrize("seqlen_q,seqlen_k", [(1, 1), (65, 3), (64, 193)])
def test_nan_beyond_the_sequence_is_never_seen(kernel: Sm90Ptx, seqlen_q: int, seqlen_k: int) -> None:
    plain = random_qkv(kernel, seqlen_q, seqlen_k)
    views = []
    for x in plain:
        buffer = torch.full((1, x.shape[1] + 256, x.shape[2] + 2, 96), NAN).to(x.dtype)
        views.append(buffer[:, 128 : 128 + x.shape[1], 1:-1, 16:-16].copy_(x))
    if kernel.spec.key.v_is_col_major:
        wide = torch.full((1, 1, 64, (seqlen_k + 15) // 16 * 16 + 32), NAN).to(plain[2].dtype)
        views[2] = wide[..., 16 : 16 + seqlen_k].copy_(plain[2].permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    wanted, wanted_lse = attend(kernel, *plain)
    assert torch.isfinite(wanted).all()
    out, lse, _ = kernel.run(*views)
    assert torch.equal(out, wanted) and torch.equal(lse, wanted_lse)


def test_rows_that_see_no_key_are_empty_whatever_the_keys_hold(causal_kernel: Sm90Ptx) -> None:
    q, k, v = random_qkv(causal_kernel, 300, 100)
    k[:], v[:] = NAN, NAN
    out, lse = attend(causal_kernel, q, k, v)
    assert (out[:, :200] == 0).all() and (lse[:, :, :200] == -INF).all()
    assert out[:, 200:].isnan().all()


def test_no_keys(kernel: Sm90Ptx) -> None:
    q, k, v = random_qkv(kernel, 70, 0)
    out, lse = attend(kernel, q, k, v, descales(1.0, 1.0, NAN))
    assert (out == 0).all() and (lse == -INF).all()


# Repeats


def test_repeats_give_the_same_bits_whoever_computes_a_tile() -> None:
    kernel = ptx_of(spec_like("fwd_sm90_e4m3_bf16_hdim64_causal_192x160"))
    q, k, v = random_qkv(kernel, 500, 400, batch=2, nheads_k=2)
    wanted, wanted_lse = check(kernel, q, k, v)
    for num_ctas, seed in ((3, 0), (7, 1), (1, 2)):
        out, lse, _ = kernel.run(q, k, v, num_ctas=num_ctas, schedule="random", seed=seed)
        assert torch.equal(out, wanted) and torch.equal(lse, wanted_lse), f"{num_ctas} CTAs, seed {seed}"
