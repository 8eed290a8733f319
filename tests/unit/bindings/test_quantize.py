# SPDX-License-Identifier: Apache-2.0
"""quantize_fp8: scales, layouts, special values, and what incoherent processing gains; rotations are orthogonal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attnsmith
import pytest
import torch
from attnsmith import reference
from attnsmith.quantize import QuantizedInputs
from torch import Tensor

from tests.fp8_outliers import outlier_errors

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
NAN, INF = float("nan"), float("inf")
EPS = {E4M3: 2.0**-4, E5M2: 2.0**-3}
"""Largest relative rounding error of a normal number."""
DTYPES = pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=["e4m3", "e5m2"])


def make(h: int = 4, hk: int = 2, d: int = 40, dv: int = 24, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(h + d)
    shapes = ((2, 9, h, d), (2, 13, hk, d), (2, 13, hk, dv))
    return tuple(torch.randn(*shape, generator=generator).to(dtype) for shape in shapes)


def dequantized(quantized: QuantizedInputs) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v times their descales."""
    group = quantized.q.shape[2] // quantized.k.shape[2]
    q_descale = quantized.q_descale.repeat_interleave(group, dim=1)
    pairs = ((quantized.q, q_descale), (quantized.k, quantized.k_descale), (quantized.v, quantized.v_descale))
    return tuple(x.float() * descale[:, None, :, None] for x, descale in pairs)  # type: ignore[return-value]


@DTYPES
@pytest.mark.parametrize("source", [torch.float16, torch.bfloat16, torch.float32], ids=["fp16", "bf16", "fp32"])
def test_descales_undo_the_scaling(dtype: torch.dtype, source: torch.dtype) -> None:
    inputs = make(dtype=source)
    quantized = attnsmith.quantize_fp8(*inputs, dtype=dtype)
    for x, got in zip(inputs, dequantized(quantized), strict=True):
        largest = x.float().abs().amax(dim=(1, 3), keepdim=True)
        assert ((got - x.float()).abs() <= EPS[dtype] * x.float().abs() + 1e-4 * largest).all()
    for x in (quantized.q, quantized.k, quantized.v):
        assert x.dtype == dtype and x.is_contiguous()


@DTYPES
def test_one_scale_per_batch_and_key_head(dtype: torch.dtype) -> None:
    q, k, v = make()
    q[1, :, 2:] *= 100.0
    k[0, :, 1] *= 0.01
    quantized = attnsmith.quantize_fp8(q, k, v, dtype=dtype)
    most = torch.finfo(dtype).max
    torch.testing.assert_close(quantized.q_descale, q.unflatten(2, (2, 2)).abs().amax(dim=(1, 3, 4)) / most)
    torch.testing.assert_close(quantized.k_descale, k.abs().amax(dim=(1, 3)) / most)
    torch.testing.assert_close(quantized.v_descale, v.abs().amax(dim=(1, 3)) / most)
    for x in (quantized.q.unflatten(2, (2, 2)).flatten(3), quantized.k, quantized.v):
        assert (x.float().abs().amax(dim=(1, 3)) == most).all()


def test_per_tensor_has_one_scale() -> None:
    inputs = make()
    quantized = attnsmith.quantize_fp8(*inputs, per_tensor=True)
    for x, descale in zip(inputs, (quantized.q_descale, quantized.k_descale, quantized.v_descale), strict=True):
        torch.testing.assert_close(descale, (x.abs().max() / 448).expand(2, 2))


def test_the_result_is_the_arguments_of_attention() -> None:
    quantized = attnsmith.quantize_fp8(*make())
    names = ["q", "k", "v", "q_descale", "k_descale", "v_descale"]
    assert list(dict(**quantized)) == names
    with pytest.raises(KeyError):
        quantized["keys"]
    with pytest.raises(AttributeError):
        quantized.q = quantized.k  # type: ignore[misc]


@DTYPES
@pytest.mark.parametrize("incoherent", [False, True], ids=["plain", "incoherent"])
@pytest.mark.parametrize("col", [False, True], ids=["row", "col"])
def test_attention_of_the_result_is_that_of_the_inputs(dtype: torch.dtype, incoherent: bool, col: bool) -> None:
    inputs = make(d=72)
    quantized = attnsmith.quantize_fp8(*inputs, dtype=dtype, incoherent=incoherent, v_is_col_major=col)
    out = attnsmith.flash_attn_func(**quantized, causal=True)
    ref, _ = reference.attention(*inputs, causal=True)
    assert out.dtype == torch.bfloat16
    assert (out - ref).square().mean().sqrt() < EPS[dtype] * ref.square().mean().sqrt()


def test_a_rotation_keeps_the_scores() -> None:
    q, k, v = make(d=72)
    rotation = attnsmith.incoherent_rotation(72, 5)
    ref, ref_lse = reference.attention(q, k, v)
    out, lse = reference.attention(q @ rotation, k @ rotation, v)
    torch.testing.assert_close(out, ref, rtol=0, atol=1e-5)
    torch.testing.assert_close(lse, ref_lse, rtol=0, atol=1e-5)


