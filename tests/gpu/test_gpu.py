# SPDX-License-Identifier: Apache-2.0
"""What only a real GPU shows: cubins against the reference and the simulator, streams, graphs, grid and offset limits.

`attnsmith gpu-check` covers every variant; these are the few that a pytest run on a GPU machine should not miss.
"""

from __future__ import annotations

import attnsmith
import pytest
import torch
from attnsmith.codegen.build import build_kernel
from attnsmith.codegen.registry import family_of, kernel_set
from attnsmith.codegen.spec import Arch, KernelSpec
from attnsmith.tools.check import CheckCase, make_inputs, run_check
from attnsmith.tools.gpu_check import SIMULATED_DEVICES, only_kernel, variant_case

SIZES = [(1, 1), (1, 257), (64, 64), (113, 203), (203, 113), (128, 256), (257, 1), (1024, 1024)]


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: f"{sizes[0]}x{sizes[1]}")
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("head_dim", [32, 40, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_matches_the_reference(dtype: str, head_dim: int, causal: bool, sizes: tuple[int, int]) -> None:
    case = CheckCase(
        device="cuda", dtype=dtype, batch=2, seqlen_q=sizes[0], seqlen_k=sizes[1], nheads=4, nheads_k=2,
        head_dim=head_dim, causal=causal,
    )  # fmt: skip
    result = run_check(case)
    assert result.ok, result.tensors


FP8_SIZES = [(1, 257), (113, 203), (257, 1), (1024, 1024)]


@pytest.mark.parametrize("sizes", FP8_SIZES, ids=lambda sizes: f"{sizes[0]}x{sizes[1]}")
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("v_layout", ["row", "col"])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
def test_fp8_matches_the_reference(
    dtype: str, head_dim: int, v_layout: str, causal: bool, sizes: tuple[int, int], target: str
) -> None:
    require_family(Arch.SM90, target)
    case = CheckCase(
        device="cuda", dtype=dtype, batch=2, seqlen_q=sizes[0], seqlen_k=sizes[1], nheads=4, nheads_k=2,
        head_dim=head_dim, causal=causal, v_layout=v_layout,
    )  # fmt: skip
    result = run_check(case)
    assert result.ok, result.tensors


def require_family(arch: Arch, target: str) -> None:
    """Skip where the GPU's kernels are another family's."""
    if family_of(target) is not arch:
        pytest.skip(f"needs a GPU of the {arch.name} family; this one's target is {target}")


MINIMAL = [spec for target in ("sm_80", "sm_90a") for spec in kernel_set("minimal", target)]


@pytest.mark.parametrize("spec", MINIMAL, ids=lambda spec: spec.name)
def test_gpu_and_simulator_agree(spec: KernelSpec, target: str) -> None:
    require_family(spec.key.arch, target)
    case = variant_case(spec, "cuda", (113, 203), seed=3)
    with only_kernel(build_kernel(spec, target)):
        real = run_check(case)
        simulated = run_check(CheckCase(**{**vars(case), "device": f"sim:{SIMULATED_DEVICES[target]}"}))
    assert real.ok and simulated.ok
    difference = (real.outputs["out"].cpu().double() - simulated.outputs["out"].double()).abs().max()
    assert difference <= real.tensors["out"].allowed


def inputs(**changes: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return make_inputs(CheckCase(device="cuda", **changes), torch.device("cuda"))  # type: ignore[arg-type]


def test_det_05_repeats_give_the_same_bits() -> None:
    tensors = inputs(batch=8, seqlen_q=239, seqlen_k=203, nheads=4)
    expected = attnsmith.flash_attn_func(*tensors)
    for _ in range(250):
        assert torch.equal(attnsmith.flash_attn_func(*tensors), expected)


def test_a_tile_counter_is_zero_again_after_every_launch() -> None:
    """Causal kernels on Hopper take tiles from a counter that no launch before them may leave behind."""
    small, large = inputs(batch=1, seqlen_q=300, nheads=2), inputs(batch=4, seqlen_q=2000, seqlen_k=2000, nheads=16)
    expected = [attnsmith.flash_attn_func(*tensors, causal=True) for tensors in (small, large)]
    for _ in range(20):
        for tensors, out in zip((small, large), expected, strict=True):
            assert torch.equal(attnsmith.flash_attn_func(*tensors, causal=True), out)


def test_causal_calls_on_two_streams_do_not_share_a_counter() -> None:
    tensors = inputs(batch=2, seqlen_q=1500, seqlen_k=1500, nheads=16)
    expected = attnsmith.flash_attn_func(*tensors, causal=True)
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    found = []
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(attnsmith.flash_attn_func(*tensors, causal=True))
    torch.cuda.synchronize()
    assert all(torch.equal(out, expected) for out in found)


def test_int_08_captured_in_a_graph() -> None:
    q, k, v = inputs()
    out = torch.empty_like(q)
    attnsmith.flash_attn_func(q, k, v, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attnsmith.flash_attn_func(q, k, v, out=out)
    q.copy_(torch.randn_like(q))
    out.fill_(float("nan"))
    graph.replay()
    assert torch.equal(out, attnsmith.flash_attn_func(q, k, v))


def test_int_10_runs_on_the_current_stream() -> None:
    q, k, v = inputs(seqlen_q=1024, seqlen_k=1024)
    expected = attnsmith.flash_attn_func(q * 2, k, v)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        out = attnsmith.flash_attn_func(q * 2, k, v)
    stream.synchronize()
    assert torch.equal(out, expected)


@pytest.mark.parametrize("batch", [65535, 65536, 65537])
def test_shp_12_batches_beyond_the_grid_limit(batch: int) -> None:
    q, k, v = inputs(batch=batch, seqlen_q=4, seqlen_k=4, nheads=1, head_dim=32, dtype="fp16")
    out = attnsmith.flash_attn_func(q, k, v)
    for i in (0, 65534, batch - 1):
        part = slice(i, i + 1)
        assert torch.equal(out[part], attnsmith.flash_attn_func(q[part], k[part], v[part]))


def test_shp_14_tensors_beyond_2_to_the_31_bytes() -> None:
    shape = (1600, 16, 729, 72)
    if torch.cuda.mem_get_info()[0] < 5 * 2 * 1600 * 16 * 729 * 72:
        pytest.skip("needs 13.5 GB of GPU memory")
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    out = attnsmith.flash_attn_func(q, k, v)
    for i in (0, 801, 1599):
        part = slice(i, i + 1)
        assert torch.equal(out[part], attnsmith.flash_attn_func(q[part], k[part], v[part]))
