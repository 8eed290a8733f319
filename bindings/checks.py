# SPDX-License-Identifier: Apache-2.0
"""Argument checks of the public functions: everything that is known on the host, before any work.

Every error names the argument, the value received, what is allowed and what to do. Not responsible for defaults
(interface.py) or for the content of tensors.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

import torch
from attnsmith.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from torch import Tensor

MAX_HEAD_DIM = 256
DTYPES = (torch.float16, torch.bfloat16)
FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
FP8_OUT_DTYPES = (torch.bfloat16, torch.float16)
"""What FP8 attention can write; the first is the default."""
LAYOUT = "(batch, seqlen, nheads, head_dim)"


def check_tensors(q: Tensor, k: Tensor, v: Tensor, *, allowed: tuple[torch.dtype, ...] = DTYPES + FP8_DTYPES) -> None:
    """q (b, sq, h, d), k (b, sk, hk, d), v (b, sk, hk, dv) that one call can take, of one of the `allowed` dtypes.

    Raises:
        ArgumentTypeError: not a tensor, or a dtype that is not allowed or differs.
        UnsupportedError: a device without kernels.
        ArgumentError: shapes, head counts, head dims, layouts or devices that do not fit.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        _check_is_tensor(name, x)
        if x.dim() != 4:
            raise ArgumentError(
                asked=f"attention of {name}", got=f"{name} with {x.dim()} dims, shape {tuple(x.shape)}",
                allowed=f"4-D {LAYOUT}", do=f"Reshape {name}; an unbatched tensor needs unsqueeze(0).",
            )  # fmt: skip
    _check_dtypes(q, k, v, allowed)
    _check_devices(q, k, v)
    _check_shapes(q, k, v)


def _check_is_tensor(name: str, x: Any) -> None:
    if not isinstance(x, Tensor):
        raise ArgumentTypeError(
            asked=f"attention of {name}", got=f"{name} of type {type(x).__name__}", allowed="torch.Tensor",
            do=f"Pass a tensor for {name}.",
        )  # fmt: skip
    if x.layout != torch.strided:
        raise ArgumentError(
            asked=f"attention of {name}", got=f"{name} of layout {x.layout}", allowed="strided (dense) tensors",
            do=f"Call {name}.to_dense().",
        )  # fmt: skip


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def _check_dtypes(q: Tensor, k: Tensor, v: Tensor, allowed: tuple[torch.dtype, ...]) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dtype not in allowed:
            raise ArgumentTypeError(
                asked=f"attention of {name}", got=f"{name} of dtype {x.dtype}", allowed=f"dtype {_names(allowed)}",
                do="Convert q, k and v; attention under torch.autocast casts float32 itself.",
            )  # fmt: skip
        if x.dtype != q.dtype:
            raise ArgumentTypeError(
                asked="attention of tensors of one dtype", got=f"q of dtype {q.dtype}, {name} of dtype {x.dtype}",
                allowed="one dtype for q, k and v", do=f"Convert {name}.",
            )  # fmt: skip


def _check_devices(q: Tensor, k: Tensor, v: Tensor) -> None:
    if q.device.type not in ("cpu", "cuda", "meta"):
        raise UnsupportedError(
            asked=f"attention on {q.device.type}", got=f"q on {q.device}", allowed="cuda, cpu",
            do="Move q, k and v; CPU tensors run on a simulated GPU inside attnsmith.simulate(...).",
        )  # fmt: skip
    for name, x in (("k", k), ("v", v)):
        if x.device != q.device:
            raise ArgumentError(
                asked="attention of tensors on one device", got=f"q on {q.device}, {name} on {x.device}",
                allowed="one device for q, k and v",
                do=f"Move {name}. All on the CPU is fine too: attnsmith.simulate(...) runs the kernels there.",
            )  # fmt: skip


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    batch, _, nheads_q, head_dim = q.shape
    for name, x in (("k", k), ("v", v)):
        if x.shape[0] != batch:
            raise ArgumentError(
                asked="attention of tensors of one batch size", got=f"q with batch {batch}, {name} with {x.shape[0]}",
                allowed="equal first dims", do=f"Expand {name} or q along dim 0.",
            )  # fmt: skip
    if k.shape[1] != v.shape[1]:
        raise _key_value_mismatch("seqlen", k.shape[1], v.shape[1])
    if k.shape[2] != v.shape[2]:
        raise _key_value_mismatch("nheads", k.shape[2], v.shape[2])
    _check_head_dim("q", head_dim)
    _check_head_dim("v", v.shape[3])
    if k.shape[3] != head_dim:
        raise ArgumentError(
            asked="q @ k^T", got=f"q with head_dim {head_dim}, k with head_dim {k.shape[3]}",
            allowed="equal head_dim of q and k (v's may differ)", do="Project k to q's head_dim.",
        )  # fmt: skip
    nheads_k = k.shape[2]
    if nheads_q > 0 and (nheads_k == 0 or nheads_q % nheads_k != 0):
        raise ArgumentError(
            asked="attention with grouped heads", got=f"{nheads_q} query heads (q) and {nheads_k} key heads (k, v)",
            allowed="nheads of q that is a multiple of nheads of k", do="Repeat or drop heads.",
        )  # fmt: skip


