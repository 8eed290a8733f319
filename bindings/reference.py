# SPDX-License-Identifier: Apache-2.0
"""The truth: attention in plain PyTorch, fp64 or fp32, with the full semantics of the API, and the tolerance rule.

Blocked over query rows, so memory is O(N * block) without autograd. Not responsible for argument errors
(checks.py) and not tuned for speed: it is what kernels are compared with, and what CPU tensors get outside the
simulator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from attnsmith.checks import FP8_DTYPES, check_window
from torch import Tensor

_SCORES_PER_BLOCK = 1 << 23
"""Scores held at once: 64 MiB in fp64."""

P_SCALE = 256.0
"""What FP8 attention multiplies its weights by before it rounds them to e4m3, so that they use the type's range."""


@dataclass(frozen=True, kw_only=True)
class Semantics:
    """Everything beyond q, k, v that decides the result. Field meanings: the API's semantics section."""

    softmax_scale: float
    """Factor of q @ k^T; any sign, or 0."""
    causal: bool = False
    """Bottom-right aligned: row i sees key j iff j <= i + seqlen_k - seqlen_q."""
    window_size: tuple[int, int] = (-1, -1)
    """Inclusive (left, right) around i + seqlen_k - seqlen_q; -1 is unbounded."""
    softcap: float = 0.0
    """softcap * tanh(score / softcap) before bias and mask; 0 is off."""
    alibi_slopes: Tensor | None = None
    """fp32 (nheads_q,) or (batch, nheads_q)."""
    learnable_sink: Tensor | None = None
    """(nheads_q,): a logit that takes part in the denominator only."""
    q_descale: Tensor | None = None
    """fp32 (batch, nheads_k); likewise k_descale and v_descale."""
    k_descale: Tensor | None = None
    v_descale: Tensor | None = None
    seqused_q: Tensor | None = None
    """int32 (batch,): rows used of each sequence, from the start."""
    seqused_k: Tensor | None = None
    """int32 (batch,): keys used of each sequence, from the start."""


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    compute_dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """Attention of already rounded inputs, computed in `compute_dtype`.

    Shapes: q (b, sq, h, d), k (b, sk, hk, d), v (b, sk, hk, dv), h % hk == 0.
    Returns out (b, sq, h, dv) and lse (b, h, sq), natural log, both in `compute_dtype`. A row that sees no key is 0
    with lse -inf. NaN in a key or value that a row does not see never reaches that row. Differentiable.

    Raises:
        ArgumentTypeError: a window that is not two ints.
        ArgumentError: a side of the window below -1.
    """
    semantics = Semantics(
        softmax_scale=q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale,
        causal=causal,
        window_size=check_window(window_size),
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        learnable_sink=learnable_sink,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
    )
    return _attention(q, k, v, semantics, compute_dtype)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, semantics: Semantics, compute_dtype: torch.dtype, rounds_p: bool = False
) -> tuple[Tensor, Tensor]:
    with torch.autocast(q.device.type, enabled=False):  # which would round fp32 products
        return _attention_in_blocks(q, k, v, semantics, compute_dtype, rounds_p)


def _attention_in_blocks(
    q: Tensor, k: Tensor, v: Tensor, semantics: Semantics, compute_dtype: torch.dtype, rounds_p: bool
) -> tuple[Tensor, Tensor]:
    q_descale, k_descale, v_descale = semantics.q_descale, semantics.k_descale, semantics.v_descale
    keys, values = (x.to(compute_dtype).transpose(1, 2) for x in (k, v))
    if k_descale is not None:
        keys = keys * k_descale[:, :, None, None].to(compute_dtype)
    if v_descale is not None:
        values = values * v_descale[:, :, None, None].to(compute_dtype)
    outs, lses = [], []
    for start, stop in _query_blocks(q, k):
        rows = _fold_rows(q[:, start:stop].to(compute_dtype), k.shape[2])
        if q_descale is not None:
            rows = rows * q_descale[:, :, None, None].to(compute_dtype)
        scores = rows @ keys.transpose(2, 3) * semantics.softmax_scale
        out, lse = _attend(scores, values, _Block(q.shape, k.shape, start, stop, q.device), semantics, rounds_p)
        outs.append(out)
        lses.append(lse)
    if not outs:
        return _empty(q, v, compute_dtype)
    return torch.cat(outs, dim=1), torch.cat(lses, dim=2)


