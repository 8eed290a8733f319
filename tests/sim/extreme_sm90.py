# SPDX-License-Identifier: Apache-2.0
"""What the tests of extreme numbers on the SM90 kernels, 16-bit, share: kernels that differ in every option of softmax,
with small key blocks, so that few keys make many, and what a run is compared with. Not responsible for inputs.
"""

from __future__ import annotations

import torch
from attnsmith.codegen.spec import Mask, Scheduler
from torch import Tensor

from tests.sim.fwd_kernel import DTYPES, assert_within_rounding
from tests.sim.fwd_sm90_kernel import Sm90Ptx, spec_like

BLOCK_N = 64
SKIP = spec_like("fwd_sm90_bf16_hdim64_full_64x128", block_n=BLOCK_N)
RESCALE = spec_like("fwd_sm90_fp16_hdim64_causal_64x128", block_n=BLOCK_N, skips_rescale=False, exp2_fma_eighths=1)
SERIAL = spec_like("fwd_sm90_bf16_hdim64_causal_64x128", block_n=BLOCK_N, overlaps_softmax=False, exp2_fma_eighths=2)
P_IN_SMEM = spec_like(
    "fwd_sm90_fp16_hdim64_full_64x128",
    block_m=128,
    block_n=BLOCK_N,
    num_warps=8,
    is_ping_pong=True,
    p_in_smem=True,
    exp2_fma_eighths=4,
)
PACKED = spec_like(
    "fwd_sm90_bf16_hdim64_causal_64x128",
    block_n=BLOCK_N,
    packs_gqa=True,
    scheduler=Scheduler.DYNAMIC,
    exp2_fma_eighths=8,
)
SPECS = {"skip": SKIP, "rescale-fma1": RESCALE, "serial-fma2": SERIAL, "psmem-fma4": P_IN_SMEM, "packed-fma8": PACKED}
NAN, INF = float("nan"), float("inf")
CAUSAL = [name for name, spec in SPECS.items() if spec.key.mask is Mask.CAUSAL]


def dtype_of(kernel: Sm90Ptx) -> torch.dtype:
    return DTYPES[kernel.spec.key.dtype.value]


def options_of(kernel: Sm90Ptx) -> dict[str, bool]:
    return {"causal": kernel.spec.key.mask is Mask.CAUSAL}


def attend(
    kernel: Sm90Ptx, q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None
) -> tuple[Tensor, Tensor]:
    out, lse, _ = kernel.run(q, k, v, softmax_scale=softmax_scale, num_ctas=2)
    return out, lse


def check(
    kernel: Sm90Ptx, q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Run; out within rounding of P and O, lse by the rule."""
    result = attend(kernel, q, k, v, softmax_scale)
    assert_within_rounding(q, k, v, result, softmax_scale=softmax_scale, **options_of(kernel))
    return result


def assert_same_kinds(result: tuple[Tensor, Tensor], ref: tuple[Tensor, Tensor], allowed: float = 0.05) -> None:
    """NaN and each infinity exactly where the reference has them; an error of at most `allowed` elsewhere."""
    for got, wanted in zip(result, ref, strict=True):
        assert torch.equal(got.isnan(), wanted.isnan())
        assert torch.equal(got.isposinf(), wanted.isposinf()) and torch.equal(got.isneginf(), wanted.isneginf())
        finite = torch.isfinite(wanted)
        assert (got.double() - wanted)[finite].abs().max() < allowed
