# SPDX-License-Identifier: Apache-2.0
"""Predictions from limits: the ratios that KERNELS.md derives, and what bounds which tile."""

from __future__ import annotations

from dataclasses import replace

import pytest
from attnsmith.codegen.registry import kernel_set
from attnsmith.codegen.spec import Arch, DType, KernelSpec, Mask, ProblemKey, TileConfig
from attnsmith.tools.anchors import PUBLIC_SPEEDS, public_speed
from attnsmith.tools.bench import AttentionShape
from attnsmith.tools.roofline import GPUS, LeastTime, least_time, tile_cycles

H100 = GPUS["h100"]


def spec(dtype: DType, head_dim: int, block_m: int = 128, block_n: int = 128, **tile: object) -> KernelSpec:
    key = ProblemKey(arch=Arch.SM90, dtype=dtype, head_dim=head_dim, head_dim_v=head_dim, mask=Mask.FULL)
    config = TileConfig(block_m=block_m, block_n=block_n, num_warps=block_m // 16, num_stages=2)
    return KernelSpec(key=key, tile=replace(config, **tile))  # type: ignore[arg-type]


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_exp_over_mma_is_64_over_d_and_128_over_d_in_fp8(head_dim: int) -> None:
    for dtype, ratio in ((DType.BF16, 64 / head_dim), (DType.E4M3, 128 / head_dim)):
        cycles = tile_cycles(spec(dtype, head_dim), H100)
        assert cycles.exp / cycles.mma == pytest.approx(ratio)


def test_mma_clocks_are_the_products_at_peak() -> None:
    assert tile_cycles(spec(DType.BF16, 128), H100).mma == 4 * 128 * 128 * 128 / 4096
    assert tile_cycles(spec(DType.E4M3, 128), H100).mma == 4 * 128 * 128 * 128 / 8192


def test_operands_in_shared_memory_take_what_wgmma_reads() -> None:
    """SS m64nNk16: 16 + N/4 clocks; RS: N/4. Two warpgroups, and K and V arrive once."""
    cycles = tile_cycles(spec(DType.FP16, 128), H100)
    arriving = 128 * 256 * 2 / 128
    assert cycles.smem == 2 * (8 * (16 + 32) + 8 * 32) + arriving
    through_smem = tile_cycles(spec(DType.FP16, 128, p_in_smem=True), H100)
    assert through_smem.smem == cycles.smem + 2 * 8 * 16 + 128 * 128 * 2 / 128


def test_fp8_rewrites_v_in_shared_memory() -> None:
    """Half of 16-bit's operand and arriving bytes at half of the steps' width, and V read and written once more."""
    row_major = spec(DType.E4M3, 128)
    col_major = replace(row_major, key=replace(row_major.key, v_is_col_major=True))
    expected = 2 * (4 * (16 + 32) + 4 * 32) + 128 * 256 / 128 + 2 * 128 * 128 / 128
    assert tile_cycles(row_major, H100).smem == tile_cycles(col_major, H100).smem == expected


def test_exponentials_on_the_fma_pipes_leave_mufu() -> None:
    plain, shared = (tile_cycles(spec(DType.E4M3, 64, exp2_fma_eighths=n), H100) for n in (0, 2))
    assert shared.exp == plain.exp * 6 / 8
    assert plain.bound == "exp"


def test_issue_slots() -> None:
    """6.5 instructions per score: 128 x 128 scores are 512 warp instructions for one of them, over 4 schedulers."""
    assert tile_cycles(spec(DType.BF16, 128), H100).issue(6.5) == 6.5 * 128


def test_every_default_tile_can_be_predicted() -> None:
    for kernel in kernel_set("default", "sm_90a"):
        cycles = tile_cycles(kernel, H100)
        assert 0 < cycles.smem < 2 * max(cycles.mma, cycles.exp), kernel.name
        assert cycles.bound in ("tensor cores", "exp", "shared memory")
    with pytest.raises(ValueError, match="SM90"):
        tile_cycles(kernel_set("minimal", "sm_80")[0], GPUS["a100"])


def test_clocks_follow_from_the_peaks() -> None:
    assert GPUS["a100"].clock_hz == pytest.approx(1.41e9, rel=1e-3)
    assert H100.clock_hz == pytest.approx(1.83e9, rel=1e-3)
    assert (H100.tensor_flops(2), H100.tensor_flops(1)) == (4096, 8192)


def test_least_time_is_the_slowest_units() -> None:
    shape = AttentionShape(
        batch=2, nheads=16, nheads_k=16, seqlen_q=8192, seqlen_k=8192, head_dim=128, head_dim_v=128, element_bytes=2
    )
    time = least_time(shape, shape.input_output_bytes, H100)
    assert time.seconds == time.mma == pytest.approx(4 * 2 * 16 * 8192**2 * 128 / 989e12)
    assert time.memory == pytest.approx(shape.input_output_bytes / 3.35e12)
    assert time.exp == pytest.approx(time.mma / 2)
    assert (time + time).seconds == pytest.approx(2 * time.seconds)
    assert set(time.to_dict()) == {"mma", "exp", "memory", "seconds"}
    assert LeastTime(mma=1.0, exp=3.0, memory=2.0).seconds == 3.0


def test_published_speeds_are_below_the_peak_and_found_by_name() -> None:
    for row in PUBLIC_SPEEDS:
        peak = 1979.0 if "e4m3" in row.dtypes else 989.0
        assert all(0 < value < peak for value in (row.full, row.causal) if value is not None)
    found = public_speed("NVIDIA H100 80GB HBM3", "bf16", 128)
    assert found is not None and (found.tflops(False), found.tflops(True)) == (648.0, 616.0)
    on_h200 = public_speed("NVIDIA H200", "bf16", 128)
    assert on_h200 is not None and on_h200.gpu == "H200"
    stand_in = public_speed("NVIDIA H200", "e5m2", 64)
    assert stand_in is not None and stand_in.gpu == "H100" and stand_in.tflops(True) is None
    assert public_speed("NVIDIA A100-SXM4-80GB", "bf16", 128) is None
    assert public_speed("NVIDIA H100", "bf16", 96) is None
