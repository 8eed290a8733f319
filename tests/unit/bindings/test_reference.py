# SPDX-License-Identifier: Apache-2.0
"""attnsmith.reference against a naive softmax, closed forms and PyTorch's own attention; and the tolerance rule."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from attnsmith import reference
from attnsmith.codegen.errors import AttnsmithError
from attnsmith.errors import ArgumentError, ArgumentTypeError
from torch import Tensor

INF = float("inf")
NAN = float("nan")


def inputs(
    batch: int = 2, sq: int = 5, sk: int = 7, h: int = 4, hk: int = 2, d: int = 16, dv: int = 8, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((batch, sq, h, d), (batch, sk, hk, d), (batch, sk, hk, dv))
    return tuple(torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes)  # type: ignore[return-value]


def visible_by_rule(sq: int, sk: int, causal: bool, window: tuple[int, int]) -> Tensor:
    """The mask, element by element, as the API states it."""
    mask = torch.zeros(sq, sk, dtype=torch.bool)
    for i in range(sq):
        for j in range(sk):
            center = i + sk - sq
            left_ok = window[0] < 0 or j >= center - window[0]
            right_ok = window[1] < 0 or j <= center + window[1]
            mask[i, j] = left_ok and right_ok and (not causal or j <= center)
    return mask


def naive(q: Tensor, k: Tensor, v: Tensor, scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """softmax over the keys of a mask; scores (b, h, sq, sk)."""
    group = q.shape[2] // k.shape[2]
    values = v.repeat_interleave(group, dim=2).transpose(1, 2)
    scores = scores.masked_fill(~mask, -INF)
    weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)
    return (weights @ values).transpose(1, 2), torch.logsumexp(scores, dim=-1)


def raw_scores(q: Tensor, k: Tensor) -> Tensor:
    keys = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    return torch.einsum("bihd,bjhd->bhij", q, keys)


@pytest.mark.parametrize("sq,sk", [(1, 1), (1, 9), (5, 7), (7, 5), (5, 2), (3, 0), (33, 65)])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("h,hk", [(1, 1), (4, 4), (4, 2), (6, 1)])
def test_equals_naive_softmax(sq: int, sk: int, causal: bool, h: int, hk: int) -> None:
    q, k, v = inputs(sq=sq, sk=sk, h=h, hk=hk)
    out, lse = reference.attention(q, k, v, softmax_scale=0.3, causal=causal)
    ref_out, ref_lse = naive(q, k, v, 0.3 * raw_scores(q, k), visible_by_rule(sq, sk, causal, (-1, -1)))
    torch.testing.assert_close(out, ref_out, rtol=0, atol=1e-13)
    torch.testing.assert_close(lse, ref_lse, rtol=0, atol=1e-13)


@pytest.mark.parametrize("window", [(0, 0), (2, 0), (-1, 0), (3, 1), (0, -1), (100, 100), (-1, 2)])
@pytest.mark.parametrize("sq,sk", [(6, 6), (4, 9), (9, 4)])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_window_is_inclusive_and_bottom_right(window: tuple[int, int], sq: int, sk: int, causal: bool) -> None:
    q, k, v = inputs(sq=sq, sk=sk)
    out, lse = reference.attention(q, k, v, window_size=window, causal=causal, softmax_scale=1.0)
    ref_out, ref_lse = naive(q, k, v, raw_scores(q, k), visible_by_rule(sq, sk, causal, window))
    torch.testing.assert_close(out, ref_out, rtol=0, atol=1e-13)
    torch.testing.assert_close(lse, ref_lse, rtol=0, atol=1e-13)


@pytest.mark.parametrize("compute", [reference.attention, reference.same_dtype_attention])
@pytest.mark.parametrize(
    "window,error",
    [
        ((2, 2, 2), ArgumentTypeError),
        (3, ArgumentTypeError),
        ((1.5, 0), ArgumentTypeError),
        ((-2, 0), ArgumentError),
    ],
)
def test_what_is_no_window_is_refused_in_four_parts(compute: Any, window: Any, error: type[AttnsmithError]) -> None:
    with pytest.raises(error) as caught:
        compute(*inputs(), window_size=window)
    assert caught.value.got == f"window_size {window!r}"
    assert caught.value.asked and caught.value.allowed and caught.value.do


def test_a_window_side_of_none_is_unbounded() -> None:
    out, _ = reference.attention(*inputs(), window_size=(None, 0))  # type: ignore[arg-type]
    ref, _ = reference.attention(*inputs(), causal=True)
    assert torch.equal(out, ref)


def test_default_scale_is_that_of_the_given_head_dim() -> None:
    q, k, v = inputs(d=10)
    torch.testing.assert_close(
        reference.attention(q, k, v)[0], reference.attention(q, k, v, softmax_scale=10**-0.5)[0], rtol=0, atol=0
    )


def test_zero_scale_is_the_mean_of_what_a_row_sees() -> None:
    q, k, v = inputs(sq=6, sk=6, h=2, hk=2)
    out, lse = reference.attention(q, k, v, softmax_scale=0.0, causal=True)
    count = torch.arange(1, 7, dtype=torch.float64)
    torch.testing.assert_close(out, v.cumsum(1) / count[None, :, None, None], rtol=0, atol=1e-13)
    torch.testing.assert_close(lse, count.log().expand(2, 2, 6), rtol=0, atol=1e-13)


def test_negative_scale_is_the_flipped_query() -> None:
    q, k, v = inputs()
    flipped = reference.attention(-q, k, v, softmax_scale=0.5, causal=True)
    for got, ref in zip(reference.attention(q, k, v, softmax_scale=-0.5, causal=True), flipped, strict=True):
        torch.testing.assert_close(got, ref, rtol=0, atol=1e-13)


def test_softcap_comes_before_the_mask() -> None:
    q, k, v = inputs()
    v[:, -1] = 1e4
    scores = 1.5 * torch.tanh(raw_scores(q, k) / 1.5)
    ref_out, ref_lse = naive(q, k, v, scores, visible_by_rule(5, 7, True, (-1, -1)))
    out, lse = reference.attention(q, k, v, softmax_scale=1.0, softcap=1.5, causal=True)
    torch.testing.assert_close(out, ref_out, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(lse, ref_lse, rtol=0, atol=1e-13)


@pytest.mark.parametrize("per_batch", [False, True])
def test_alibi_biases_by_distance_from_the_diagonal(per_batch: bool) -> None:
    q, k, v = inputs()
    slopes = torch.rand((2, 4) if per_batch else (4,))
    distance = (torch.arange(5)[:, None] + 7 - 5 - torch.arange(7)).abs()
    bias = -slopes.double().reshape(-1, 4, 1, 1) * distance
    ref_out, _ = naive(q, k, v, raw_scores(q, k) + bias, visible_by_rule(5, 7, False, (-1, -1)))
    out, _ = reference.attention(q, k, v, softmax_scale=1.0, alibi_slopes=slopes)
    torch.testing.assert_close(out, ref_out, rtol=0, atol=1e-13)


def test_sink_is_a_key_without_a_value() -> None:
    q, k, v = inputs(h=2, hk=2)
    sink = torch.tensor([0.7, -1.2], dtype=torch.float64)
    out, lse = reference.attention(q, k, v, softmax_scale=1.0, learnable_sink=sink)
    scores = raw_scores(q, k)
    total = scores.exp().sum(-1) + sink.exp()[None, :, None]
    torch.testing.assert_close(lse, total.log(), rtol=0, atol=1e-13)
    weights = scores.exp() / total[..., None]
    torch.testing.assert_close(out, torch.einsum("bhij,bjhd->bihd", weights, v), rtol=0, atol=1e-13)


def test_descale_multiplies_inputs_per_key_head() -> None:
    q, k, v = inputs()
    factors = [torch.rand(2, 2) + 0.5 for _ in range(3)]
    names = ("q_descale", "k_descale", "v_descale")
    got = reference.attention(q, k, v, **dict(zip(names, factors, strict=True)))
    per_query_head = factors[0].repeat_interleave(2, dim=1)
    scaled = (
        q * per_query_head[:, None, :, None],
        k * factors[1][:, None, :, None],
        v * factors[2][:, None, :, None],
    )
    for x, ref in zip(got, reference.attention(*scaled), strict=True):
        torch.testing.assert_close(x, ref, rtol=0, atol=1e-12)


def test_used_lengths_equal_the_sliced_call() -> None:
    q, k, v = inputs(sq=6, sk=9)
    k[0, 4:], v[0, 4:], q[1, 3:] = NAN, NAN, NAN
    used_q, used_k = torch.tensor([6, 3], dtype=torch.int32), torch.tensor([4, 9], dtype=torch.int32)
    out, lse = reference.attention(q, k, v, causal=True, seqused_q=used_q, seqused_k=used_k)
    for b in range(2):
        nq, nk = int(used_q[b]), int(used_k[b])
        ref_out, ref_lse = reference.attention(q[b : b + 1, :nq], k[b : b + 1, :nk], v[b : b + 1, :nk], causal=True)
        torch.testing.assert_close(out[b : b + 1, :nq], ref_out, rtol=0, atol=1e-13)
        torch.testing.assert_close(lse[b : b + 1, :, :nq], ref_lse, rtol=0, atol=1e-13)
    assert (out[1, 3:] == 0).all()
    assert (lse[1, :, 3:] == -INF).all()


@pytest.mark.parametrize("sk", [0, 2])
def test_rows_without_keys_are_zero_with_lse_minus_infinity(sk: int) -> None:
    q, k, v = inputs(sq=5, sk=sk)
    out, lse = reference.attention(q, k, v, causal=True)
    assert (out[:, : 5 - sk] == 0).all()
    assert (lse[..., : 5 - sk] == -INF).all()
    assert torch.isfinite(lse[..., 5 - sk :]).all()


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("which", ["k", "v"])
def test_bad_numbers_reach_exactly_the_rows_that_see_them(bad: float, which: str) -> None:
    q, k, v = inputs(sq=6, sk=6)
    clean, _ = reference.attention(q, k, v, causal=True)
    x = {"k": k, "v": v}[which]
    x[:, 3] = bad
    out, _ = reference.attention(q, k, v, causal=True)
    assert torch.equal(out[:, :3], clean[:, :3])
    touched = out[:, 3:]
    if which == "v":
        expected = torch.full_like(touched, bad)
        torch.testing.assert_close(touched, expected, equal_nan=True)
    elif math.isnan(bad):
        assert touched.isnan().all()


def test_nan_in_a_query_row_stays_in_that_row() -> None:
    q, k, v = inputs(sq=6, sk=4)
    q[:, 0] = NAN  # sees no key
    q[:, 4] = NAN
    out, lse = reference.attention(q, k, v, causal=True)
    assert (out[:, 0] == 0).all() and (lse[..., 0] == -INF).all()
    assert out[:, 4].isnan().all() and lse[..., 4].isnan().all()
    assert torch.isfinite(out[:, [2, 3, 5]]).all()


def test_huge_equal_scores_do_not_overflow() -> None:
    x = torch.full((1, 9, 1, 64), 133120.0, dtype=torch.bfloat16)
    for dtype in (torch.float32, torch.float64):
        out, lse = reference.attention(x, x, x, compute_dtype=dtype)
        assert (out == 133120.0).all() and torch.isfinite(lse).all()


def test_result_does_not_depend_on_blocking(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = inputs(sq=37, sk=41)
    options = {"causal": True, "window_size": (9, 0), "alibi_slopes": torch.rand(4)}
    whole = (*reference.attention(q, k, v, **options), reference.same_dtype_attention(q, k, v, **options))
    monkeypatch.setattr(reference, "_SCORES_PER_BLOCK", 2 * 4 * 41 * 5)
    blocked = (*reference.attention(q, k, v, **options), reference.same_dtype_attention(q, k, v, **options))
    for a, b in zip(whole, blocked, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


def test_differentiable_with_empty_rows() -> None:
    q, k, v = (x.requires_grad_() for x in inputs(batch=1, sq=4, sk=2, h=2, hk=1, d=3, dv=2))
    assert torch.autograd.gradcheck(lambda *x: reference.attention(*x, causal=True)[0], (q, k, v))
    out, lse = reference.attention(q, k, v, causal=True)
    (out.sum() + lse[torch.isfinite(lse)].sum()).backward()
    assert (q.grad[:, :2] == 0).all() and all(torch.isfinite(x.grad).all() for x in (q, k, v))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_same_dtype_attention_agrees_with_torch(dtype: torch.dtype) -> None:
    q, k, v = (x.to(dtype) for x in inputs(sq=6, sk=6, h=2, hk=2, d=32, dv=32))
    out = reference.same_dtype_attention(q, k, v, causal=True)
    ref = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2).double() for x in (q, k, v)), is_causal=True
    ).transpose(1, 2)
    assert out.dtype == dtype
    assert 0 < (out.double() - ref).abs().max() < 0.03


def fp8_inputs(**sizes: int) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(x.to(torch.float8_e4m3fn) for x in inputs(**sizes))  # type: ignore[return-value]


@pytest.mark.parametrize("out_dtype", [None, torch.bfloat16, torch.float16])
def test_fp8_yardstick_rounds_p_and_the_result(out_dtype: torch.dtype | None) -> None:
    """Element by element as it is stated: fp32, P * 2^8 in e4m3, the sum of unrounded weights."""
    q, k, v = fp8_inputs(h=2, hk=2)
    scores = (raw_scores(q.float(), k.float()) * 0.5).masked_fill(~visible_by_rule(5, 7, True, (-1, -1)), -INF)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    p = (weights * 256).to(torch.float8_e4m3fn).float()
    assert 0 < (p / 256 - weights).abs().max() < 2**-4
    wanted = torch.einsum("bhij,bjhd->bihd", p, v.float()) / (256 * weights.sum(-1)).transpose(1, 2)[..., None]
    got = reference.same_dtype_attention(q, k, v, softmax_scale=0.5, causal=True, out_dtype=out_dtype)
    assert got.dtype == (out_dtype or torch.bfloat16)
    torch.testing.assert_close(got, wanted.to(got.dtype), rtol=torch.finfo(got.dtype).eps, atol=1e-5)


def test_fp8_yardstick_takes_descales() -> None:
    q, k, v = fp8_inputs()
    factors = dict(zip(("q_descale", "k_descale", "v_descale"), torch.rand(3, 2, 2) + 0.5, strict=True))
    ref, _ = reference.attention(q, k, v, **factors)
    error = (reference.same_dtype_attention(q, k, v, **factors).double() - ref).abs().max()
    assert 0 < error < 0.1
    without = reference.same_dtype_attention(q, k, v).double()
    assert (without - ref).abs().max() > 2 * error


@pytest.mark.parametrize("changes", [{"v_descale": torch.ones(2, 2)}, {"out_dtype": torch.float32}])
def test_yardstick_of_16_bit_inputs_has_neither_descales_nor_another_type(changes: dict[str, object]) -> None:
    q, k, v = (x.bfloat16() for x in inputs())
    with pytest.raises(ValueError, match="FP8"):
        reference.same_dtype_attention(q, k, v, **changes)  # type: ignore[arg-type]


def test_fp8_yardstick_keeps_nan_and_empty_rows() -> None:
    q, k, v = inputs(sq=6, sk=4)
    v[:, 3] = NAN
    out = reference.same_dtype_attention(*(x.to(torch.float8_e5m2) for x in (q, k, v)), causal=True)
    assert (out[:, :2] == 0).all() and out[:, 5].isnan().all() and torch.isfinite(out[:, 2:5]).all()


def test_autocast_does_not_round_the_reference() -> None:
    q, k, v = (x.bfloat16() for x in inputs())
    plain = reference.attention(q, k, v, compute_dtype=torch.float32)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(reference.attention(q, k, v, compute_dtype=torch.float32)[0], plain)


# The rule


def test_tolerance_is_twice_the_error_plus_the_floor() -> None:
    ref = torch.tensor([1.0, 2.0])
    y = torch.tensor([1.0, 2.5])
    assert reference.tolerance(ref, y) == pytest.approx(1.0 + 1e-5)
    assert reference.tolerance(ref, y, gradient=True) == pytest.approx(1.5 + 1e-4)
    assert reference.tolerance(ref, ref) == pytest.approx(1e-5)
    assert reference.tolerance(torch.zeros(0), torch.zeros(0)) == pytest.approx(1e-5)


def test_an_overflow_of_the_yardstick_allows_nothing() -> None:
    ref = torch.tensor([1.0, 2.0])
    assert reference.tolerance(ref, torch.tensor([1.0, INF])) == pytest.approx(1e-5)


@pytest.mark.parametrize(
    "actual,ref,ok",
    [
        (1.0, 1.0, True),
        (1.02, 1.0, True),
        (1.03, 1.0, False),
        (NAN, 1.0, False),
        (1.0, NAN, False),
        (NAN, NAN, True),
        (INF, INF, True),
        (INF, -INF, False),
        (INF, 1.0, False),
    ],
)
def test_compare(actual: float, ref: float, ok: bool) -> None:
    same_dtype = torch.tensor([ref + 0.01 if math.isfinite(ref) else ref, 0.01])
    found = reference.compare(torch.tensor([actual, 0.0]), torch.tensor([ref, 0.0]), same_dtype)
    assert found.ok is ok
    assert found.allowed == pytest.approx(0.02 + 1e-5, rel=1e-4)


def test_compare_refuses_another_shape() -> None:
    with pytest.raises(ValueError, match="shape"):
        reference.compare(torch.zeros(2), torch.zeros(2, 1), torch.zeros(2, 1))


@pytest.mark.parametrize(
    "actual,ref,ok",
    [
        (100.09, 100.0, True),
        (100.11, 100.0, False),
        (0.0009, 0.0, True),
        (0.0011, 0.0, False),
        (-INF, -INF, True),
        (0.0, -INF, False),
        (INF, -INF, False),
    ],
)
def test_compare_lse(actual: float, ref: float, ok: bool) -> None:
    found = reference.compare_lse(torch.tensor([5.0, actual]), torch.tensor([5.0, ref], dtype=torch.float64))
    assert found.ok is ok


def test_compare_empty() -> None:
    empty = torch.zeros(0)
    assert reference.compare(empty, empty, empty).ok and reference.compare_lse(empty, empty).ok
