# SPDX-License-Identifier: Apache-2.0
"""attnsmith.scaled_dot_product_attention against torch's own: layout, top-left causal mask, GQA, errors as torch's."""

from __future__ import annotations

import attnsmith
import pytest
import torch
from torch import Tensor


def make(sq: int, sk: int, h: int = 4, hk: int = 4, d: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(sq * 100 + sk)
    return tuple(torch.randn(2, n, s, d).half() for n, s in ((h, sq), (hk, sk), (hk, sk)))  # type: ignore[return-value]


@pytest.mark.parametrize("sq,sk", [(5, 5), (3, 8), (8, 3), (1, 8), (8, 1), (5, 0)])
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_equals_torch(sq: int, sk: int, is_causal: bool, scale: float | None) -> None:
    q, k, v = make(sq, sk)
    out = attnsmith.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale)
    mask = torch.ones(sq, sk, dtype=torch.bool).tril() if is_causal else None
    ref = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), attn_mask=mask, scale=scale
    )
    assert out.shape == q.shape
    torch.testing.assert_close(out.double(), ref, rtol=0, atol=2e-3)


def test_top_left_support_counts() -> None:
    """Torch's rule, row i sees j <= i: 1 and 2 of 5 keys, where flash_attn sees 4 and 5."""
    q, k = torch.zeros(1, 1, 2, 8).half(), torch.zeros(1, 1, 5, 8).half()
    v = torch.eye(8)[:5].reshape(1, 1, 5, 8).half()
    out = attnsmith.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert (out > 0).sum(-1).flatten().tolist() == [1, 2]


def test_scale_is_not_dropped() -> None:
    q, k, v = make(5, 5)
    assert not torch.equal(
        attnsmith.scaled_dot_product_attention(q, k, v, scale=0.3), attnsmith.scaled_dot_product_attention(q, k, v)
    )


def test_gqa_needs_enable_gqa_as_in_torch() -> None:
    q, k, v = make(5, 5, h=8, hk=2)
    with pytest.raises(ValueError, match="enable_gqa"):
        attnsmith.scaled_dot_product_attention(q, k, v)
    out = attnsmith.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    ref = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), enable_gqa=True)
    torch.testing.assert_close(out.double(), ref, rtol=0, atol=2e-3)


def test_key_and_value_heads_must_agree() -> None:
    q, k, v = make(5, 5, h=8, hk=8)
    with pytest.raises(ValueError, match="nheads"):
        attnsmith.scaled_dot_product_attention(q, k, v[:, :4])


@pytest.mark.parametrize("shape", [(5,), (5, 5), (2, 1, 5, 5), (2, 4, 5, 5)])
def test_masks_are_refused_not_ignored(shape: tuple[int, ...]) -> None:
    q, k, v = make(5, 5)
    with pytest.raises(NotImplementedError, match="attn_mask"):
        attnsmith.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(shape, dtype=torch.bool))
    with pytest.raises(ValueError, match="is_causal"):
        attnsmith.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(5, 5, dtype=torch.bool), is_causal=True)


@pytest.mark.parametrize("leading", [(), (2, 3)])
def test_only_4d(leading: tuple[int, ...]) -> None:
    x = torch.zeros(*leading, 4, 5, 16).half()
    with pytest.raises(ValueError, match="4-D"):
        attnsmith.scaled_dot_product_attention(x, x, x)


def test_dropout_is_refused() -> None:
    q, k, v = make(5, 5)
    with pytest.raises(NotImplementedError, match="dropout_p"):
        attnsmith.scaled_dot_product_attention(q, k, v, dropout_p=0.1)