def _key_value_mismatch(what: str, of_k: int, of_v: int) -> ArgumentError:
    return ArgumentError(
        asked=f"attention with k and v of one {what}", got=f"k with {what} {of_k}, v with {what} {of_v}",
        allowed=f"equal {what} of k and v", do="Pass k and v of the same tokens and heads.",
    )  # fmt: skip


def _check_head_dim(name: str, head_dim: int) -> None:
    if not 1 <= head_dim <= MAX_HEAD_DIM:
        raise ArgumentError(
            asked=f"attention with head_dim {head_dim}", got=f"{name} with head_dim {head_dim}",
            allowed=f"head_dim from 1 to {MAX_HEAD_DIM}", do="Split or project the heads.",
        )  # fmt: skip


def _is_number(value: Any) -> bool:
    """A real number of Python or numpy, not a bool and not a tensor."""
    return not isinstance(value, bool) and isinstance(value, (float, int, numbers.Real))


def check_softmax_scale(scale: Any) -> float:
    """A finite number of any sign, as float."""
    if not _is_number(scale):
        raise ArgumentTypeError(
            asked="scale the scores", got=f"softmax_scale of type {type(scale).__name__}",
            allowed="None (head_dim ** -0.5) or a number", do="Pass float(softmax_scale).",
        )  # fmt: skip
    value = float(scale)
    if not math.isfinite(value):
        raise ArgumentError(
            asked="scale the scores", got=f"softmax_scale {value}", allowed="a finite number of any sign, 0 included",
            do="Pass a finite softmax_scale.",
        )  # fmt: skip
    return value


def check_causal(causal: Any) -> bool:
    """A bool of Python or numpy, 0 or 1: the string "False" would be true."""
    if type(causal).__name__ not in ("bool", "bool_") and not (isinstance(causal, int) and causal in (0, 1)):
        raise ArgumentTypeError(
            asked="attention with causal", got=f"causal {causal!r} of type {type(causal).__name__}",
            allowed="True or False", do="Pass a bool.",
        )  # fmt: skip
    return bool(causal)


def check_dropout(dropout_p: Any) -> None:
    """0; other probabilities are refused, illegal ones as illegal."""
    if not _is_number(dropout_p):
        raise ArgumentTypeError(
            asked="attention with dropout", got=f"dropout_p of type {type(dropout_p).__name__}", allowed="a number",
            do="Pass a float.",
        )  # fmt: skip
    if not 0.0 <= dropout_p < 1.0:
        raise ArgumentError(
            asked="attention with dropout", got=f"dropout_p {dropout_p}", allowed="0 <= dropout_p < 1",
            do="Pass 0.0 in eval mode.",
        )  # fmt: skip
    if dropout_p != 0.0:
        raise UnsupportedError(
            asked="attention with dropout", got=f"dropout_p {dropout_p}", allowed="dropout_p 0.0 in this version",
            do="Pass dropout_p=0.0.",
        )  # fmt: skip


def check_softcap(softcap: Any) -> None:
    """0 (off); other values are refused, illegal ones as illegal."""
    if not _is_number(softcap):
        raise ArgumentTypeError(
            asked="attention with softcap", got=f"softcap of type {type(softcap).__name__}", allowed="a number",
            do="Pass a float.",
        )  # fmt: skip
    if not 0.0 <= softcap < math.inf:
        raise ArgumentError(
            asked="attention with softcap", got=f"softcap {softcap}", allowed="a finite softcap >= 0; 0 is off",
            do="Pass 0.0 or a positive number.",
        )  # fmt: skip
    if softcap != 0.0:
        raise UnsupportedError(
            asked="attention with softcap", got=f"softcap {softcap}", allowed="softcap 0.0 in this version",
            do="Pass softcap=0.0.",
        )  # fmt: skip


