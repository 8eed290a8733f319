# SPDX-License-Identifier: Apache-2.0
"""Extreme numbers on the SM80 forward kernels: huge scores, scales, growing rows, infinities, NaN and where it may go.

Each case runs on one kernel that is pinned, so that the phase which the case aims at is the one that runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import attnsmith
import pytest
import torch
from attnsmith import reference
from torch import Tensor

from tests.sim.fwd_kernel import (
    DTYPES,
    assert_close_to_reference,
    assert_within_rounding,
    attend,
    normal,
    pinned,
    spec_named,
)

FULL, CAUSAL = "fwd_sm80_bf16_hdim64_full_64x64_w4_s1", "fwd_sm80_bf16_hdim64_causal_64x64_w4_s1"
FULL_S2, CAUSAL_S2 = "fwd_sm80_fp16_hdim64_full_128x64_w4_s2", "fwd_sm80_fp16_hdim64_causal_128x64_w4_s2"
KERNELS = [FULL, CAUSAL, FULL_S2, CAUSAL_S2]
D = 64
BLOCK_N = 64
NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """The reference's tensors are small: on busy cores its threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    with pinned(spec_named(request.param)):
        yield request.param


@pytest.fixture(params=[CAUSAL, CAUSAL_S2])
def causal_kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    with pinned(spec_named(request.param)):
        yield request.param


def dtype_of(kernel: str) -> torch.dtype:
    return DTYPES["bf16" if "bf16" in kernel else "fp16"]


def options_of(kernel: str) -> dict[str, bool]:
    return {"causal": "causal" in kernel}


