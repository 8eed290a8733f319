# SPDX-License-Identifier: Apache-2.0
"""Every SM90 kernel of the default set against the reference, and a sample of the variants that the default set lacks.

Raw launches, outputs poisoned with NaN. Persistent kernels run on 3 CTAs, which loop over tiles and wrap their rings,
and on as many as there are tiles. test_check_on_the_simulated_h100 goes through the API.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
import torch
from attnsmith.codegen.rules import check
from attnsmith.codegen.spec import DType, KernelSpec, Mask, Scheduler
from attnsmith.tools.check import CheckCase, run_check
from torch import Tensor

from tests.sim.fwd_sm90_kernel import (
    MANY_CTAS,
    SPECS,
    TARGET,
    case_of,
    inputs_of,
    one_torch_thread,
    op_of,
    ptx_of,
    spec_like,
)

SIZES = [(1, 1), (1, 257), (64, 64), (113, 203), (203, 113), (128, 256), (257, 1)]
"""Part A's, as pairs of lengths. Under the causal mask the fifth and the last have rows without keys."""
LONG = (200, 700)
"""More key blocks than any ring has buffers."""
HEADS = [(2, 1, 1), (1, 1, 8), (1, 2, 4)]
"""(batch, nheads_k, nheads / nheads_k)."""
FEW_CTAS = 3


@pytest.fixture(autouse=True)
def quiet_torch() -> Iterator[None]:
    with one_torch_thread():
        yield


def judge(spec: KernelSpec, cases: list[CheckCase]) -> None:
    failed = []
    for i, case in enumerate(cases):
        num_ctas = (FEW_CTAS, MANY_CTAS)[i % 2]
        result = run_check(case, op_of(spec, num_ctas=num_ctas))
        if not result.ok:
            failed.append(f"{case.label} seed {case.seed}, at most {num_ctas} CTAs: {dict(result.tensors)}")
    assert not failed, "\n".join(failed)


def grid(spec: KernelSpec) -> list[CheckCase]:
    """Every size, heads in turn."""
    cases = []
    for i, (seqlen_q, seqlen_k) in enumerate([*SIZES, LONG]):
        batch, nheads_k, group = HEADS[i % len(HEADS)] if (seqlen_q, seqlen_k) != LONG else (1, 2, 1)
        cases.append(case_of(spec, seqlen_q, seqlen_k, batch=batch, nheads_k=nheads_k, group=group))
    return cases


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_kernel(spec: KernelSpec) -> None:
    judge(spec, grid(spec))


