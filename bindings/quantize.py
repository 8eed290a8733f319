# SPDX-License-Identifier: Apache-2.0
"""Quantization of q, k and v to FP8 with one scale per (batch, key head), ready for flash_attn_func.

Plain PyTorch on any device, in fp32. Not responsible for the rotation's matrix (hadamard.py) or for what kernels make
of the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from attnsmith import checks
from attnsmith.errors import ArgumentTypeError
from attnsmith.hadamard import incoherent_rotation
from torch import Tensor

_SOURCE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)

_KEY_ALIGNMENT = 16
"""A column of a column-major V starts at a multiple of 16 bytes, as TMA asks: the kernel then reads it in place."""


@dataclass(frozen=True, kw_only=True)
class QuantizedInputs:
    """Arguments of flash_attn_func by name, which takes them as `flash_attn_func(**quantized, causal=True)`."""

    q: Tensor
    """FP8 (b, sq, h, d)."""
    k: Tensor
    """FP8 (b, sk, hk, d)."""
    v: Tensor
    """FP8 (b, sk, hk, dv)."""
    q_descale: Tensor
    """fp32 (b, hk): query head i of a batch is q * q_descale[:, i // (h // hk)]."""
    k_descale: Tensor
    """fp32 (b, hk)."""
    v_descale: Tensor
    """fp32 (b, hk)."""

    def keys(self) -> Iterator[str]:
        """Names of the arguments."""
        return (field.name for field in fields(self))

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.keys():
            raise KeyError(name)
        value: Tensor = getattr(self, name)
        return value


def quantize_fp8(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    incoherent: bool = False,
    seed: int = 0,
    per_tensor: bool = False,
    v_is_col_major: bool = False,
) -> QuantizedInputs:
    """q, k and v in FP8 with the factors that undo their scaling.

    The largest finite magnitude of a (batch, key head) becomes the largest finite number of `dtype`; for q it is that
    of the query heads of one key head together. NaN stays NaN, infinity becomes what the type has for it (NaN in e4m3),
    and nothing is clipped. Not differentiable.

    Args:
        q: (b, sq, h, d), fp16, bf16 or fp32, d <= 256.
        k: (b, sk, hk, d).
        v: (b, sk, hk, dv).
        dtype: torch.float8_e4m3fn or torch.float8_e5m2.
        incoherent: rotate q and k by incoherent_rotation(d, seed) before rounding. Scores stay what they are, while the
            error that outliers cause falls. Keys of one cache need one seed.
        seed: of the rotation.
        per_tensor: one scale for each of q, k and v, however many heads: what is simplest elsewhere, and less accurate.
        v_is_col_major: lay v's keys out contiguously, which spares the kernel a transpose.

    Returns:
        QuantizedInputs.

    Raises:
        TypeError, ValueError: as flash_attn_func for q, k and v; TypeError for a dtype that is no FP8 type.
    """
    if dtype not in checks.FP8_DTYPES:
        raise ArgumentTypeError(
            asked="quantize to FP8", got=f"dtype {dtype}", allowed="torch.float8_e4m3fn, torch.float8_e5m2",
            do="Pass one of these as dtype.",
        )  # fmt: skip
    checks.check_tensors(q, k, v, allowed=_SOURCE_DTYPES)
    with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
        if incoherent:
            rotation = incoherent_rotation(q.shape[-1], seed).to(q.device)
            q, k = q.to(torch.float32) @ rotation, k.to(torch.float32) @ rotation
        q8, q_descale = _quantize(q, k.shape[2], dtype, per_tensor)
        k8, k_descale = _quantize(k, k.shape[2], dtype, per_tensor)
        v8, v_descale = _quantize(v, k.shape[2], dtype, per_tensor)
        if v_is_col_major:
            v8 = to_col_major(v8)
    return QuantizedInputs(q=q8, k=k8, v=v8, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)


def _quantize(x: Tensor, nheads_k: int, dtype: torch.dtype, per_tensor: bool) -> tuple[Tensor, Tensor]:
    """x (b, s, h, d) -> FP8 of the same shape, contiguous, and its descale (b, nheads_k)."""
    x = x.to(torch.float32)
    groups = x.reshape(*x.shape[:2], nheads_k, x.shape[2] // max(1, nheads_k), x.shape[3])
    descale = _descale(groups, dtype, per_tensor)
    return _round((groups / descale[:, None, :, None, None]).flatten(2, 3), dtype), descale


def _round(x: Tensor, dtype: torch.dtype) -> Tensor:
    """fp32 -> FP8, to nearest even, where finite numbers exceed the type's range by no more than a rounding error.

    What torch's cast makes of larger ones and of infinity depends on its version, so it gets neither: 448 or NaN.
    """
    most = torch.finfo(dtype).max
    infinity = x if dtype == torch.float8_e5m2 else torch.full_like(x, float("nan"))
    return torch.where(x.isinf(), infinity, x.clamp(-most, most)).to(dtype)


def _descale(groups: Tensor, dtype: torch.dtype, per_tensor: bool) -> Tensor:
    """(b, s, hk, group, d) -> (b, hk): largest finite magnitude over that of the type; 1 where all is zero."""
    batch, _, nheads_k = groups.shape[:3]
    if groups.numel() == 0:
        return torch.ones(batch, nheads_k, dtype=torch.float32, device=groups.device)
    magnitude = groups.abs()
    largest = magnitude.masked_fill(~torch.isfinite(magnitude), 0.0).amax(dim=(1, 3, 4))
    if per_tensor:
        largest = largest.amax().expand_as(largest).contiguous()
    smallest_normal = torch.finfo(torch.float32).tiny  # below it a GPU that flushes subnormals would divide by zero
    scale = (largest / torch.finfo(dtype).max).clamp_min(smallest_normal)
    return torch.where(largest > 0, scale, 1.0)


def to_col_major(v: Tensor) -> Tensor:
    """The same values of v (b, sk, hk, dv) with contiguous keys, each (batch, head, column) on a 16-byte boundary."""
    batch, seqlen_k, nheads_k, head_dim_v = v.shape
    width = (seqlen_k + _KEY_ALIGNMENT - 1) // _KEY_ALIGNMENT * _KEY_ALIGNMENT
    columns = v.new_zeros(batch, nheads_k, head_dim_v, width)[..., :seqlen_k]
    return columns.copy_(v.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
