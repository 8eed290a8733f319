# SPDX-License-Identifier: Apache-2.0
"""The SM90 kernels behind the API on a simulated H100: strides, packing, persistent grids, what runs SM80 instead, and
the host's work per call. Not responsible for the kernels' numerics: their own tests are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import attnsmith
import pytest
import torch
from attnsmith import launcher, reference
from attnsmith.codegen.build import build_kernel
from attnsmith.codegen.dispatch import spec_for
from attnsmith.codegen.spec import DType, Mask, Scheduler
from attnsmith.quantize import to_col_major
from torch import Tensor


@pytest.fixture(autouse=True)
def h100() -> Iterator[None]:
    """Each test starts and ends with an empty table, inside the simulated H100."""
    with attnsmith.simulate("h100"):
        launcher.load().clear_kernels()
        yield
        launcher.load().clear_kernels()


def tensors(
    sq: int = 70, sk: int = 90, h: int = 2, hk: int = 2, d: int = 64, dv: int | None = None, b: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(sq * 1000 + sk)
    shapes = ((b, sq, h, d), (b, sk, hk, d), (b, sk, hk, d if dv is None else dv))
    q, k, v = (torch.randn(shape, generator=generator).bfloat16() for shape in shapes)
    return q, k, v


def run(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> str:
    """Runs the kernel, compares with the reference, and returns the kernel's name."""
    out = attnsmith.flash_attn_func(q, k, v, **options)
    launch = attnsmith.last_launch()
    assert launch is not None and launch.device == "sim:h100"
    causal = options.get("causal", False)
    wanted, _ = reference.attention(q, k, v, softmax_scale=q.shape[3] ** -0.5, causal=causal)
    torch.testing.assert_close(out.double(), wanted.double(), rtol=0.02, atol=0.02)
    return launch.kernel


def test_a_miss_builds_the_sm90_kernel_that_explain_names() -> None:
    name = run(*tensors())
    assert name.startswith("fwd_sm90_bf16_hdim64_full_")
    assert attnsmith.explain(dtype="bf16", head_dim=64, device="h100")["kernel"]["name"] == name
    (row,) = attnsmith.dispatch_table()
    assert (row.kernel, row.target, row.key.arch.value) == (name, "sm_90a", "sm90")
    assert row.tile.block_m == 16 * row.tile.num_warps and row.ctas_per_sm >= 1
    assert row.to_dict()["tile"]["scheduler"] == row.tile.scheduler.value


@pytest.mark.parametrize("d,dv", [(64, 64), (40, 56), (57, 33)], ids=str)
def test_smaller_head_dims_run_in_the_same_kernel(d: int, dv: int) -> None:
    assert "_hdim64_" in run(*tensors(d=d, dv=dv), causal=True)


def test_any_strides() -> None:
    q, k, v = tensors(b=2, h=4)
    name = run(q, k, v)
    wide = torch.randn(2, 90, 3, 2, 64).bfloat16()
    heads_first = q.transpose(1, 2).contiguous().transpose(1, 2)
    for variant in (
        (heads_first, k, v),
        (q.transpose(2, 3).contiguous().transpose(2, 3), k, v),
        (q, wide[:, :, 0], wide[:, :, 2]),
        (q[:, 1:], k[:, 3:], v[:, 3:]),
        (q, k, torch.randn(2, 90, 2, 65).bfloat16()[..., :64]),
        (torch.randn(2 * 70 * 4 * 64 + 1).bfloat16()[1:].view(2, 70, 4, 64), k, v),
    ):
        assert run(*variant) == name


def test_broadcast_heads_run_the_sm80_family() -> None:
    """The driver does not promise tensor maps with a stride of 0."""
    q, k, v = tensors(hk=1)
    assert "_sm80_" in run(q, k.expand(1, 90, 2, 64), v.expand(1, 90, 2, 64))
    assert [row.target for row in attnsmith.dispatch_table()] == ["sm_90"]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_persistent_kernels_walk_all_tiles(causal: bool) -> None:
    q, k, v = tensors(sq=400, sk=400, b=2)
    with attnsmith.simulate("h100", num_sms=2), attnsmith.record_launches() as launches:
        for _ in range(2):  # the tile counter is zero again
            run(q, k, v, causal=causal)
    assert all(launch.grid <= 4 for launch in launches)
    (row,) = attnsmith.dispatch_table()
    assert row.tile.scheduler.value != "single"


def test_a_kernel_that_leaves_its_tile_counter_is_reported() -> None:
    spec = spec_for(dtype=DType.BF16, head_dim=64, mask=Mask.CAUSAL, target="sm_90a")
    built = build_kernel(spec, "sm_90a")
    ptx, count = re.subn(r"atom[.\w]*\.exch\.b32[^;]*;", "", built.ptx)
    assert count == 2
    attnsmith.register_kernel(replace(built, ptx=ptx), priority=-1)
    q, k, v = tensors(sq=400, sk=400)
    with attnsmith.simulate("h100", num_sms=1), pytest.raises(RuntimeError, match="tile counter"):
        attnsmith.flash_attn_func(q, k, v, causal=True)
    attnsmith.register_kernel(built, priority=-1)
    with attnsmith.simulate("h100", num_sms=1):
        assert run(q, k, v, causal=True) == spec.name  # a failed launch leaves nothing behind