def random_qkv(kernel: str, seqlen_q: int, seqlen_k: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((1, seqlen_q, 2, D), (1, seqlen_k, 1, D), (1, seqlen_k, 1, D))
    q, k, v = (normal(*shape, dtype=dtype_of(kernel), seed=3 * seed + i) for i, shape in enumerate(shapes))
    return q, k, v


def with_scores(kernel: str, rows: Tensor, keys: Tensor, seed: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    """q and k whose score of row i and key j is exactly rows[i] * keys[j] (both rounded to 16 bits); v random."""
    dtype = dtype_of(kernel)
    q = torch.zeros(1, len(rows), 2, D, dtype=dtype)
    k = torch.zeros(1, len(keys), 1, D, dtype=dtype)
    q[0, :, :, 5] = rows.to(dtype)[:, None]
    k[0, :, :, 5] = keys.to(dtype)[:, None]
    return q, k, normal(1, len(keys), 1, D, dtype=dtype, seed=seed)


# Huge scores

LARGE = {"bf16": [2.0**10, 2.0**13, 2.0**17], "fp16": [2.0**10, 2.0**13, 2.0**15]}


@pytest.mark.parametrize("seqlen_k", [65, 128, 257, 300])
def test_equal_huge_scores_masked_then_unmasked(kernel: str, seqlen_k: int) -> None:
    """All scores of a row are equal, so out is the mean of the seen values; base has 40 significant bits."""
    name = "bf16" if "bf16" in kernel else "fp16"
    for large in LARGE[name]:
        for step in (0, 40, 80, 112):
            rows = torch.full((128,), large * (1 + step / 128))
            keys = torch.full((seqlen_k,), large * (1 + (step // 2 + 1) / 128))
            q, k, v = with_scores(kernel, rows, keys)
            result = attend(q, k, v, **options_of(kernel))
            assert_within_rounding(q, k, v, result, **options_of(kernel))


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["positive", "negative"])
@pytest.mark.parametrize("row", [0, 77, 127])
def test_one_huge_row_among_ordinary_ones(kernel: str, row: int, sign: float) -> None:
    """The tile is done again for one row; the others must stay right, and every block of a long row counts."""
    q, k, v = random_qkv(kernel, 128, 333)
    q[:, row] = 0
    q[:, row, :, 5] = 2.0**14
    k[..., 5] = sign * 2.0**10
    k[:, 100:, :, 5] = sign * (2.0**10 + 8)
    result = attend(q, k, v, **options_of(kernel))
    assert_within_rounding(q, k, v, result, **options_of(kernel))


@pytest.mark.parametrize("position", ["first-visited", "masked-only", "last-visited"])
def test_one_huge_key(kernel: str, position: str) -> None:
    """One key takes all the weight of every row that sees it, whichever block it is in."""
    index = {"first-visited": 255, "masked-only": 300, "last-visited": 3}[position]
    q, k, v = random_qkv(kernel, 128, 333)
    q[..., 5] = 2.0**10
    k[..., 5] = 0
    k[:, index, :, 5] = 2.0**10
    result = attend(q, k, v, **options_of(kernel))
    assert_within_rounding(q, k, v, result, **options_of(kernel))


@pytest.mark.parametrize("name", [FULL, CAUSAL])
def test_scores_that_leave_fp32(name: str) -> None:
    """bf16 products beyond fp32 are infinite: +inf makes a row NaN, -inf in all keys makes it empty, as in PyTorch."""
    q, k, v = random_qkv(name, 128, 200)
    q[:, 3] = q[:, 4] = 0
    q[:, 3, :, 5], q[:, 4, :, 5] = 1e30, -1e30
    k[..., 5] = 1e30
    with pinned(spec_named(name)):
        out, lse = attend(q, k, v, **options_of(name))
    assert out[0, 3].isnan().all() and lse[0, :, 3].isnan().all()
    assert (out[0, 4] == 0).all() and (lse[0, :, 4] == -INF).all()
    ordinary = [i for i in range(128) if i not in (3, 4)]
    one_row = slice(5, 128)
    assert torch.isfinite(out[0, ordinary]).all() and torch.isfinite(lse[0][:, ordinary]).all()
    ref, _ = reference.attention(q[:, one_row], k, v, **options_of(name))
    assert (out[:, one_row].double() - ref).abs().max() < 0.03


# Scales


@pytest.mark.parametrize("scale", [-0.125, -3.0, 0.0, 1e-6, 1e-30, 30.0, -1e4, 1e20, 1e36])
@pytest.mark.parametrize("seqlen_k", [64, 200])
def test_softmax_scale(kernel: str, seqlen_k: int, scale: float) -> None:
    q, k, v = random_qkv(kernel, 128, seqlen_k)
    options = {"softmax_scale": scale, **options_of(kernel)}
    result = attend(q, k, v, **options)
    assert_within_rounding(q, k, v, result, **options)
    if abs(scale) < 1:
        assert_close_to_reference(q, k, v, result, **options)


@pytest.mark.parametrize("scale", [1e-42, 3e38])
def test_softmax_scale_at_the_ends_of_fp32(kernel: str, scale: float) -> None:
    q, k, v = random_qkv(kernel, 128, 200)
    options = {"softmax_scale": scale, **options_of(kernel)}
    out, _ = attend(q, k, v, **options)
    ref, _ = reference.attention(q, k, v, **options)
    assert (out.double() - ref).abs().max() < 0.03


def test_a_negative_scale_is_a_flipped_q(kernel: str) -> None:
    q, k, v = random_qkv(kernel, 130, 333)
    out, lse = attend(q, k, v, softmax_scale=-0.3, **options_of(kernel))
    flipped, flipped_lse = attend(-q, k, v, softmax_scale=0.3, **options_of(kernel))
    assert torch.equal(out, flipped) and torch.equal(lse, flipped_lse)


# Rows whose maximum moves: key blocks are visited from the last to the first

PROFILES = {
    "constant": lambda block: 0.0,
    "total-growth-below-8": lambda block: -0.9 * block,
    "grows-7-per-block": lambda block: -7.0 * block,
    "grows-8-per-block": lambda block: -8.0 * block,
    "grows-9-per-block": lambda block: -9.0 * block,
    "decreases-9-per-block": lambda block: 9.0 * block,
    "grows-200-per-block": lambda block: -200.0 * block,
    "decreases-200-per-block": lambda block: 200.0 * block,
    "jumps-once": lambda block: 100.0 if block == 2 else 0.0,
}
"""Block index -> log2 of its weights."""


@pytest.mark.parametrize("seqlen_k", [512, 500])
@pytest.mark.parametrize("profile", PROFILES)
def test_moving_maximum(kernel: str, profile: str, seqlen_k: int) -> None:
    """Rescaling is lazy: by less than 8 never, by more each time. Every block must keep its share either way."""
    levels = torch.tensor([PROFILES[profile](j // BLOCK_N) for j in range(seqlen_k)])
    jitter = normal(seqlen_k, dtype=torch.float32, seed=11) * 0.25
    q, k, v = with_scores(kernel, torch.ones(128), levels + jitter)
    options = {"softmax_scale": math.log(2), **options_of(kernel)}
    assert_within_rounding(q, k, v, attend(q, k, v, **options), **options)


def test_rows_of_one_tile_move_differently(kernel: str) -> None:
    """One warp's rows grow, stay and fall at once; rescaling is decided for the warp and applied per row."""
    slopes = torch.linspace(-2, 2, 128)[torch.randperm(128, generator=torch.Generator().manual_seed(5))]
    levels = torch.tensor([8.0 * (j // BLOCK_N) for j in range(500)])
    q, k, v = with_scores(kernel, slopes, levels)
    options = {"softmax_scale": math.log(2), **options_of(kernel)}
    assert_within_rounding(q, k, v, attend(q, k, v, **options), **options)


def test_very_low_scores_are_not_lost(kernel: str) -> None:
    """All scores near -1e4 (log2): nothing underflows, since weights are relative to the row's maximum."""
    q, k, v = random_qkv(kernel, 128, 333)
    q[..., 5], k[..., 5] = 256.0, -256.0
    result = attend(q, k, v, **options_of(kernel))
    assert_within_rounding(q, k, v, result, **options_of(kernel))


# NaN and infinity

POISON = {"nan": NAN, "inf": INF, "-inf": -INF}


@pytest.mark.parametrize("seqlen_k", [256, 300])
@pytest.mark.parametrize("key", [0, 63, 128])
@pytest.mark.parametrize("poison", POISON)
@pytest.mark.parametrize("tensor", ["k", "v"])
def test_poison_in_a_seen_key_reaches_every_row_that_sees_it(
    kernel: str, tensor: str, poison: str, key: int, seqlen_k: int
) -> None:
    """All 128 rows see the key, also under the causal mask. It stays out of the other key head."""
    q = normal(1, 128, 2, D, dtype=dtype_of(kernel), seed=1)
    k, v = (normal(1, seqlen_k, 2, D, dtype=dtype_of(kernel), seed=seed) for seed in (2, 3))
    {"k": k, "v": v}[tensor][:, key, 1, 9] = POISON[poison]
    out, lse = attend(q, k, v, **options_of(kernel))
    assert_close_to_reference(q[:, :, :1], k[:, :, :1], v[:, :, :1], (out[:, :, :1], lse[:, :1]), **options_of(kernel))
    ref, ref_lse = reference.attention(q, k, v, **options_of(kernel))
    assert torch.equal(out.isnan(), ref.isnan()) and torch.equal(lse.isnan(), ref_lse.isnan())
    finite = torch.isfinite(ref)
    assert torch.equal(out[~finite & ~ref.isnan()].double(), ref[~finite & ~ref.isnan()])
    assert (out.double() - ref)[finite].abs().max() < 0.03


@pytest.mark.parametrize("poison", POISON)
def test_poison_in_a_query_row_stays_in_that_row(kernel: str, poison: str) -> None:
    q, k, v = random_qkv(kernel, 130, 333)
    q[:, 40, :, 9] = POISON[poison]
    out, lse = attend(q, k, v, **options_of(kernel))
    assert out[:, 40].isnan().all() and lse[:, :, 40].isnan().all()
    others = [i for i in range(130) if i != 40]
    ref, ref_lse = reference.attention(q, k, v, **options_of(kernel))
    assert (out[:, others].double() - ref[:, others]).abs().max() < 0.03
    assert reference.compare_lse(lse[:, :, others], ref_lse[:, :, others]).ok


@pytest.mark.parametrize("poison", POISON)
def test_a_scale_of_zero_keeps_poison_in_its_query_row(kernel: str, poison: str) -> None:
    """0 times NaN or infinity is NaN; every other row is the mean of the values that it sees."""
    q, k, v = random_qkv(kernel, 130, 333)
    q[:, 40, :, 8], q[:, 41, :, 9] = POISON[poison], POISON[poison]  # both halves of a 32-bit word
    options = {"softmax_scale": 0.0, **options_of(kernel)}
    out, lse = attend(q, k, v, **options)
    assert out[:, 40:42].isnan().all() and lse[:, :, 40:42].isnan().all()
    others = [i for i in range(130) if i not in (40, 41)]
    seen = [333 - 130 + i + 1 if options.get("causal") else 333 for i in others]
    mean = torch.stack([v[:, :n].double().mean(1) for n in seen], 1).repeat_interleave(q.shape[2] // v.shape[2], 2)
    assert (out[:, others].double() - mean).abs().max() < 0.01
    assert (lse[:, :, others] - torch.tensor(seen).log()).abs().max() < 1e-5


@pytest.mark.parametrize("seqlen_q,seqlen_k", [(1, 1), (65, 3), (100, 65), (64, 193)])
@pytest.mark.parametrize("poison", POISON)
def test_poison_beyond_the_sequence_is_never_seen(kernel: str, poison: str, seqlen_q: int, seqlen_k: int) -> None:
    """q, k and v are slices of buffers that hold poison before, between heads and after; out's surroundings survive."""
    plain = random_qkv(kernel, seqlen_q, seqlen_k)
    views = []
    for x in plain:
        buffer = torch.full((1, x.shape[1] + 256, x.shape[2] + 2, D + 16), POISON[poison], dtype=x.dtype)
        view = buffer[:, 128 : 128 + x.shape[1], 1:-1, 8:-8]
        views.append(view.copy_(x))
    wanted, wanted_lse = attend(*plain, **options_of(kernel))
    assert torch.isfinite(wanted).all()
    out, lse = attend(*views, **options_of(kernel))
    assert torch.equal(out, wanted) and torch.equal(lse, wanted_lse)


@pytest.mark.parametrize("poison", POISON)
def test_poison_in_a_future_key_is_never_seen(causal_kernel: str, poison: str) -> None:
    """Causal: the scores of keys that a row does not see are replaced, whatever they are."""
    q, k, v = random_qkv(causal_kernel, 128, 200)
    k[:, 150:] = POISON[poison]
    out, lse = attend(q, k, v, causal=True)
    seen = 150 - (200 - 128)
    ref, ref_lse = reference.attention(q[:, :seen], k[:, :150], v[:, :150], causal=True)
    assert (out[:, :seen].double() - ref).abs().max() < 0.03 and reference.compare_lse(lse[:, :, :seen], ref_lse).ok


@pytest.mark.parametrize("poison", POISON)
def test_poison_in_a_future_value_is_never_seen(causal_kernel: str, poison: str) -> None:
    """Causal: 0 times NaN or infinity is NaN, so a weight of 0 alone does not hide a value."""
    q, k, v = random_qkv(causal_kernel, 128, 200)
    seen = 150 - (200 - 128)
    v[:, 150:] = POISON[poison]
    out, lse = attend(q, k, v, causal=True)
    result = (out[:, :seen], lse[:, :, :seen])
    assert_within_rounding(q[:, :seen], k[:, :150], v[:, :150], result, causal=True)
    assert not torch.isfinite(out[:, seen:]).any()


@pytest.mark.parametrize("seqlen_q,seqlen_k", [(128, 200), (200, 130), (300, 300), (65, 65)])
@pytest.mark.parametrize("head_dim_v", [D, 40])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_scattered_poison_reaches_exactly_what_sees_it(
    causal: bool, head_dim_v: int, seqlen_q: int, seqlen_k: int
) -> None:
    """NaN and both infinities in single elements of V, and a key of NaN: where each output is not finite, and how."""
    q = normal(2, seqlen_q, 4, D, dtype=torch.bfloat16, seed=1)
    k = normal(2, seqlen_k, 2, D, dtype=torch.bfloat16, seed=2)
    v = normal(2, seqlen_k, 2, head_dim_v + 8, dtype=torch.bfloat16, seed=3)[..., :head_dim_v]
    for key, column, value in [(50, 0, NAN), (60, 1, INF), (61, 2, -INF), (62, 3, INF), (64, 3, -INF), (33, 39, INF)]:
        v[0, key, 0, column] = value
    k[1, 64, 1, 17] = NAN
    with attnsmith.simulate("a100"):
        out, lse = attend(q, k, v, causal=causal)
    ref, ref_lse = reference.attention(q, k, v, causal=causal)
    assert torch.equal(out.isnan(), ref.isnan()) and torch.equal(lse.isnan(), ref_lse.isnan())
    assert torch.equal(out.isposinf(), ref.isposinf()) and torch.equal(out.isneginf(), ref.isneginf())
    finite = torch.isfinite(ref)
    assert (~finite).any() and (out.double() - ref)[finite].abs().max() < 0.04


@pytest.mark.parametrize("tensor", ["k", "v"])
def test_rows_that_see_no_key_are_empty_whatever_the_keys_hold(causal_kernel: str, tensor: str) -> None:
    q, k, v = random_qkv(causal_kernel, 300, 100)
    {"k": k, "v": v}[tensor][:] = NAN
    out, lse = attend(q, k, v, causal=True)
    assert (out[:, :128] == 0).all() and (lse[:, :, :128] == -INF).all(), "tiles that see nothing"
    assert (lse[:, :, :200] == -INF).all()
    assert out[:, 200:].isnan().all()


# Shapes of memory


@pytest.mark.parametrize(
    "head_dim,head_dim_v,causal",
    [
        *((*dims, causal) for dims in ((128, 96), (192, 128), (64, 128)) for causal in (False, True)),
        (96, 40, False),
    ],
)
def test_value_head_dim_differs(head_dim: int, head_dim_v: int, causal: bool) -> None:
    q = normal(2, 130, 2, head_dim, dtype=torch.bfloat16, seed=1)
    k = normal(2, 203, 1, head_dim, dtype=torch.bfloat16, seed=2)
    v = normal(2, 203, 1, head_dim_v, dtype=torch.bfloat16, seed=3)
    with attnsmith.simulate("a100"):
        assert_close_to_reference(q, k, v, attend(q, k, v, causal=causal), causal=causal)


VIEWS = {
    "heads-first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "batch-inside": lambda x: x.permute(1, 2, 0, 3).contiguous().permute(2, 0, 1, 3),
    "fused-qkv": lambda x: torch.stack([x, x.flip(1), x], dim=2)[:, :, 2],
    "column-slice": lambda x: torch.nn.functional.pad(x, (16, 8), value=NAN)[..., 16:-8],
    "every-other-row": lambda x: torch.stack([x, torch.full_like(x, NAN)], dim=2).flatten(1, 2)[:, ::2],
    "reversed-batch": lambda x: x.flip(0)[[1, 0]],
    "expanded-batch": lambda x: x[:1].expand(2, -1, -1, -1),
}


@pytest.mark.parametrize("view", VIEWS)
def test_strided_inputs_give_the_same_bits(kernel: str, view: str) -> None:
    q = normal(2, 130, 4, D, dtype=dtype_of(kernel), seed=1)
    k, v = (normal(2, 203, 2, D, dtype=dtype_of(kernel), seed=seed) for seed in (2, 3))
    views = [VIEWS[view](x) for x in (q, k, v)]
    wanted, wanted_lse = attend(*(x.contiguous() for x in views), **options_of(kernel))
    out, lse = attend(*views, **options_of(kernel))
    assert torch.equal(out, wanted) and torch.equal(lse, wanted_lse)


@pytest.mark.parametrize("dim", ["row", "head"])
def test_strides_beyond_2_to_the_31_elements(kernel: str, dim: str) -> None:
    """Rows or heads 2^31 / 4 elements apart and more, in memory that is reserved but mostly never touched."""
    q, k, v = (x[:, :5] for x in random_qkv(kernel, 5, 5))
    k, v = k.expand(-1, -1, 2, -1), v.flip(3).expand(-1, -1, 2, -1)
    wanted, wanted_lse = attend(q, k, v, **options_of(kernel))
    far = 2**29 + 64 if dim == "row" else 2**31 + 64
    spread = []
    for x in (q, k, v):
        strides = (0, far, D, 1) if dim == "row" else (0, D, far, 1)
        reserved = torch.empty(far * (x.shape[1] if dim == "row" else 2), dtype=x.dtype)
        spread.append(torch.as_strided(reserved, x.shape, strides).copy_(x))
    out, lse = attend(*spread, **options_of(kernel))
    assert torch.equal(out, wanted) and torch.equal(lse, wanted_lse)