def test_the_rotation_is_the_public_one_of_the_seed() -> None:
    q, k, v = make()
    rotation = attnsmith.incoherent_rotation(40, 7)
    got = attnsmith.quantize_fp8(q, k, v, incoherent=True, seed=7)
    wanted = attnsmith.quantize_fp8(q @ rotation, k @ rotation, v)
    assert all(torch.equal(got[name].float(), wanted[name].float()) for name in got.keys())  # noqa: SIM118
    other = attnsmith.quantize_fp8(q, k, v, incoherent=True, seed=8)
    assert not torch.equal(got.q.float(), other.q.float()) and torch.equal(got.v.float(), other.v.float())


def test_column_major_v() -> None:
    q, k, v = make()
    row, col = (attnsmith.quantize_fp8(q, k, v, v_is_col_major=is_col).v for is_col in (False, True))
    assert torch.equal(row.float(), col.float())
    batch_stride, key_stride, head_stride, dim_stride = col.stride()
    assert key_stride == 1 and all(stride % 16 == 0 for stride in (batch_stride, head_stride, dim_stride))


@DTYPES
@pytest.mark.parametrize("incoherent", [False, True], ids=["plain", "incoherent"])
def test_nan_stays_nan_and_spoils_no_scale(dtype: torch.dtype, incoherent: bool) -> None:
    q, k, v = make()
    clean = attnsmith.quantize_fp8(q, k, v, dtype=dtype, incoherent=incoherent)
    rotated_rows = [x.clone() for x in (q, k)]
    q[0, 3, 1, 5], k[1, 4, 0, 2], v[0, 6, 1, 3] = NAN, NAN, NAN
    got = attnsmith.quantize_fp8(q, k, v, dtype=dtype, incoherent=incoherent)
    rows = (got.q.float()[0, 3, 1], got.k.float()[1, 4, 0])
    assert all(row.isnan().all() if incoherent else row.isnan().sum() == 1 for row in rows)
    assert got.v.float().isnan().nonzero().tolist() == [[0, 6, 1, 3]]
    assert all(torch.isfinite(x).all() for x in (got.q_descale, got.k_descale, got.v_descale))
    assert got.q.float().isnan().sum() == (40 if incoherent else 1)
    assert torch.equal(got.q.float()[1], clean.q.float()[1]) and rotated_rows[0].isfinite().all()


@pytest.mark.parametrize("dtype,becomes_nan", [(E4M3, True), (E5M2, False)], ids=["e4m3", "e5m2"])
@pytest.mark.parametrize("bad", [INF, -INF])
def test_infinity_is_not_clipped(dtype: torch.dtype, becomes_nan: bool, bad: float) -> None:
    q, k, v = make()
    v[0, 6, 1, 3] = bad
    got = attnsmith.quantize_fp8(q, k, v, dtype=dtype)
    value = float(got.v.float()[0, 6, 1, 3])
    assert math.isnan(value) if becomes_nan else value == bad
    assert torch.isfinite(got.v_descale).all()


def finite_numbers(dtype: torch.dtype) -> list[float]:
    """By byte, from 0: what the format's definition says, e4m3 of bias 7 and e5m2 of bias 15."""
    mantissa_bits, bias, count = (3, 7, 0x7F) if dtype == E4M3 else (2, 15, 0x7C)
    steps = 1 << mantissa_bits
    numbers = []
    for byte in range(count):
        exponent, mantissa = divmod(byte, steps)
        scale = 2.0 ** (max(exponent, 1) - bias - mantissa_bits)
        numbers.append((mantissa + steps * (exponent > 0)) * scale)
    return numbers


@DTYPES
def test_fp8_01_bytes_are_the_formats_own(dtype: torch.dtype) -> None:
    """Nearest, ties to even: between every two neighbours and on every tie, with the largest number as the scale."""
    numbers = torch.tensor(finite_numbers(dtype), dtype=torch.float64)
    middles = (numbers[1:] + numbers[:-1]) / 2
    shares = torch.linspace(0, 1, 9, dtype=torch.float64)
    values = torch.cat([numbers, *(numbers[:-1] + (numbers[1:] - numbers[:-1]) * share for share in shares)])
    below = torch.searchsorted(middles, values)
    tie = middles[below.clamp_max(len(middles) - 1)] == values
    wanted = torch.where(tie & (below % 2 == 1), below + 1, below)
    x = torch.cat([values, -values, torch.tensor([NAN, INF, -INF])]).float().reshape(1, -1, 1, 1)
    got = attnsmith.quantize_fp8(x, x, x, dtype=dtype)
    assert (got.q_descale == 1).all()
    found = got.v.view(torch.uint8).flatten()
    assert torch.equal(found[: len(values)].long(), wanted)
    assert torch.equal(found[len(values) : -3].long(), wanted + 128)
    nan, positive, negative = got.v.float().flatten()[-3:].tolist()
    assert math.isnan(nan)
    assert (positive, negative) == (INF, -INF) if dtype == E5M2 else math.isnan(positive) and math.isnan(negative)