def is_causal_window(window_size: Any, causal: bool, seqlen_q: int, seqlen_k: int) -> bool:
    """Whether causal and window together are the causal mask (True) or no mask (False).

    Raises:
        ArgumentError: a window that is not two ints >= -1.
        UnsupportedError: a window that hides keys which neither mask hides.
    """
    left, right = check_window(window_size)
    right = 0 if causal else right
    if 0 <= left < seqlen_k - 1:
        raise _no_window(window_size)
    if right == -1 or right >= seqlen_q - 1:
        return causal
    if right != 0:
        raise _no_window(window_size)
    return True


def check_window(window_size: Any) -> tuple[int, int]:
    """Two ints >= -1, where None is -1.

    Raises:
        ArgumentTypeError: not a pair, or a side that is not an int.
        ArgumentError: a side below -1.
    """
    is_pair = isinstance(window_size, (tuple, list)) and len(window_size) == 2
    sides = [-1 if side is None else side for side in window_size] if is_pair else []
    if not is_pair or any(isinstance(side, bool) or not isinstance(side, (int, numbers.Integral)) for side in sides):
        raise ArgumentTypeError(
            asked="attention with a window", got=f"window_size {window_size!r}", allowed="(left, right), two ints",
            do="Pass (-1, -1) for no window.",
        )  # fmt: skip
    if min(sides) < -1:
        raise ArgumentError(
            asked="attention with a window", got=f"window_size {tuple(window_size)}",
            allowed="left and right >= 0, or -1 for unbounded", do="Replace a negative window_size by -1.",
        )  # fmt: skip
    return int(sides[0]), int(sides[1])


def _no_window(window_size: Any) -> UnsupportedError:
    return UnsupportedError(
        asked="attention with a sliding window", got=f"window_size {tuple(window_size)}",
        allowed="windows that equal no mask or the causal mask, in this version",
        do="Pass window_size=(-1, -1), with causal=True or without.",
    )  # fmt: skip


def check_absent(**features: Any) -> None:
    """None for every argument whose feature this version does not have."""
    for name, value in features.items():
        if value is not None:
            raise UnsupportedError(
                asked=f"attention with {name}", got=f"{name} of type {type(value).__name__}",
                allowed=f"{name}=None in this version", do=f"Leave {name} out.",
            )  # fmt: skip


def check_split(num_splits: Any, pack_gqa: Any) -> None:
    """One split: what the kernels of this version do. Packing of query heads is automatic, on or off."""
    if num_splits not in (None, 0, 1) or isinstance(num_splits, bool):
        raise UnsupportedError(
            asked="attention split over the keys", got=f"num_splits {num_splits!r}", allowed="0 (automatic) or 1",
            do="Leave num_splits out.",
        )  # fmt: skip
    if pack_gqa is not None and not isinstance(pack_gqa, bool):
        raise ArgumentTypeError(
            asked="attention with packed query heads", got=f"pack_gqa {pack_gqa!r} of type {type(pack_gqa).__name__}",
            allowed="None (automatic), True or False", do="Leave pack_gqa out.",
        )  # fmt: skip


def check_descales(q: Tensor, k: Tensor, **descales: Any) -> None:
    """None, or fp32 (batch, nheads_k) on q's device, for FP8 inputs alone.

    Raises:
        ArgumentTypeError: not a tensor, or of another dtype.
        ArgumentError: another shape or device, or inputs that are not FP8.
    """
    shape = (k.shape[0], k.shape[2])
    for name, x in descales.items():
        if x is None:
            continue
        _check_is_tensor(name, x)
        if q.dtype not in FP8_DTYPES:
            raise ArgumentError(
                asked=f"attention with {name}", got=f"{name} with q, k and v of dtype {q.dtype}",
                allowed=f"{name} with FP8 inputs ({_names(FP8_DTYPES)})",
                do=f"Leave {name} out, or quantize the inputs with attnsmith.quantize_fp8.",
            )  # fmt: skip
        if x.dtype != torch.float32:
            raise ArgumentTypeError(
                asked=f"attention with {name}", got=f"{name} of dtype {x.dtype}", allowed="dtype float32",
                do=f"Pass {name}.float().",
            )  # fmt: skip
        if tuple(x.shape) != shape:
            raise ArgumentError(
                asked=f"attention with {name}", got=f"{name} of shape {tuple(x.shape)}",
                allowed=f"(batch, nheads of k) = {shape}", do=f"Expand {name}; strides of 0 are fine.",
            )  # fmt: skip
        if x.device != q.device:
            raise ArgumentError(
                asked=f"attention with {name}", got=f"{name} on {x.device}", allowed=f"q's device {q.device}",
                do=f"Move {name}.",
            )  # fmt: skip


