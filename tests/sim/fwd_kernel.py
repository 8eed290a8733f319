# SPDX-License-Identifier: Apache-2.0
"""The SM80 forward kernel as a test object: its specs, pinned behind the API, or its PTX launched with raw parameters.

Not responsible for what is right: attnsmith.reference is.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import attnsmith
import torch
from attnsmith import launcher, reference
from attnsmith.codegen.build import BuiltKernel, build_kernel
from attnsmith.codegen.registry import kernel_set
from attnsmith.codegen.resources import num_threads, smem_bytes
from attnsmith.codegen.spec import KernelSpec
from attnsmith.tools import ptxsim
from torch import Tensor

TARGET = "sm_80"
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
SPECS = kernel_set("default", TARGET)
PADDED_SPECS = tuple(
    replace(spec, key=replace(spec.key, pads_head_dim=True)) for spec in SPECS if spec.key.head_dim == 64
)


def spec_named(name: str) -> KernelSpec:
    """A spec of the default set, or its zero-filling variant, by name."""
    return next(spec for spec in (*SPECS, *PADDED_SPECS) if spec.name == name)


@functools.cache
def built(spec: KernelSpec, target: str = TARGET) -> BuiltKernel:
    return build_kernel(spec, target)


@contextmanager
def pinned(spec: KernelSpec, **options: Any) -> Iterator[None]:
    """A simulated A100 on which `spec` serves every problem of its key; options go to attnsmith.simulate."""
    with attnsmith.simulate("a100", **options):
        table = launcher.load()
        table.clear_kernels()
        attnsmith.register_kernel(built(spec), priority=-1)
        try:
            yield
        finally:
            table.clear_kernels()


def normal(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """(out, lse) of the API; out over a buffer of NaN."""
    out = torch.full((*q.shape[:3], v.shape[-1]), float("nan"), dtype=q.dtype)
    result, lse, _ = attnsmith.flash_attn_func(q, k, v, return_attn_probs=True, out=out, **options)
    return result, lse


def assert_close_to_reference(q: Tensor, k: Tensor, v: Tensor, result: tuple[Tensor, Tensor], **options: Any) -> None:
    """out and lse by the tolerance rule."""
    ref_out, ref_lse = reference.attention(q, k, v, **options)
    found = reference.compare(result[0], ref_out, reference.same_dtype_attention(q, k, v, **options))
    assert found.ok, f"out: {found}"
    found_lse = reference.compare_lse(result[1], ref_lse)
    assert found_lse.ok, f"lse: {found_lse}"


def assert_within_rounding(q: Tensor, k: Tensor, v: Tensor, result: tuple[Tensor, Tensor], **options: Any) -> None:
    """out within what rounding P and O to 16 bits explains (half an ulp each), lse by the rule.

    For large scores: there the rule's yardstick, which rounds scores to 16 bits, allows almost anything or overflows.
    """
    ref_out, ref_lse = reference.attention(q, k, v, **options)
    error = (result[0].double() - ref_out).abs().amax(dim=(0, 2, 3))
    bound = torch.finfo(q.dtype).eps * float(v.double().abs().max()) + 1e-5
    wrong = (~(error <= bound)).nonzero().flatten().tolist()
    assert not wrong, f"out: rows {wrong}, worst {float(error.max())}, allowed {bound}"
    found_lse = reference.compare_lse(result[1], ref_lse)
    assert found_lse.ok, f"lse: {found_lse}"


class FwdParams(ctypes.Structure):
    """attnsmith::FwdParams of templates/include/attnsmith/params.hpp."""

    _fields_ = (
        *((f"{name}_ptr", ctypes.c_uint64) for name in ("q", "k", "v", "o", "lse")),
        *((f"{name}_{stride}", ctypes.c_int64) for name in "qkvo" for stride in ("batch", "row", "head")),
        *((name, ctypes.c_int32) for name in ("batch", "seqlen_q", "seqlen_k", "nheads_q", "nheads_k")),
        *((name, ctypes.c_int32) for name in ("nheads_q_per_k", "head_dim", "head_dim_v", "num_m_blocks")),
        ("scale_log2", ctypes.c_float),
        ("rescale_threshold", ctypes.c_float),
        ("q_sign", ctypes.c_int32),
    )


def fwd_params(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float, block_m: int) -> FwdParams:
    """Parameters of one launch; strides of contiguous or strided (b, s, h, d) tensors."""
    params = FwdParams(lse_ptr=lse.data_ptr(), batch=q.shape[0], seqlen_q=q.shape[1], seqlen_k=k.shape[1])
    for name, x in {"q": q, "k": k, "v": v, "o": out}.items():
        setattr(params, f"{name}_ptr", x.data_ptr())
        for stride, value in zip(("batch", "row", "head"), x.stride()[:3], strict=True):
            setattr(params, f"{name}_{stride}", value)
    params.nheads_q, params.nheads_k = q.shape[2], k.shape[2]
    params.nheads_q_per_k = q.shape[2] // k.shape[2]
    params.head_dim, params.head_dim_v = q.shape[3], v.shape[3]
    params.num_m_blocks = -(-q.shape[1] // block_m)
    params.scale_log2 = abs(scale) / math.log(2) if scale else 1.0
    params.rescale_threshold = 8 / params.scale_log2
    params.q_sign = (scale > 0) - (scale < 0)
    return params


def extent_bytes(x: Tensor) -> int:
    """From the first element to the last."""
    if x.numel() == 0:
        return 0
    return (sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) + 1) * x.element_size()


@dataclass(frozen=True)
class Ptx:
    """A kernel's PTX, perhaps changed, and how to launch it."""

    spec: KernelSpec
    text: str

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float | None = None, **options: Any
    ) -> tuple[Tensor, Tensor, ptxsim.Stats]:
        """(out, lse, stats), both outputs poisoned before; options go to ptxsim's launch."""
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        out = torch.full((*q.shape[:3], v.shape[3]), float("nan"), dtype=q.dtype)
        lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), float("nan"))
        params = fwd_params(q, k, v, out, lse, scale, self.spec.tile.block_m)
        tensors = {"q": (q, False), "k": (k, False), "v": (v, False), "out": (out, True), "lse": (lse, True)}
        with ptxsim.load(self.text) as module:
            stats = module.launch(
                self.spec.name,
                params.num_m_blocks * q.shape[2] * q.shape[0],
                num_threads(self.spec),
                bytes(params),
                shared_bytes=smem_bytes(self.spec),
                allocations=[(x.data_ptr(), extent_bytes(x), name, rw) for name, (x, rw) in tensors.items()],
                **options,
            )
        return out, lse, stats


def ptx_of(spec: KernelSpec) -> Ptx:
    return Ptx(spec, built(spec).ptx)