@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-38, 3e38])
def test_ends_of_the_range(value: float) -> None:
    """Zeros stay zeros with descale 1; neither a tiny nor a huge tensor overflows its scale."""
    x = torch.full((1, 4, 1, 16), value)
    got = attnsmith.quantize_fp8(x, x, x)
    assert torch.isfinite(got.k.float()).all()
    if value == 0.0:
        assert (got.k.float() == 0).all() and (got.k_descale == 1).all()
    else:
        assert got.k_descale >= torch.finfo(torch.float32).tiny
        torch.testing.assert_close(got.k.double() * got.k_descale.double(), x.double(), rtol=0.07, atol=1e-40)


@pytest.mark.parametrize("shape", [(0, 4, 2, 8), (2, 0, 2, 8), (2, 4, 0, 8)], ids=["b0", "s0", "h0"])
@pytest.mark.parametrize("incoherent", [False, True], ids=["plain", "incoherent"])
def test_empty(shape: tuple[int, ...], incoherent: bool) -> None:
    x = torch.ones(shape)
    got = attnsmith.quantize_fp8(x, x, x, incoherent=incoherent, v_is_col_major=True)
    assert got.q.shape == got.v.shape == shape and (got.q_descale == 1).all()
    assert got.q_descale.shape == (shape[0], shape[2])
    assert attnsmith.flash_attn_func(**got).shape == shape


def test_neither_autograd_nor_autocast_matters() -> None:
    inputs = make()
    wanted = attnsmith.quantize_fp8(*inputs, incoherent=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = attnsmith.quantize_fp8(*(x.requires_grad_() for x in inputs), incoherent=True)
    assert all(torch.equal(got[name].float(), wanted[name].float()) for name in got.keys())  # noqa: SIM118
    assert not any(got[name].requires_grad for name in got.keys())  # noqa: SIM118


@pytest.mark.parametrize(
    "changes,error,message",
    [
        ({"dtype": torch.float16}, TypeError, "dtype torch.float16"),
        ({"q": torch.ones(2, 9, 4, 40, dtype=torch.int8)}, TypeError, "q of dtype torch.int8"),
        ({"q": torch.ones(2, 9, 4, 40).to(E4M3)}, TypeError, "q of dtype torch.float8"),
        ({"q": torch.ones(2, 9, 3, 40)}, ValueError, "3 query heads"),
        ({"v": torch.ones(2, 12, 2, 24)}, ValueError, "seqlen"),
        ({"q": torch.ones(9, 4, 40)}, ValueError, "q with 3 dims"),
        ({"seed": -1, "incoherent": True}, ValueError, "seed -1"),
        ({"seed": 1.5, "incoherent": True}, TypeError, "seed 1.5"),
    ],
)
def test_refused(changes: Mapping[str, Any], error: type[Exception], message: str) -> None:
    q, k, v = make()
    with pytest.raises(error, match=message):
        attnsmith.quantize_fp8(**{"q": q, "k": k, "v": v, **changes})


# Rotations


@pytest.mark.parametrize("head_dim", range(1, 257))
def test_rotations_are_orthogonal(head_dim: int) -> None:
    rotation = attnsmith.incoherent_rotation(head_dim, head_dim).double()
    assert (rotation @ rotation.T - torch.eye(head_dim)).abs().max() < 1e-6


@pytest.mark.parametrize("head_dim", [1, 2, 16, 24, 40, 64, 72, 80, 96, 128, 160, 192, 256])
def test_hadamard_rotations_spread_evenly(head_dim: int) -> None:
    rotation = attnsmith.incoherent_rotation(head_dim)
    torch.testing.assert_close(rotation.abs(), torch.full_like(rotation, head_dim**-0.5))


@pytest.mark.parametrize("head_dim", range(8, 257, 8))
def test_no_outlier_stays_where_it_was(head_dim: int) -> None:
    """No entry of the rotation, which is what a unit outlier becomes, is far above the even share."""
    assert attnsmith.incoherent_rotation(head_dim).abs().max() * head_dim**0.5 < 5.0


def test_seeds_draw_signs() -> None:
    first, second = attnsmith.incoherent_rotation(64, 0), attnsmith.incoherent_rotation(64, 1)
    assert torch.equal(first, attnsmith.incoherent_rotation(64)) and not torch.equal(first, second)
    flipped = (first == -second).all(dim=1)
    assert torch.equal(first.abs(), second.abs()) and 10 < flipped.sum() < 54
    first.zero_()
    assert (attnsmith.incoherent_rotation(64) != 0).all()


@pytest.mark.parametrize("head_dim,error", [(0, ValueError), (257, ValueError), (64.0, TypeError), (True, TypeError)])
def test_rotations_of_no_head_dim(head_dim: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="head_dim"):
        attnsmith.incoherent_rotation(head_dim)


# What it is for


def test_incoherent_processing_halves_the_error_of_outliers() -> None:
    """In the emulation: rounded inputs, P rounded to e4m3 as the kernels round it."""
    errors = outlier_errors(lambda quantized: reference.same_dtype_attention(**quantized), E4M3)
    assert errors.gain >= 2.0, errors
