# SPDX-License-Identifier: Apache-2.0
"""NaN and infinities on the SM90 forward kernels, 16-bit: what sees them shows them, what does not stays right;
rows that see nothing.

Kernels are launched raw, and once through the API. Not responsible for FP8 (test_fwd_sm90_fp8.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import attnsmith
import pytest
import torch
from attnsmith import reference
from attnsmith.tools.check import torch_dtype

from tests.sim.extreme_sm90 import (
    CAUSAL,
    INF,
    NAN,
    SERIAL,
    SKIP,
    SPECS,
    assert_same_kinds,
    attend,
    dtype_of,
    options_of,
)
from tests.sim.fwd_kernel import assert_within_rounding, normal
from tests.sim.fwd_sm90_kernel import Sm90Ptx, one_torch_thread, ptx_of
from tests.sim.test_fwd_sm80_numerics import POISON, random_qkv


@pytest.fixture(autouse=True)
def few_threads() -> Iterator[None]:
    with one_torch_thread():
        yield


@pytest.fixture(params=SPECS)
def kernel(request: pytest.FixtureRequest) -> Sm90Ptx:
    return ptx_of(SPECS[request.param])


@pytest.fixture(params=CAUSAL)
def causal_kernel(request: pytest.FixtureRequest) -> Sm90Ptx:
    return ptx_of(SPECS[request.param])


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


def test_a_scale_of_zero_keeps_nan(kernel: Sm90Ptx) -> None:
    """0 times NaN or infinity is NaN."""
    q, k, v = random_qkv(kernel.spec.name, 100, 200)
    q[:, 5, :, 9], q[:, 60, :, 0] = NAN, INF
    result = attend(kernel, q, k, v, 0.0)
    assert_same_kinds(result, reference.attention(q, k, v, softmax_scale=0.0, **options_of(kernel)))