def same_dtype_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """The same computation in plain PyTorch of q's dtype, y of the tolerance rule. Shapes as `attention`; gives out.

    FP8 inputs: fp32 throughout, except that the weights exp(s - max) times 2^8 are rounded to e4m3 and the result to
    `out_dtype` (None: bf16, and q's dtype for other inputs). The sum that divides is that of the unrounded weights.
    """
    semantics = Semantics(
        softmax_scale=q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale,
        causal=causal,
        window_size=check_window(window_size),
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
    )
    if q.dtype in FP8_DTYPES:
        out, _ = _attention(q, k, v, semantics, torch.float32, rounds_p=True)
        return out.to(torch.bfloat16 if out_dtype is None else out_dtype)
    if out_dtype not in (None, q.dtype) or any(x is not None for x in (q_descale, k_descale, v_descale)):
        raise ValueError(f"same_dtype_attention: out_dtype and descales are for FP8; got q of dtype {q.dtype}.")
    return _same_dtype_in_blocks(q, k, v, semantics)


def _same_dtype_in_blocks(q: Tensor, k: Tensor, v: Tensor, semantics: Semantics) -> Tensor:
    keys, values = k.transpose(1, 2), v.transpose(1, 2)
    outs = []
    for start, stop in _query_blocks(q, k):
        block = _Block(q.shape, k.shape, start, stop, q.device)
        rows = _fold_rows(q[:, start:stop] * semantics.softmax_scale, k.shape[2])
        scores = _unfold_scores(rows @ keys.transpose(2, 3), block)
        visible = block.visible(semantics)
        scores = _modify(scores, block, semantics).masked_fill(~visible, float("-inf"))
        weights = torch.softmax(scores, dim=-1).masked_fill(~visible, 0.0).to(v.dtype)
        outs.append(_to_bshd(weights.flatten(2, 3) @ _seen_values(values, visible), block))
    return torch.cat(outs, dim=1) if outs else _empty(q, v, q.dtype)[0]


@dataclass(frozen=True)
class _Block:
    """Query rows [start, stop) of a problem."""

    q_shape: torch.Size
    k_shape: torch.Size
    start: int
    stop: int
    device: torch.device

    @property
    def groups(self) -> int:
        return self.q_shape[2] // self.k_shape[2]

    def diagonal(self, semantics: Semantics) -> Tensor:
        """(b or 1, 1, 1, rows, 1): the key index i + seqlen_k - seqlen_q of each row."""
        rows = torch.arange(self.start, self.stop, device=self.device)[:, None]
        sq, sk = self._lengths(semantics)
        return (rows + sk - sq)[:, None, None]

    def _lengths(self, semantics: Semantics) -> tuple[Tensor, Tensor]:
        """Used lengths of queries and keys, each (b or 1, 1, 1)."""

        def used(lengths: Tensor | None, full: int) -> Tensor:
            if lengths is None:
                return torch.full((1, 1, 1), full, dtype=torch.int64, device=self.device)
            return lengths.to(torch.int64)[:, None, None]

        return used(semantics.seqused_q, self.q_shape[1]), used(semantics.seqused_k, self.k_shape[1])

    def visible(self, semantics: Semantics) -> Tensor:
        """(b or 1, 1, 1, rows, sk) bool: which keys each row sees."""
        keys = torch.arange(self.k_shape[1], device=self.device)
        rows = torch.arange(self.start, self.stop, device=self.device)[:, None]
        sq, sk = self._lengths(semantics)
        seen = ((keys < sk) & (rows < sq))[:, None, None]
        left, right = semantics.window_size
        right = 0 if semantics.causal else right
        diagonal = self.diagonal(semantics)
        if left >= 0:
            seen = seen & (keys >= diagonal - left)
        if right >= 0:
            seen = seen & (keys <= diagonal + right)
        return seen