def check_fp8_is_forward_only(*tensors: Tensor | None) -> None:
    """No argument of an FP8 call may ask for a gradient: rounding to FP8 has none, and there is no backward kernel."""
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        raise UnsupportedError(
            asked="FP8 attention under autograd", got="an argument that requires grad",
            allowed="FP8 attention is forward only; gradients need float16 or bfloat16",
            do="Call under torch.no_grad(), or pass tensors that do not require grad.",
        )  # fmt: skip


def check_has_fp8(dtype: torch.dtype, device: str, has_fp8: bool) -> None:
    """FP8 only on a device whose kernels have it.

    Args:
        dtype: of q.
        device: for the message, such as `the simulated GPU a100`.
        has_fp8: whether the device is of SM90.
    """
    if dtype in FP8_DTYPES and not has_fp8:
        raise UnsupportedError(
            asked="FP8 attention", got=f"q of dtype {dtype} on {device}, whose tensor cores have no FP8 attention here",
            allowed="FP8 on SM90 (H100, H200; simulated: h100, h200); float16 and bfloat16 everywhere",
            do="Use such a GPU, or convert q, k and v to bfloat16 (times their descales).",
        )  # fmt: skip


def check_out(out: Any, q: Tensor, k: Tensor, v: Tensor) -> None:
    """A preallocated result: right shape, dtype and device, any strides without overlap."""
    _check_is_tensor("out", out)
    shape = (*q.shape[:3], v.shape[3])
    if tuple(out.shape) != shape:
        raise ArgumentError(
            asked="write the result to out", got=f"out of shape {tuple(out.shape)}", allowed=f"shape {shape}",
            do="Allocate out with q's batch, seqlen and nheads and v's head_dim.",
        )  # fmt: skip
    check_out_dtype(out.dtype, q)
    if out.device != q.device:
        raise ArgumentError(
            asked="write the result to out", got=f"out on {out.device}", allowed=f"q's device {q.device}",
            do="Allocate out with device=q.device.",
        )  # fmt: skip
    if any(size > 1 and stride == 0 for size, stride in zip(out.shape, out.stride(), strict=True)):
        raise ArgumentError(
            asked="write the result to out", got=f"out of strides {out.stride()}, an expanded view",
            allowed="a tensor whose elements do not overlap", do="Allocate out with torch.empty.",
        )  # fmt: skip
    if torch.is_grad_enabled() and any(x.requires_grad for x in (out, q, k, v)):
        raise ArgumentError(
            asked="write the result to out under autograd", got="an argument that requires grad",
            allowed="out= outside autograd", do="Leave out= away, or call under torch.no_grad().",
        )  # fmt: skip


def check_out_dtype(dtype: torch.dtype, q: Tensor) -> None:
    """q's dtype; bf16 or fp16 for FP8."""
    dtypes = FP8_OUT_DTYPES if q.dtype in FP8_DTYPES else (q.dtype,)
    if dtype not in dtypes:
        raise ArgumentTypeError(
            asked=f"write the result of attention of {q.dtype} to out", got=f"out of dtype {dtype}",
            allowed=f"dtype {' or '.join(map(str, dtypes))}", do=f"Allocate out with dtype={dtypes[0]}.",
        )  # fmt: skip


def check_packed(name: str, x: Any, count: int, layout: str) -> None:
    """A packed tensor (b, s, count, h, d)."""
    _check_is_tensor(name, x)
    if x.dim() != 5 or x.shape[2] != count:
        raise ArgumentError(
            asked=f"attention of packed {name}", got=f"{name} of shape {tuple(x.shape)}",
            allowed=f"5-D {layout}", do="Stack the tensors along dim 2, or pass them one by one.",
        )  # fmt: skip
