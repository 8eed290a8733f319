# SPDX-License-Identifier: Apache-2.0
"""An entry point shaped like torch.nn.functional.scaled_dot_product_attention: its layout, its top-left causal mask.

Not responsible for computing: the bottom-right kernels serve the top-left mask by an exact decomposition.
"""

from __future__ import annotations

from typing import Any

import torch
from attnsmith.errors import ArgumentError, UnsupportedError
from attnsmith.interface import flash_attn_func
from torch import Tensor


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention in SDPA's layout and semantics.

    Args:
        query: (b, h, sq, d), of a dtype that flash_attn_func takes; key (b, hk, sk, d); value (b, hk, sk, dv).
        attn_mask: None in this version.
        dropout_p: 0.0 in this version.
        is_causal: row i sees key j iff j <= i: *top-left* aligned, unlike flash_attn_func.
        scale: None is d ** -0.5.
        enable_gqa: whether hk may be a proper divisor of h.

    Returns:
        (b, h, sq, dv).

    Raises:
        TypeError, ValueError, NotImplementedError: as flash_attn_func; ValueError for attn_mask with is_causal.
    """
    _check(query, key, value, attn_mask, is_causal, enable_gqa)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    options: dict[str, Any] = {"dropout_p": dropout_p, "softmax_scale": scale}
    out = _top_left(q, k, v, options) if is_causal else flash_attn_func(q, k, v, **options)
    result: Tensor = out.transpose(1, 2)
    return result


def _top_left(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Tensor:
    """Keys beyond the queries are seen by no row; rows beyond the keys see all keys; the square between is causal."""
    seqlen_q, seqlen_k = q.shape[1], k.shape[1]
    if seqlen_q <= seqlen_k:
        out: Tensor = flash_attn_func(q, k[:, :seqlen_q], v[:, :seqlen_q], causal=True, **options)
        return out
    square = flash_attn_func(q[:, :seqlen_k], k, v, causal=True, **options)
    rest = flash_attn_func(q[:, seqlen_k:], k, v, **options)
    return torch.cat([square, rest], dim=1)


def _check(query: Any, key: Any, value: Any, attn_mask: Any, is_causal: bool, enable_gqa: bool) -> None:
    if attn_mask is not None and is_causal:
        raise ArgumentError(
            asked="scaled_dot_product_attention", got="attn_mask together with is_causal=True",
            allowed="one of them, as in torch", do="Put the causal mask into attn_mask, or leave attn_mask out.",
        )  # fmt: skip
    if attn_mask is not None:
        raise UnsupportedError(
            asked="scaled_dot_product_attention with attn_mask", got=f"attn_mask of type {type(attn_mask).__name__}",
            allowed="attn_mask=None in this version", do="Use is_causal, or torch's own function for this call.",
        )  # fmt: skip
    for name, x in (("query", query), ("key", key), ("value", value)):
        if isinstance(x, Tensor) and x.dim() != 4:
            raise ArgumentError(
                asked="scaled_dot_product_attention", got=f"{name} of shape {tuple(x.shape)}",
                allowed="4-D (batch, nheads, seqlen, head_dim)", do="Flatten or unsqueeze the leading dims.",
            )  # fmt: skip
    if not enable_gqa and isinstance(query, Tensor) and isinstance(key, Tensor) and query.shape[1] != key.shape[1]:
        raise ArgumentError(
            asked="scaled_dot_product_attention without enable_gqa",
            got=f"{query.shape[1]} query heads and {key.shape[1]} key heads", allowed="equal nheads",
            do="Pass enable_gqa=True.",
        )  # fmt: skip