def _query_blocks(q: Tensor, k: Tensor) -> Iterator[tuple[int, int]]:
    batch, seqlen_q, nheads_q, _ = q.shape
    if batch == 0 or nheads_q == 0:
        return
    rows = max(1, _SCORES_PER_BLOCK // max(1, batch * nheads_q * k.shape[1]))
    for start in range(0, seqlen_q, rows):
        yield start, min(start + rows, seqlen_q)


def _empty(q: Tensor, v: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    batch, seqlen_q, nheads_q, _ = q.shape
    out = torch.zeros(batch, seqlen_q, nheads_q, v.shape[-1], dtype=dtype, device=q.device)
    return out, torch.full((batch, nheads_q, seqlen_q), float("-inf"), dtype=dtype, device=q.device)


def _fold_rows(q: Tensor, nheads_k: int) -> Tensor:
    """(b, rows, h, d) -> (b, hk, group * rows, d): the query heads of one key head become rows of one product."""
    batch, rows, nheads_q, head_dim = q.shape
    return q.transpose(1, 2).reshape(batch, nheads_k, nheads_q // nheads_k * rows, head_dim)


def _unfold_scores(scores: Tensor, block: _Block) -> Tensor:
    """(b, hk, group * rows, sk) -> (b, hk, group, rows, sk)."""
    batch, nheads_k, _, columns = scores.shape
    return scores.reshape(batch, nheads_k, block.groups, block.stop - block.start, columns)


def _to_bshd(out: Tensor, block: _Block) -> Tensor:
    """(b, hk, group * rows, dv) -> (b, rows, h, dv)."""
    return _unfold_scores(out, block).flatten(1, 2).transpose(1, 2)


def _per_head(x: Tensor, scores: Tensor) -> Tensor:
    """(h,) or (b, h) -> broadcastable to scores (b, hk, group, rows, sk)."""
    x = x if x.dim() == 2 else x[None]
    return x.to(scores.dtype).reshape(x.shape[0], scores.shape[1], scores.shape[2], 1, 1)


def _modify(scores: Tensor, block: _Block, semantics: Semantics) -> Tensor:
    """Softcap, then bias; the mask comes after."""
    if semantics.softcap > 0.0:
        scores = semantics.softcap * torch.tanh(scores / semantics.softcap)
    if semantics.alibi_slopes is not None:
        keys = torch.arange(block.k_shape[1], device=block.device)
        distance = (block.diagonal(semantics) - keys).abs().to(scores.dtype)
        scores = scores - _per_head(semantics.alibi_slopes, scores) * distance
    return scores


def _attend(
    scores: Tensor, values: Tensor, block: _Block, semantics: Semantics, rounds_p: bool
) -> tuple[Tensor, Tensor]:
    """Scaled scores (b, hk, group * rows, sk), values (b, hk, sk, dv) -> out (b, rows, h, dv), lse (b, h, rows)."""
    scores = _modify(_unfold_scores(scores, block), block, semantics)
    visible = block.visible(semantics)
    scores = scores.masked_fill(~visible, float("-inf"))
    sees_key = visible.any(dim=-1, keepdim=True)
    sink = semantics.learnable_sink
    if scores.shape[-1] > 0:
        row_max = scores.detach().amax(dim=-1, keepdim=True)
    else:
        row_max = torch.full_like(scores.sum(-1, keepdim=True), float("-inf"))
    if sink is not None:
        row_max = torch.maximum(row_max, _per_head(sink.detach(), scores))
    row_max = row_max.masked_fill(row_max == float("-inf"), 0.0)
    weights = torch.exp(scores - row_max).masked_fill(~visible, 0.0)
    row_sum = weights.sum(dim=-1, keepdim=True)
    if sink is not None:
        row_sum = row_sum + torch.exp(_per_head(sink, scores) - row_max)
    is_empty = ~sees_key | (row_sum == 0)
    safe_sum = row_sum.masked_fill(is_empty, 1.0)
    if rounds_p:
        weights = (weights * P_SCALE).to(torch.float8_e4m3fn).to(weights.dtype) / P_SCALE
    acc = _unfold_scores(_weigh(weights, values, visible), block)
    out = (acc / safe_sum).masked_fill(is_empty, 0.0)
    lse = (row_max + torch.log(safe_sum)).masked_fill(is_empty, float("-inf"))
    return _to_bshd(out.flatten(2, 3), block), lse.squeeze(-1).flatten(1, 2)


def _weigh(weights: Tensor, values: Tensor, visible: Tensor) -> Tensor:
    """weights @ values, where a value that is not finite counts only in rows that see it."""
    rows = weights.flatten(2, 3)
    is_finite = torch.isfinite(values)
    if bool(is_finite.all()):
        return rows @ values
    acc = rows @ values.masked_fill(~is_finite, 0.0)
    seen = visible.expand_as(weights).flatten(2, 3)
    positive = (rows > 0).to(rows.dtype) @ (values == float("inf")).to(rows.dtype) > 0
    negative = (rows > 0).to(rows.dtype) @ (values == float("-inf")).to(rows.dtype) > 0
    underflowed = (seen & (rows == 0)).to(rows.dtype) @ torch.isinf(values).to(rows.dtype) > 0
    nan = seen.to(rows.dtype) @ torch.isnan(values).to(rows.dtype) > 0
    acc = torch.where(positive, float("inf"), acc)
    acc = torch.where(negative, float("-inf"), acc)
    return torch.where(nan | underflowed | (positive & negative), float("nan"), acc)


def _seen_values(values: Tensor, visible: Tensor) -> Tensor:
    """`values` with 0 in keys that no row of the block sees."""
    seen_by_any = visible.any(dim=-2)[:, 0, 0, :]
    return values.masked_fill(~seen_by_any[:, None, :, None], 0.0)


@dataclass(frozen=True)
class Comparison:
    """Outcome of the tolerance rule for one tensor."""

    max_abs_err: float
    """Largest |actual - reference|; inf where one is finite and the other is not, or where infinities differ."""
    allowed: float
    """Largest error that the rule allows."""

    @property
    def ok(self) -> bool:
        """True iff the error is allowed."""
        return self.max_abs_err <= self.allowed


def tolerance(ref: Tensor, same_dtype: Tensor, *, gradient: bool = False) -> float:
    """The rule, in one place: 2 * max|y - ref| + 1e-5 forward, 3 * max|y - ref| + 1e-4 for gradients.

    Only positions where both are finite count: a same-dtype overflow grants nothing.
    """
    factor, floor = (3.0, 1e-4) if gradient else (2.0, 1e-5)
    error = (same_dtype.to(torch.float64) - ref.to(torch.float64)).abs()
    error = error[torch.isfinite(error)]
    return factor * (float(error.max()) if error.numel() else 0.0) + floor


def compare(actual: Tensor, ref: Tensor, same_dtype: Tensor, *, gradient: bool = False) -> Comparison:
    """Judges `actual` by the tolerance rule. NaN and infinities must stand where the reference has them."""
    allowed = tolerance(ref, same_dtype, gradient=gradient)
    error = _abs_error(actual, ref)
    return Comparison(max_abs_err=float(error.max()) if error.numel() else 0.0, allowed=allowed)


def compare_lse(actual: Tensor, ref: Tensor) -> Comparison:
    """LSE: 1e-3 relative, and 1e-3 absolute where |ref| < 1. Reports the element that is worst by that measure."""
    error = _abs_error(actual, ref).flatten()
    if not error.numel():
        return Comparison(max_abs_err=0.0, allowed=1e-3)
    magnitude = ref.to(torch.float64).abs().flatten()
    allowed = 1e-3 * torch.where(torch.isfinite(magnitude), magnitude, 1.0).clamp_min(1.0)
    worst = int((error / allowed).argmax())
    return Comparison(max_abs_err=float(error[worst]), allowed=float(allowed[worst]))


def _abs_error(actual: Tensor, ref: Tensor) -> Tensor:
    if actual.shape != ref.shape:
        raise ValueError(f"compare: got shape {tuple(actual.shape)}; allowed: the reference's {tuple(ref.shape)}.")
    actual, ref = actual.detach().to(torch.float64), ref.detach().to(torch.float64)
    same = (actual == ref) | (actual.isnan() & ref.isnan())
    error = (actual - ref).abs()
    error = torch.where(torch.isfinite(error), error, float("inf"))
    return torch.where(same, 0.0, error)