@pytest.mark.parametrize("scheduler", [Scheduler.SINGLE, Scheduler.STATIC], ids=lambda scheduler: scheduler.value)
def test_clusters_get_whole_numbers_of_tiles(scheduler: Scheduler) -> None:
    """Three query tiles per head: the last cluster of each has a tile without rows."""
    best = spec_for(dtype=DType.BF16, head_dim=128, mask=Mask.FULL, target="sm_90a")
    spec = replace(best, tile=replace(best.tile, cluster_size=2, scheduler=scheduler))
    attnsmith.register_kernel(build_kernel(spec, "sm_90a"), priority=-1)
    q, k, v = tensors(sq=2 * spec.tile.block_m + 44, sk=90, d=128)
    with attnsmith.simulate("h100", num_sms=3):
        assert run(q, k, v) == spec.name
    assert attnsmith.last_launch().grid == (8 if scheduler is Scheduler.SINGLE else 2)


@pytest.mark.parametrize("pack_gqa,is_packed", [(None, True), (True, True), (False, False)])
def test_packing_is_chosen_or_obeyed(pack_gqa: bool | None, is_packed: bool) -> None:
    name = run(*tensors(sq=3, h=8, hk=1), causal=True, pack_gqa=pack_gqa)
    assert ("packgqa" in name) == is_packed


def test_no_keys() -> None:
    q, k, v = tensors(sk=0)
    out = attnsmith.flash_attn_func(q, k, v)
    assert torch.equal(out, torch.zeros_like(q))
    assert "_sm90_" in attnsmith.last_launch().kernel


def test_descriptors_are_encoded_once() -> None:
    q, k, v = tensors()
    out = torch.empty_like(q)
    api = launcher.load()
    for _ in range(3):
        attnsmith.flash_attn_func(q, k, v, out=out)
        count = api.num_encoded_tensor_maps()
    before = count
    attnsmith.flash_attn_func(q, k, v, out=out)
    assert api.num_encoded_tensor_maps() == before
    attnsmith.flash_attn_func(q[:, :60], k, v, out=out[:, :60])
    assert api.num_encoded_tensor_maps() == before + 2


def fp8(x: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    return x.float().to(dtype)


def run_fp8(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> str:
    """As `run`, against the reference of the rounded inputs; returns the kernel's name."""
    out = attnsmith.flash_attn_func(q, k, v, **options)
    assert out.dtype == (options["out"].dtype if "out" in options else torch.bfloat16)
    scales = [options.get(f"{name}_descale") for name in "qkv"]
    group = q.shape[2] // k.shape[2]
    inputs = []
    for x, scale in zip((q, k, v), scales, strict=True):
        factor = torch.ones(1) if scale is None else scale[:, None, :, None]
        inputs.append(x.float() * (factor if x is not q or scale is None else factor.repeat_interleave(group, 2)))
    wanted, _ = reference.attention(*inputs, softmax_scale=q.shape[3] ** -0.5, causal=options.get("causal", False))
    error = (out.double() - wanted.double()).abs().max().item()
    assert error <= 0.06 * wanted.double().abs().max().item()
    launch = attnsmith.last_launch()
    assert launch is not None
    return launch.kernel


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=["e4m3", "e5m2"])
def test_8_bit_types_with_descales(dtype: torch.dtype) -> None:
    q, k, v = (fp8(x, dtype) for x in tensors(h=4, b=2, d=128))
    table = torch.rand(3, 2, 4, generator=torch.Generator().manual_seed(1)) + 0.5
    strided, expanded = table[1, :, ::2], table[0, :1, :1].expand(2, 2)
    assert "_bf16_" in run_fp8(q, k, v, q_descale=strided, k_descale=expanded, v_descale=strided)


def test_the_output_of_8_bit_types_has_the_type_that_is_asked() -> None:
    q, k, v = (fp8(x) for x in tensors(d=128))
    out = torch.empty(q.shape, dtype=torch.float16)
    assert "_fp16_" in run_fp8(q, k, v, out=out)


def test_8_bit_types_of_odd_head_dims_and_broadcast_heads() -> None:
    q, k, v = (fp8(x) for x in tensors(hk=1, d=100, dv=72))
    name = run_fp8(q, k.expand(1, 90, 2, 100), v.expand(1, 90, 2, 72), causal=True)
    assert "_sm90_" in name


def test_column_major_v_of_8_bit_types() -> None:
    """Read as it is where its rows are aligned, else copied; the result is the same."""
    q, k, v = (fp8(x) for x in tensors(sk=96, d=128))
    by_columns = v.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert by_columns.stride(1) == 1
    assert "vcol" in run_fp8(q, k, by_columns)
    as_given = attnsmith.flash_attn_func(q, k, by_columns)
    assert "vcol" not in run_fp8(q, k[:, :90], by_columns[:, 3:93])
    assert torch.equal(as_given, attnsmith.flash_attn_func(q, k, by_columns.contiguous()))


def test_a_hidden_nan_of_a_column_major_v_stays_hidden() -> None:
    """The kernel then reads v itself, by the strides that the launcher gives it."""
    q, k, v = (x.to(torch.float8_e4m3fn) for x in tensors(sq=100, sk=100, b=2))
    values = v.view(torch.uint8).clone()
    values[:, 70] = 0x7F  # NaN of e4m3
    v = values.view(v.dtype)
    wanted, _ = reference.attention(q, k, v, causal=True)
    out = attnsmith.flash_attn_func(q, k, to_col_major(values).view(v.dtype), causal=True)
    assert out[:, 70:].isnan().all()
    torch.testing.assert_close(out[:, :70].double(), wanted[:, :70], rtol=0.05, atol=0.05)
