# SPDX-License-Identifier: Apache-2.0
"""Failures that people reported of other implementations, as small inputs with the right value, on simulated GPUs of
every kernel family.

Each test is named by the report's id; docs/field-reports.md says where each came from and what is covered where. The
output is poisoned with NaN before every call, so an element that no kernel wrote shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import attnsmith
import pytest
import torch
from attnsmith import reference
from torch import Tensor

BF16, FP16 = torch.bfloat16, torch.float16


@pytest.fixture(autouse=True, params=["a100", "h100"])
def gpu(request: pytest.FixtureRequest) -> Iterator[str]:
    """The GPU that each test runs on; its family's kernels serve it."""
    with attnsmith.simulate(request.param):
        yield request.param


def normal(*shape: int, dtype: torch.dtype = BF16, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def qkv(
    seqlen_q: int,
    seqlen_k: int,
    *,
    batch: int = 1,
    nheads: int = 2,
    nheads_k: int | None = None,
    head_dim: int = 64,
    head_dim_v: int | None = None,
    dtype: torch.dtype = BF16,
) -> tuple[Tensor, Tensor, Tensor]:
    heads_k = nheads_k or nheads
    q = normal(batch, seqlen_q, nheads, head_dim, dtype=dtype, seed=1)
    k = normal(batch, seqlen_k, heads_k, head_dim, dtype=dtype, seed=2)
    v = normal(batch, seqlen_k, heads_k, head_dim_v or head_dim, dtype=dtype, seed=3)
    return q, k, v


def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    out = torch.full((*q.shape[:3], v.shape[-1]), float("nan"), dtype=q.dtype)
    result, lse, _ = attnsmith.flash_attn_func(q, k, v, return_attn_probs=True, out=out, **options)
    return result, lse


def assert_close_to_reference(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Run, judge out by the tolerance rule and lse within 1e-3 relative; returns (out, lse)."""
    out, lse = attend(q, k, v, **options)
    ref_out, ref_lse = reference.attention(q, k, v, **options)
    found = reference.compare(out, ref_out, reference.same_dtype_attention(q, k, v, **options))
    assert found.ok, f"out: {found}"
    found_lse = reference.compare_lse(lse, ref_lse)
    assert found_lse.ok, f"lse: {found_lse}"
    return out, lse


def running_mean(v: Tensor, counts: list[int], groups: int = 1) -> Tensor:
    """Row i is the mean of the first counts[i] values, in fp64, expanded to query heads."""
    sums = v.double().cumsum(dim=1)
    means = torch.stack([sums[:, n - 1] / n for n in counts], dim=1)
    return means.repeat_interleave(groups, dim=2)


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["huge-positive-score", "huge-negative-score"])
@pytest.mark.parametrize("seqlen", [1, 129])
def test_num_01_very_large_finite_values_stay_finite(seqlen: int, sign: float) -> None:
    q = torch.full((1, seqlen, 1, 64), 133120.0, dtype=BF16)
    out, lse = attend(q, q * sign, q)
    assert (out == 133120.0).all()
    assert torch.isfinite(lse).all()
    assert lse.double().allclose(torch.tensor(sign * 64 * 133120.0**2 / 8, dtype=torch.float64), rtol=1e-3)


@pytest.mark.parametrize("seqlen_q", [88, 60], ids=["long-tile", "short-tile"])
def test_num_03_masked_first_block_with_negative_logits(seqlen_q: int) -> None:
    q = torch.ones(1, seqlen_q, 14, 64, dtype=BF16)
    k = torch.full((1, 448, 2, 64), -25.0, dtype=BF16)
    v = normal(1, 448, 2, 64)
    out, lse = assert_close_to_reference(q, k, v, causal=True)
    counts = [448 - seqlen_q + 1 + i for i in range(seqlen_q)]
    assert (out.double() - running_mean(v, counts, groups=7)).abs().max() < 2e-3
    expected = torch.tensor([-200 + math.log(n) for n in counts], dtype=torch.float64)
    assert (lse.double() - expected).abs().max() < 1e-3


def test_num_04_future_key_with_larger_logit_does_not_leak() -> None:
    q = torch.full((1, 32, 4, 128), 8.0 / 128, dtype=BF16)
    k = torch.full((1, 32, 1, 128), -8.0, dtype=BF16)
    k[:, 16:] = 64.0
    v = normal(1, 32, 1, 128)
    out, _ = assert_close_to_reference(q, k, v, causal=True)
    assert (out[:, :16].double() - running_mean(v, list(range(1, 17)), groups=4)).abs().max() < 1e-2
    second_half = running_mean(v[:, 16:], list(range(1, 17)), groups=4)
    assert (out[:, 16:].double() - second_half).abs().max() < 1e-2
    k[:, 16:], v[:, 16:] = 3.0, -7.0
    perturbed, _ = attend(q, k, v, causal=True)
    assert torch.equal(out[:, :16], perturbed[:, :16])


@pytest.mark.parametrize("seqlen_k", [32767, 32768, 33728, 65537])
def test_num_05_key_lengths_beyond_16_bits(seqlen_k: int) -> None:
    zeros = torch.zeros(1, seqlen_k, 1, 64, dtype=FP16)
    q = torch.zeros(1, 4, 1, 64, dtype=FP16)
    out, lse = attend(q, zeros, torch.ones_like(zeros))
    assert (out.float() - 1).abs().max() <= 1e-3
    assert (lse - math.log(seqlen_k)).abs().max() <= 1e-4
    ramp = (torch.arange(seqlen_k) / seqlen_k).to(FP16).reshape(1, -1, 1, 1).expand_as(zeros)
    out, _ = attend(q, zeros, ramp)
    assert (out.float() - (seqlen_k - 1) / (2 * seqlen_k)).abs().max() <= 1e-3


@pytest.mark.parametrize("scale", [0.0, -0.5, -1.0])
def test_num_06_softmax_scale_of_zero_and_below(scale: float) -> None:
    q, k, v = qkv(130, 130)
    out, lse = assert_close_to_reference(q, k, v, causal=True, softmax_scale=scale)
    if scale == 0.0:
        expected = torch.arange(1, 131, dtype=torch.float64).log()
        assert (lse.double() - expected).abs().max() < 1e-4
        assert not torch.equal(out, attend(q, k, v, causal=True)[0])
    else:
        flipped, flipped_lse = attend(-q, k, v, causal=True, softmax_scale=-scale)
        assert torch.equal(out, flipped)
        assert torch.equal(lse, flipped_lse)


@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(5, 2), (2048, 1024)])
def test_mask_01_more_queries_than_keys(seqlen_q: int, seqlen_k: int) -> None:
    q, k, v = qkv(seqlen_q, seqlen_k, nheads=1)
    out, _ = assert_close_to_reference(q, k, v, causal=True)
    assert (out[:, : seqlen_q - seqlen_k] == 0).all()
    assert (out[:, seqlen_q - seqlen_k :] != 0).any(dim=-1).all()


@pytest.mark.parametrize("causal", [False, True])
def test_mask_02_lse_of_a_row_that_sees_nothing(causal: bool) -> None:
    q, k, v = qkv(5, 2)
    out, lse = assert_close_to_reference(q, k, v, causal=True)
    assert (lse[..., :3] == -math.inf).all() and torch.isfinite(lse[..., 3:]).all()
    assert (out[:, :3] == 0).all()
    out, lse = attend(q, k[:, :0], v[:, :0], causal=causal)
    assert (lse == -math.inf).all()
    assert (out == 0).all()


@pytest.mark.parametrize(("seqlen_q", "seqlen_k", "flash", "sdpa"), [(1, 8, [8], [1]), (2, 5, [4, 5], [1, 2])])
def test_mask_03_causal_alignment(seqlen_q: int, seqlen_k: int, flash: list[int], sdpa: list[int]) -> None:
    q, k, _ = qkv(seqlen_q, seqlen_k, nheads=1)
    v = torch.eye(seqlen_k, 64, dtype=BF16).reshape(1, seqlen_k, 1, 64)
    out, _ = attend(q, k, v, causal=True)
    assert (out != 0).sum(dim=-1).flatten().tolist() == flash
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = attnsmith.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert (out != 0).sum(dim=-1).flatten().tolist() == sdpa


@pytest.mark.parametrize("shape", [(0, 3952, 10, 64), (2, 0, 16, 128)], ids=["shp-01-batch-0", "shp-02-seqlen-q-0"])
@pytest.mark.parametrize("causal", [False, True])
def test_shp_01_02_empty_problems_launch_nothing(shape: tuple[int, ...], causal: bool) -> None:
    q = normal(*shape, dtype=FP16)
    k = normal(shape[0], 16, *shape[2:], dtype=FP16)
    out, lse, _ = attnsmith.flash_attn_func(q, k, k, causal=causal, return_attn_probs=True)
    assert out.shape == q.shape and out.dtype == q.dtype
    assert lse.shape == (shape[0], shape[2], shape[1])


@pytest.mark.parametrize("head_dim", [1, 33, 40, 59, 72, 111])
def test_shp_04_odd_head_dims_keep_their_default_scale(head_dim: int) -> None:
    q, k, v = qkv(130, 130, nheads=1, head_dim=head_dim, dtype=FP16)
    out, lse = assert_close_to_reference(q, k, v)
    assert out.shape[-1] == head_dim
    explicit, explicit_lse = attend(q, k, v, softmax_scale=head_dim**-0.5)
    assert torch.equal(out, explicit) and torch.equal(lse, explicit_lse)


@pytest.mark.parametrize(("head_dim", "head_dim_v"), [(128, 96), (128, 72), (192, 128), (64, 128)])
def test_shp_09_value_head_dim_differs(head_dim: int, head_dim_v: int) -> None:
    q, k, v = qkv(200, 200, nheads=1, head_dim=head_dim, head_dim_v=head_dim_v)
    out, _ = assert_close_to_reference(q, k, v)
    ref, _ = reference.attention(q, k, v)
    allowed = reference.tolerance(ref, reference.same_dtype_attention(q, k, v))
    per_column = (out.double() - ref).abs().amax(dim=(0, 1, 2))
    assert (per_column <= allowed).all(), f"columns {(per_column > allowed).nonzero().flatten().tolist()}"


@pytest.mark.parametrize(("head_dim", "seqlen"), [(8, 128), (16, 128), (32, 128), (32, 1024)])
@pytest.mark.parametrize("causal", [False, True])
def test_shp_11_small_head_dims(head_dim: int, seqlen: int, causal: bool) -> None:
    assert_close_to_reference(*qkv(seqlen, seqlen, nheads=1, head_dim=head_dim), causal=causal)


def test_shp_12_batches_beyond_the_grid_limit() -> None:
    """No key, so that each of the tiles costs little: every row must still be written, as 0 with lse -inf."""
    batch = 65537
    q = torch.ones(batch, 4, 1, 32, dtype=FP16)
    k = torch.ones(batch, 0, 1, 32, dtype=FP16)
    out, lse = attend(q, k, k)
    assert (out == 0).all() and (lse == -math.inf).all()
    launch = attnsmith.last_launch()
    assert launch is not None and launch.grid == batch


def test_shp_14_strides_beyond_2_to_the_31_elements() -> None:
    """Two batches 2^31 + 64 elements apart, in memory that is reserved but, between them, never touched."""
    q, k, v = qkv(70, 70, batch=2, dtype=FP16)
    expected, expected_lse = attend(q, k, v, causal=True)
    far = 2**31 + 64
    spread = []
    for x in (q, k, v):
        reserved = torch.empty(far + x[0].numel(), dtype=FP16)
        view = torch.as_strided(reserved, x.shape, (far, *x.stride()[1:]))
        spread.append(view.copy_(x))
    out, lse = attend(*spread, causal=True)
    assert torch.equal(out, expected) and torch.equal(lse, expected_lse)
    result = torch.as_strided(torch.empty(far + q[0].numel(), dtype=FP16), q.shape, (far, *q.stride()[1:]))
    attnsmith.flash_attn_func(q, k, v, causal=True, out=result.fill_(float("nan")))
    assert torch.equal(result, expected)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_lay_03_slices_of_a_fused_projection(head_dim: int) -> None:
    packed = normal(1, 100, 3, 2, head_dim)
    expected, expected_lse = attend(*(x.contiguous() for x in packed.unbind(2)))
    out, lse = attend(*packed.unbind(2))
    assert torch.equal(out, expected) and torch.equal(lse, expected_lse)
    flat = packed.reshape(1, 100, -1)
    split = [x.unflatten(-1, (2, head_dim)) for x in flat.split(2 * head_dim, dim=-1)]
    assert not split[1].is_contiguous()
    assert torch.equal(attend(*split)[0], expected)


@pytest.mark.parametrize("seqlen", [62, 128])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_lay_05_transposed_inputs(seqlen: int, head_dim: int) -> None:
    q, k, v = qkv(seqlen, seqlen, head_dim=head_dim)
    expected, _ = attend(q, k, v)
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert torch.equal(attend(*turned)[0], expected)
    assert torch.equal(attend(q, k, turned[2])[0], expected)


def test_lay_07_last_dimension_not_contiguous() -> None:
    wide = normal(1, 70, 2, 128, seed=4)
    _, k, v = qkv(70, 70)
    q = wide[..., ::2]
    assert torch.equal(attend(q, k, v)[0], attend(q.contiguous(), k, v)[0])
    turned = v.transpose(2, 3).contiguous().transpose(2, 3)
    assert turned.stride(-1) != 1
    assert torch.equal(attend(q.contiguous(), k, turned)[0], attend(q.contiguous(), k, v)[0])


def test_lay_07_arbitrary_strides_of_dimensions_of_size_one() -> None:
    q, k, v = qkv(1, 70, nheads=1)
    expected, _ = attend(q, k, v)
    odd = torch.as_strided(q, q.shape, (7, 3, 5, 1))
    assert torch.equal(attend(odd, k, v)[0], expected)
    one = qkv(5, 5, head_dim=1)
    strided = [torch.as_strided(x, x.shape, (*x.stride()[:3], 9)) for x in one]
    assert torch.equal(attend(*strided)[0], attend(*one)[0])


def test_grd_07_grad_free_paths_give_the_same_forward() -> None:
    q, k, v = qkv(40, 40, head_dim=59)
    expected, _ = attend(q, k, v)
    assert expected.shape[-1] == 59
    with torch.no_grad():
        assert torch.equal(attend(q, k, v)[0], expected)
    with torch.inference_mode():
        assert torch.equal(attend(q, k, v)[0], expected)


@pytest.mark.parametrize(("seqlen_q", "seqlen_k", "head_dim"), [(97, 203, 64), (128, 97, 128)])
def test_det_05_twenty_random_schedules_give_the_same_bits(
    gpu: str, seqlen_q: int, seqlen_k: int, head_dim: int
) -> None:
    q, k, v = qkv(seqlen_q, seqlen_k, nheads=1, head_dim=head_dim)
    expected, expected_lse = assert_close_to_reference(q, k, v)
    for seed in range(20):
        with attnsmith.simulate(gpu, seed=seed, schedule="random", async_mode="random"):
            out, lse = attend(q, k, v)
        assert torch.equal(out, expected) and torch.equal(lse, expected_lse), f"seed {seed}"


@pytest.mark.parametrize("seqlen_k", [255, 256, 257, 513])
def test_det_08_one_query_and_one_key_past_a_block(seqlen_k: int) -> None:
    assert_close_to_reference(*qkv(1, seqlen_k, nheads=1, head_dim=32))


# FP8: Hopper only

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
on_h100 = pytest.mark.parametrize("gpu", ["h100"], indirect=True)


def attend_fp8(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Run, and judge out by the tolerance rule, whose yardstick rounds P to e4m3 too."""
    out = attnsmith.flash_attn_func(q, k, v, **options)
    ref, _ = reference.attention(q, k, v, **options)
    found = reference.compare(out, ref, reference.same_dtype_attention(q, k, v, **options))
    assert found.ok, f"out: {found}"
    return out


@on_h100
def test_fp8_03_descales_are_linear_in_the_kernel() -> None:
    q, k, v = (x.to(E4M3) for x in qkv(70, 200, head_dim=128))
    one = torch.ones(1, 1).expand(1, 2)
    plain = attend_fp8(q, k, v, causal=True)
    assert torch.equal(attend_fp8(q, k, v, causal=True, q_descale=one, k_descale=one, v_descale=one), plain)
    assert torch.equal(attend_fp8(q, k, v, causal=True, v_descale=2 * one), 2 * plain)
    scaled = attend_fp8(q, k, v, causal=True, q_descale=0.5 * one, k_descale=4 * one)
    assert torch.equal(scaled, attend_fp8(q, k, v, causal=True, softmax_scale=2 * 128**-0.5))
    per_head = torch.tensor([[1.0, -3.0]])
    assert torch.equal(attend_fp8(q, k, v, causal=True, k_descale=per_head)[:, :, 0], plain[:, :, 0])


@on_h100
@pytest.mark.parametrize(("dtype", "seqlen_q"), [(E4M3, 1), (E4M3, 200), (E5M2, 200)], ids=str)
@pytest.mark.parametrize(("head_dim", "head_dim_v"), [(192, 128), (96, 96), (64, 64)])
def test_fp8_07_the_last_columns_count(head_dim: int, head_dim_v: int, dtype: torch.dtype, seqlen_q: int) -> None:
    """Large values in the last 16 columns only, of q and k, then of v."""
    q, k, v = (x.to(dtype) for x in qkv(seqlen_q, 200, nheads=1, head_dim=head_dim, head_dim_v=head_dim_v))
    plain = attend_fp8(q, k, v)
    large_q, large_k, large_v = q.clone(), k.clone(), v.clone()
    large_q[..., -16:] = torch.tensor(4.0).to(dtype)
    large_k[:, 7, :, -16:] = torch.tensor(6.0).to(dtype)
    one_key = attend_fp8(large_q, large_k, v)
    assert (one_key.float() - v[:, 7].float()).abs().max() < 0.1 < (plain.float() - one_key.float()).abs().max()
    large_v[..., -16:] = torch.tensor(100.0).to(dtype)
    out = attend_fp8(q, k, large_v)
    assert torch.equal(out[..., :-16], plain[..., :-16])
    assert (out[..., -16:].float() - large_v[0, 0, 0, -1].float()).abs().max() < 2
