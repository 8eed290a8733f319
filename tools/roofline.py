# SPDX-License-Identifier: Apache-2.0
"""What a GPU's limits allow: clocks per key block of a kernel by unit, and the least time of an attention call.

Published limits and arithmetic, for predictions that are written down before anything is measured. Not responsible for
how near a kernel comes to them: gpu-check measures that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from attnsmith.codegen.resources import WARP_SIZE
from attnsmith.codegen.spec import Arch, KernelSpec
from attnsmith.tools.bench import AttentionShape


@dataclass(frozen=True, kw_only=True)
class GpuLimits:
    """Peaks of one GPU, per SM and clock where not said otherwise. Dense, without sparsity."""

    name: str
    """As the simulator calls it."""
    num_sms: int
    """Multiprocessors."""
    flops: int
    """fp16 and bf16 tensor FLOP."""
    fp8_flops: int
    """FP8 tensor FLOP; 0 where there are none."""
    peak_tflops: float
    """Of the whole GPU at its boost clock, fp16 and bf16."""
    memory_bytes_per_second: float
    """Of the whole GPU."""
    exps: int = 16
    """MUFU.EX2."""
    smem_bytes: int = 128
    """Shared memory read or written."""
    schedulers: int = 4
    """Each issues one warp instruction."""

    @property
    def clock_hz(self) -> float:
        """The boost clock, from the peak."""
        return self.peak_tflops * 1e12 / (self.num_sms * self.flops)

    def tensor_flops(self, element_bytes: int) -> int:
        """Of the element size; FP8 only where the GPU has it."""
        return self.fp8_flops if element_bytes == 1 else self.flops


GPUS = {
    gpu.name: gpu
    for gpu in (
        GpuLimits(name="a100", num_sms=108, flops=2048, fp8_flops=0, peak_tflops=312.0, memory_bytes_per_second=2.0e12),
        GpuLimits(
            name="h100", num_sms=132, flops=4096, fp8_flops=8192, peak_tflops=989.0, memory_bytes_per_second=3.35e12
        ),
        GpuLimits(
            name="h200", num_sms=132, flops=4096, fp8_flops=8192, peak_tflops=989.0, memory_bytes_per_second=4.8e12
        ),
    )
}
"""By the simulator's names; the RTX cards' figures are not known well enough."""

WGMMA_ROWS = 64
"""M of every wgmma."""
OPERAND_ROW_BYTES = 32
"""Bytes along K of every wgmma: 16 elements of 16 bits, 32 of 8."""


@dataclass(frozen=True, kw_only=True)
class TileCycles:
    """Clocks that one key block of a CTA keeps each unit of an SM busy. The largest bounds the main loop."""

    mma: float
    """Tensor cores, both products."""
    exp: float
    """MUFU, one exponential per score (less those on the FMA pipes)."""
    smem: float
    """Shared memory: wgmma's operands, arriving K and V, FP8's rewritten V, P where it goes through shared memory."""
    issue_per_instruction: float
    """Issue slots for one instruction per score."""

    @property
    def bound(self) -> str:
        """The busiest unit; tensor cores where another is as busy."""
        busy = {"tensor cores": self.mma, "exp": self.exp, "shared memory": self.smem}
        return max(busy, key=lambda name: busy[name])

    @property
    def share_of_peak(self) -> float:
        """Of the tensor cores' peak, at most."""
        return self.mma / max(self.mma, self.exp, self.smem)

    def issue(self, per_score: float) -> float:
        """Clocks that the schedulers need for so many non-tensor instructions per score."""
        return per_score * self.issue_per_instruction


