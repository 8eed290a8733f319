# SPDX-License-Identifier: Apache-2.0
"""What outliers cost FP8 attention, with and without incoherent processing, for any implementation of attention.

The inputs are those of FlashAttention-3's section 4.3: N(0, 1) plus, with probability 0.001, N(0, 100). Not responsible
for what computes: the caller passes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from attnsmith import reference
from attnsmith.quantize import QuantizedInputs, quantize_fp8
from torch import Tensor

OUTLIER_PROBABILITY = 0.001
OUTLIER_STD = 10.0
SEQLEN_Q, SEQLEN_K, NHEADS, HEAD_DIM = 128, 8192, 2, 128
SEEDS = range(4)

Attend = Callable[[QuantizedInputs], Tensor]


@dataclass(frozen=True, kw_only=True)
class OutlierErrors:
    """Root mean square errors against fp32 attention of the inputs before quantization."""

    per_tensor: float
    """Plain FP8 attention: one scale per tensor."""
    incoherent: float
    """One scale per (batch, key head), q and k rotated."""

    @property
    def gain(self) -> float:
        """How many times smaller the error of incoherent processing is."""
        return self.per_tensor / self.incoherent


def outlier_inputs(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of one sequence, fp32."""
    generator = torch.Generator().manual_seed(seed)

    def draw(seqlen: int) -> Tensor:
        shape = (1, seqlen, NHEADS, HEAD_DIM)
        is_outlier = torch.rand(shape, generator=generator) < OUTLIER_PROBABILITY
        outliers = torch.randn(shape, generator=generator) * OUTLIER_STD
        return torch.randn(shape, generator=generator) + outliers * is_outlier

    return draw(SEQLEN_Q), draw(SEQLEN_K), draw(SEQLEN_K)


def outlier_errors(attend: Attend, dtype: torch.dtype) -> OutlierErrors:
    """Both errors of `attend` on the same inputs, over every seed: few rows have outliers, so that one says little."""
    mean_squares = torch.zeros(2, dtype=torch.float64)
    for seed in SEEDS:
        q, k, v = outlier_inputs(seed)
        truth = reference.attention(q, k, v, compute_dtype=torch.float32)[0]
        plain = quantize_fp8(q, k, v, dtype=dtype, per_tensor=True)
        rotated = quantize_fp8(q, k, v, dtype=dtype, incoherent=True, seed=seed)
        for i, quantized in enumerate((plain, rotated)):
            mean_squares[i] += (attend(quantized) - truth).square().mean(dtype=torch.float64)
    per_tensor, incoherent = (mean_squares / len(SEEDS)).sqrt().tolist()
    return OutlierErrors(per_tensor=per_tensor, incoherent=incoherent)