SMALLER = {
    (64, 64): [(32, 32), (40, 40), (48, 64), (64, 24)],
    (96, 96): [(72, 72), (80, 96)],
    (128, 128): [(104, 128), (128, 112)],
    (192, 192): [(160, 160), (192, 136)],
    (256, 256): [(256, 208), (200, 256)],
    (192, 128): [(144, 96)],
}
"""The kernel's head dims -> those of tensors that it serves by zero fill; 8-bit ones are rounded to 16 bytes."""


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_smaller_head_dims(spec: KernelSpec) -> None:
    unit = 16 // spec.key.dtype.num_bytes
    pairs = [(d // unit * unit, dv // unit * unit) for d, dv in SMALLER[spec.key.head_dim, spec.key.head_dim_v]]
    judge(spec, [case_of(spec, 70, 203, group=4, head_dim=d, head_dim_v=dv) for d, dv in pairs])


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_no_keys(spec: KernelSpec) -> None:
    """Output 0 and LSE -inf, for any number of tiles."""
    (q, k, v), descales = inputs_of(case_of(spec, 300, 0, nheads_k=2, group=2))
    out, lse, stats = ptx_of(spec).run(q, k, v, descales=descales, num_ctas=FEW_CTAS)
    assert torch.equal(out, torch.zeros_like(out)) and torch.equal(lse, torch.full_like(lse, float("-inf")))
    assert stats.tensor_flops == 0


def strided(x: Tensor) -> list[Tensor]:
    """The same values: heads before rows; a part of wider heads; every other row and sequence of a larger tensor."""
    heads_first = x.transpose(1, 2).contiguous().transpose(1, 2)
    batch, rows, heads, dim = x.shape
    wide = torch.zeros(batch, rows, heads + 1, dim + 32, dtype=torch.uint8).to(x.dtype)[:, :, 1:, 16 : 16 + dim]
    sparse = torch.zeros(2 * batch, 2 * rows, heads, dim, dtype=torch.uint8).to(x.dtype)[::2, ::2]
    return [heads_first, *(part.copy_(x) for part in (wide, sparse))]


@pytest.mark.parametrize("dtype,mask", list(product(DType, Mask)), ids=lambda value: value.value)
def test_strides_change_no_bit(dtype: DType, mask: Mask) -> None:
    out_dtype = "_bf16" if dtype.is_fp8 else ""
    spec = spec_like(f"fwd_sm90_{dtype.value}{out_dtype}_hdim128_{mask.value}_128")
    inputs, descales = inputs_of(case_of(spec, 150, 300, batch=2, nheads_k=2, group=2))
    wanted, wanted_lse, _ = ptx_of(spec).run(*inputs, descales=descales)
    spread = {name: torch.zeros(3, 2, 2, 2)[1, :, :, 1].copy_(x) for name, x in descales.items()}
    for q, k, v, out in zip(*map(strided, (*inputs, wanted)), strict=True):
        found, lse, _ = ptx_of(spec).run(q, k, v, descales=spread, out=out)
        assert torch.equal(found, wanted) and torch.equal(lse, wanted_lse)


VARIANTS = [
    spec_like("fwd_sm90_bf16_hdim64x256_full"),
    spec_like("fwd_sm90_fp16_hdim64x256_causal"),
    spec_like("fwd_sm90_bf16_hdim64x96_causal"),
    spec_like("fwd_sm90_e4m3_bf16_hdim64_full_vcol"),
    spec_like("fwd_sm90_e5m2_bf16_hdim96_causal_vcol"),
    spec_like("fwd_sm90_e4m3_bf16_hdim128_causal_vcol"),
    spec_like("fwd_sm90_e4m3_bf16_hdim256_full_vcol"),
    spec_like("fwd_sm90_e4m3_bf16_hdim128_causal_128", out_dtype=DType.FP16),
    spec_like("fwd_sm90_bf16_hdim128_full_128", cluster_size=2),
    spec_like("fwd_sm90_fp16_hdim64_full_192", cluster_size=2, scheduler=Scheduler.SINGLE),
    spec_like("fwd_sm90_bf16_hdim256_full_128", cluster_size=2),
    spec_like("fwd_sm90_bf16_hdim128_causal_128", overlaps_softmax=False),
    spec_like("fwd_sm90_fp16_hdim64_full_192", overlaps_softmax=False, is_ping_pong=False),
    spec_like("fwd_sm90_e4m3_bf16_hdim128_full_128", overlaps_softmax=False),
    spec_like("fwd_sm90_bf16_hdim96_causal_192", overlaps_softmax=False),
    spec_like("fwd_sm90_fp16_hdim128_causal_128", is_ping_pong=False),
    spec_like("fwd_sm90_bf16_hdim128_causal_128", p_in_smem=True, block_n=96),
    spec_like("fwd_sm90_bf16_hdim64_full_64", p_in_smem=True),
    spec_like("fwd_sm90_bf16_hdim64_causal_192", num_stages=3, block_n=96),
    spec_like("fwd_sm90_fp16_hdim64_full_192", num_stages=4, block_n=64),
    spec_like("fwd_sm90_e4m3_bf16_hdim64_causal_192", num_stages=3, block_n=64),
    spec_like("fwd_sm90_bf16_hdim128_full_64", num_stages=1),
    spec_like("fwd_sm90_bf16_hdim128_causal_128", scheduler=Scheduler.STATIC),
    spec_like("fwd_sm90_bf16_hdim128_full_128", scheduler=Scheduler.DYNAMIC),
    spec_like("fwd_sm90_fp16_hdim128_full_128", skips_rescale=False),
    spec_like("fwd_sm90_fp16_hdim64_full_192", exp2_fma_eighths=3),
    spec_like("fwd_sm90_e4m3_bf16_hdim128_full_64", exp2_fma_eighths=8),
]
VARIANTS = list({spec.name: spec for spec in VARIANTS}.values())


@pytest.mark.parametrize("spec", VARIANTS, ids=lambda spec: spec.name)
def test_variant(spec: KernelSpec) -> None:
    check(spec, TARGET)
    judge(spec, grid(spec))


PACKED = [
    spec_like("fwd_sm90_bf16_hdim128_full_packgqa"),
    spec_like("fwd_sm90_fp16_hdim64_causal_packgqa"),
    spec_like("fwd_sm90_e4m3_bf16_hdim128_causal_packgqa"),
    spec_like("fwd_sm90_bf16_hdim96_full_64", packs_gqa=True),
]
GROUPS = (1, 2, 3, 7, 8, 64)


@pytest.mark.parametrize("spec", PACKED, ids=lambda spec: spec.name)
def test_packed(spec: KernelSpec) -> None:
    """Groups that divide a warpgroup's rows and such that do not; one query, some, and more tiles than CTAs."""
    cases = []
    for group, seqlens in product(GROUPS, ((1, 257), (35, 203), (90, 40))):
        cases.append(case_of(spec, *seqlens, group=group, nheads_k=2 if group < 8 else 1))
    judge(spec, cases)


CHECKED = [(DType.FP16, d) for d in (64, 72, 96, 128, 192, 256)] + [
    (DType.BF16, d) for d in (64, 72, 96, 128, 192, 256)
]
CHECKED += [(dtype, d) for dtype in (DType.E4M3, DType.E5M2) for d in (64, 96, 128, 192, 256)]


@pytest.mark.parametrize("dtype,head_dim", CHECKED, ids=lambda value: str(getattr(value, "value", value)))
def test_check_on_the_simulated_h100(dtype: DType, head_dim: int) -> None:
    """What `attnsmith check --device sim:h100` does: the kernel is the dispatch's choice."""
    failed = []
    dims_v = [head_dim, 128] if head_dim == 192 and not dtype.is_fp8 else [head_dim]
    for i, (head_dim_v, causal, group) in enumerate(product(dims_v, (False, True), (1, 4, 8))):
        seqlen_q, seqlen_k = SIZES[i % len(SIZES)]
        case = CheckCase(
            device="sim:h100",
            dtype=dtype.value,
            seqlen_q=seqlen_q,
            seqlen_k=seqlen_k,
            nheads=group,
            nheads_k=1,
            head_dim=head_dim,
            head_dim_v=head_dim_v,
            causal=causal,
            pack_gqa=False,
        )
        result = run_check(replace(case, seed=zlib.crc32(case.label.encode())))
        assert all("_sm90_" in kernel for kernel in result.kernels) and result.kernels, case.label
        if not result.ok:
            failed.append(f"{case.label}: {dict(result.tensors)}")
    assert not failed, "\n".join(failed)


def test_the_grid_is_what_it_says() -> None:
    keys = {spec.key for spec in SPECS}
    assert {key.dtype for key in keys} == set(DType) and {key.mask for key in keys} == set(Mask)
    assert {(key.head_dim, key.head_dim_v) for key in keys} == set(SMALLER)
    assert {case.nheads // case.kv_heads for case in grid(SPECS[0])} == {1, 4, 8}
    assert len({case.seed for spec in SPECS for case in grid(spec)}) > 8 * len(keys) - 8
    assert {spec.tile.num_stages for spec in VARIANTS} >= {1, 2, 3, 4}