def tile_cycles(spec: KernelSpec, gpu: GpuLimits) -> TileCycles:
    """Of an SM90 kernel's main loop.

    wgmma reads B (and A, unless it is in registers) from shared memory: 64 x 32 bytes of A, N x 32 bytes of B.
    """
    if spec.key.arch is not Arch.SM90:
        raise ValueError(f"{spec.name}: operand traffic is known for wgmma only; allowed: kernels of the SM90 family")
    key, tile = spec.key, spec.tile
    element, scores = key.dtype.num_bytes, tile.block_m * tile.block_n
    warpgroups = tile.block_m // WGMMA_ROWS
    steps = {"qk": key.head_dim * element / OPERAND_ROW_BYTES, "pv": tile.block_n * element / OPERAND_ROW_BYTES}
    operand_a = WGMMA_ROWS * OPERAND_ROW_BYTES
    per_warpgroup = steps["qk"] * (operand_a + tile.block_n * OPERAND_ROW_BYTES)
    per_warpgroup += steps["pv"] * (operand_a * tile.p_in_smem + key.head_dim_v * OPERAND_ROW_BYTES)
    per_cta = tile.block_n * (key.head_dim + key.head_dim_v) * element
    per_cta += scores * element * tile.p_in_smem
    if key.dtype.is_fp8:  # V is rewritten: transposed, or its keys reordered in place
        per_cta += 2 * tile.block_n * key.head_dim_v
    flops = 2 * scores * (key.head_dim + key.head_dim_v)
    return TileCycles(
        mma=flops / gpu.tensor_flops(element),
        exp=scores * (8 - tile.exp2_fma_eighths) / 8 / gpu.exps,
        smem=(warpgroups * per_warpgroup + per_cta) / gpu.smem_bytes,
        issue_per_instruction=scores / WARP_SIZE / gpu.schedulers,
    )


def predictions_table(specs: Iterable[KernelSpec], gpu: GpuLimits, per_score: float) -> list[str]:
    """Markdown: for each head dim and tile the clocks per key block. Dtypes of one size share a row, as do masks."""
    lines = [
        f"| tile | MMA | exp | shared memory | issue at {per_score:g} per score | busiest | TFLOPS, at most |",
        "|---|---|---|---|---|---|---|",
    ]
    for spec in specs:
        key, tile, cycles = spec.key, spec.tile, tile_cycles(spec, gpu)
        dims = f"D{key.head_dim}" if key.head_dim == key.head_dim_v else f"D{key.head_dim}x{key.head_dim_v}"
        peak = gpu.peak_tflops * gpu.tensor_flops(key.dtype.num_bytes) / gpu.flops
        title = f"{'FP8' if key.dtype.is_fp8 else '16-bit'} {dims} {tile.block_m}x{tile.block_n}"
        figures = (cycles.mma, cycles.exp, cycles.smem, cycles.issue(per_score))
        cells = [title, *(f"{figure:.0f}" for figure in figures), cycles.bound, f"{peak * cycles.share_of_peak:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return list(dict.fromkeys(lines))


@dataclass(frozen=True, kw_only=True)
class LeastTime:
    """Seconds below which no schedule can bring attention calls on a GPU; launches are not counted."""

    mma: float
    """Tensor cores at peak."""
    exp: float
    """One exponential per score on MUFU."""
    memory: float
    """Bytes moved, at the memory's peak."""

    @property
    def seconds(self) -> float:
        """All units overlap perfectly: the slowest one's."""
        return max(self.mma, self.exp, self.memory)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**asdict(self), "seconds": self.seconds}

    def __add__(self, other: LeastTime) -> LeastTime:
        """Of both calls, one after the other."""
        return LeastTime(mma=self.mma + other.mma, exp=self.exp + other.exp, memory=self.memory + other.memory)


def least_time(shape: AttentionShape, bytes_moved: int, gpu: GpuLimits) -> LeastTime:
    """Of one forward call with a full mask."""
    scores = shape.batch * shape.nheads * shape.seqlen_q * shape.seqlen_k
    per_second = gpu.num_sms * gpu.clock_hz
    return LeastTime(
        mma=2 * scores * (shape.head_dim + shape.head_dim_v) / (per_second * gpu.tensor_flops(shape.element_bytes)),
        exp=scores / (per_second * gpu.exps),
        memory=bytes_moved / gpu.memory_bytes_per_second,
    )
