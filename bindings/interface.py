# SPDX-License-Identifier: Apache-2.0
"""The flash_attn interface: public functions with its names, order and defaults, and keyword-only extensions of ours.

Responsible for argument checks, autocast and defaults. Not responsible for computing: torch.ops.attnsmith does. An
argument whose feature this version does not have raises NotImplementedError naming it; nothing is ignored.
"""

from __future__ import annotations

from typing import Any

import attnsmith.ops  # declares torch.ops.attnsmith  # noqa: F401
import torch
from attnsmith import checks, dispatch, launcher, simulation
from torch import Tensor

Descales = tuple[Tensor | None, Tensor | None, Tensor | None]


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    out: Tensor | None = None,
    return_lse: bool = False,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
) -> Any:
    """softmax(q k^T * softmax_scale + mask) v, in O(N) memory.

    Args:
        q: (b, sq, h, d), fp16, bf16 or, on SM90 and forward only, FP8 (torch.float8_e4m3fn, torch.float8_e5m2), d <=
            256; strides are free. float32 is cast under torch.autocast.
        k: (b, sk, hk, d) with h % hk == 0: query head i uses key head i // (h // hk).
        v: (b, sk, hk, dv). FP8: one whose keys are contiguous, such as a permuted (b, hk, dv, sk), spares the kernel a
            transpose.
        dropout_p: 0.0 in this version.
        softmax_scale: any finite number; None is d ** -0.5.
        causal: row i sees key j iff j <= i + sk - sq (bottom-right aligned).
        window_size: inclusive (left, right) around that diagonal, -1 unbounded; in this version only windows that equal
            no mask or the causal mask.
        softcap: 0.0 in this version; alibi_slopes, learnable_sink, seqused_q and seqused_k: None in this version.
        q_descale, k_descale, v_descale: FP8 only: what q, k and v are multiplied by, fp32 (b, hk); None is 1. See
            attnsmith.quantize_fp8.
        deterministic: accepted; the forward pass always is, bitwise.
        return_attn_probs: return (out, lse, S_dmask), S_dmask being empty without dropout.
        out: preallocated result (b, sq, h, dv) of any strides, of q's dtype, or bf16 or fp16 for FP8; must not overlap
            the inputs; not under autograd.
        return_lse: return (out, lse).
        num_splits: 0 or 1 in this version.
        pack_gqa: whether the query heads of one key head share a tile's rows; None chooses. Where a device or a head
            count has no such kernel it changes nothing, and nowhere the result beyond rounding.

    Returns:
        out (b, sq, h, dv), bf16 for FP8 unless `out` is fp16; with return_lse or return_attn_probs also lse (b, h, sq),
        fp32, the natural log of the sum of exponentials. A row that sees no key is 0 with lse -inf.

    Raises:
        TypeError, ValueError: an argument of a wrong type, dtype, shape, device or value.
        NotImplementedError: a feature that this version does not have, or FP8 where it does not exist: on a GPU other
            than SM90, under autograd.
    """
    checks.check_absent(
        alibi_slopes=alibi_slopes, learnable_sink=learnable_sink, seqused_q=seqused_q, seqused_k=seqused_k
    )
    checks.check_dropout(dropout_p)
    checks.check_softcap(softcap)
    checks.check_split(num_splits, pack_gqa)
    q, k, v = autocast(q, k, v)
    checks.check_tensors(q, k, v)
    checks.check_descales(q, k, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    if q.dtype in checks.FP8_DTYPES:
        checks.check_fp8_is_forward_only(q, k, v, q_descale, k_descale, v_descale)
    is_causal = checks.is_causal_window(window_size, checks.check_causal(causal), q.shape[1], k.shape[1])
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else checks.check_softmax_scale(softmax_scale)
    if out is not None:
        checks.check_out(out, q, k, v)
    descales = (q_descale, k_descale, v_descale)
    result, lse = forward(q, k, v, scale, is_causal, out, descales=descales, pack_gqa=pack_gqa)
    if return_attn_probs:
        return result, lse, result.new_empty(0)
    return (result, lse) if return_lse else result


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    **extensions: Any,
) -> Any:
    """As flash_attn_func with k and v stacked: kv (b, sk, 2, hk, d). `extensions`: its keyword-only arguments."""
    checks.check_packed("kv", kv, 2, "(batch, seqlen, 2, nheads_k, head_dim)")
    k, v = kv.unbind(2)
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
        **extensions,
    )  # fmt: skip


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    **extensions: Any,
) -> Any:
    """As flash_attn_func with q, k and v stacked: qkv (b, s, 3, h, d). `extensions`: its keyword-only arguments."""
    checks.check_packed("qkv", qkv, 3, "(batch, seqlen, 3, nheads, head_dim)")
    q, k, v = qkv.unbind(2)
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
        **extensions,
    )  # fmt: skip


def autocast(q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    """float32 tensors cast to the active autocast dtype of their device; everything else as it is."""

    def cast(x: Any) -> Any:
        is_float32 = isinstance(x, Tensor) and x.dtype == torch.float32 and x.device.type in ("cpu", "cuda")
        if is_float32 and torch.is_autocast_enabled(x.device.type):
            return x.to(torch.get_autocast_dtype(x.device.type))
        return x

    return cast(q), cast(k), cast(v)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float,
    causal: bool,
    out: Tensor | None = None,
    *,
    descales: Descales = (None, None, None),
    pack_gqa: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """The op on checked arguments; a failed dispatch raises its own error instead of torch's RuntimeError.

    `descales`: of q, k and v.
    """
    args = (q, k, v, softmax_scale, causal)
    if torch.compiler.is_compiling():
        return _call_op(args, out, descales, pack_gqa)
    if q.dtype in checks.FP8_DTYPES and q.is_cuda:
        major, minor = torch.cuda.get_device_capability(q.device)
        checks.check_has_fp8(q.dtype, f"{q.device} of compute capability {major}.{minor}", major == 9)
    dispatch.forget_pending()
    try:
        result = _call_op(args, out, descales, pack_gqa)
    except RuntimeError as error:
        dispatch.raise_pending(error)
        raise
    if q.is_cuda and simulation.is_recording():
        simulation.record(launcher.load())
    return result


def _call_op(
    args: tuple[Any, ...], out: Tensor | None, descales: Descales, pack_gqa: bool | None
) -> tuple[Tensor, Tensor]:
    if out is None:
        result: tuple[Tensor, Tensor] = torch.ops.attnsmith.fwd(*args, *descales, pack_gqa=pack_gqa)
        return result
    return out, torch.ops.attnsmith.fwd_out(*args, out, *descales, pack_gqa=pack_gqa)
