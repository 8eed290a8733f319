# SPDX-License-Identifier: Apache-2.0
"""wgmma on the simulator: every operand layout and type against matrix products computed by torch, and what is reported
when a fence, a commit or a wait is left out."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from attnsmith.tools import ptxsim

from tests.sim.ptx.builder import line_of
from tests.sim.ptx.wgmma import TORCH_TYPES, Case


def values(case: Case, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Small integers: products and sums are exact in every type, so comparisons are for equality."""
    generator = torch.Generator().manual_seed(seed)

    def draw(rows: int, columns: int) -> torch.Tensor:
        return torch.randint(-3, 4, (rows, columns), generator=generator).float()

    a, b, c = draw(64, case.k), draw(case.n, case.k), draw(64, case.n)
    accumulator = torch.float32 if case.accumulator == "f32" else torch.float16
    return a.to(TORCH_TYPES[case.kind_a]), b.to(TORCH_TYPES[case.kind_b]), c.to(accumulator)


def expect(case: Case, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    product = case.scale_a * case.scale_b * (a.double() @ b.double().T)
    first = case.scale_d * c.double() + product
    return first + (case.repeat - 1) * product if case.scale_d else product


def check(case: Case, **launch: object) -> None:
    a, b, c = values(case)
    assert torch.equal(case.run(a, b, c, **launch).double(), expect(case, a, b, c))


SPANS = [0, 32, 64, 128]


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("a_mn", [False, True], ids=["a_k", "a_mn"])
@pytest.mark.parametrize("b_mn", [False, True], ids=["b_k", "b_mn"])
def test_16_bit_operands_in_shared_memory(kind: str, a_mn: bool, b_mn: bool, span: int) -> None:
    check(Case(kind, kind, 64, a_mn_major=a_mn, b_mn_major=b_mn, span_a=span, span_b=span))


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("kinds", ["tf32 tf32", "e4m3 e4m3", "e4m3 e5m2", "e5m2 e4m3", "e5m2 e5m2"])
def test_other_types(kinds: str, span: int) -> None:
    kind_a, kind_b = kinds.split()
    check(Case(kind_a, kind_b, 32, span_a=span, span_b=span))


@pytest.mark.parametrize("kind", sorted(TORCH_TYPES))
@pytest.mark.parametrize("n", [8, 72])
def test_a_in_registers(kind: str, n: int) -> None:
    check(Case(kind, kind, n, a_in_registers=True))


@pytest.mark.parametrize("b_mn", [False, True])
def test_a_in_registers_b_of_either_majorness(b_mn: bool) -> None:
    check(Case("f16", "f16", 64, a_in_registers=True, b_mn_major=b_mn))


@pytest.mark.parametrize("n", [8, 24, 96, 192, 256])
def test_every_kind_of_n(n: int) -> None:
    check(Case("bf16", "bf16", n, b_mn_major=n % 64 == 0))


@pytest.mark.parametrize("kind", ["f16", "e4m3"])
@pytest.mark.parametrize("a_in_registers", [False, True])
def test_f16_accumulator(kind: str, a_in_registers: bool) -> None:
    check(Case(kind, kind, 40, accumulator="f16", a_in_registers=a_in_registers))


@pytest.mark.parametrize("scale_d, scale_a, scale_b", [(0, 1, 1), (1, -1, 1), (1, 1, -1), (0, -1, -1)])
def test_scales(scale_d: int, scale_a: int, scale_b: int) -> None:
    check(Case("f16", "f16", 16, scale_d=scale_d, scale_a=scale_a, scale_b=scale_b))


def test_different_swizzles_of_a_and_b() -> None:
    check(Case("f16", "f16", 64, span_a=32, span_b=64, b_mn_major=True))


@pytest.mark.parametrize("seed", range(3))
def test_two_in_flight_accumulate_in_order_under_any_schedule(seed: int) -> None:
    check(Case("f16", "f16", 32, repeat=2), schedule="random", async_mode="random", seed=seed)


def broken(**lines: str) -> Case:
    return Case("f16", "f16", 16, lines=lines)


def report(case: Case, error: type[Exception]) -> str:
    with pytest.raises(error) as caught:
        case.run(*values(case))
    return str(caught.value)


def test_reading_an_accumulator_before_the_wait() -> None:
    case = broken(before_wait="add.f32 %f1, %acc3, %acc3;")
    ptx = case.ptx()
    with pytest.raises(ptxsim.WgmmaError) as caught:
        case.run(*values(case))
    assert caught.value.line == line_of(ptx, "add.f32 %f1")
    assert f"PTX line {line_of(ptx, 'wgmma.mma_async')}" in str(caught.value)


def test_writing_an_a_register_before_the_wait() -> None:
    case = dataclasses.replace(broken(before_wait="mov.b32 %a2, 0;"), a_in_registers=True)
    assert "A fragment" in report(case, ptxsim.WgmmaError)


@pytest.mark.parametrize("missing", ["wait", "commit"])
def test_missing_wait_or_commit(missing: str) -> None:
    assert "wait_group" in report(broken(**{missing: ""}), ptxsim.WgmmaError)


def test_missing_wgmma_fence() -> None:
    assert "wgmma.fence" in report(broken(fence=""), ptxsim.WgmmaError)


def test_accumulator_written_after_the_fence() -> None:
    message = report(broken(fence="wgmma.fence.sync.aligned;\n  mov.b32 %acc1, 0;"), ptxsim.WgmmaError)
    assert "written after the last wgmma.fence" in message


def test_missing_proxy_fence() -> None:
    assert "fence.proxy.async is missing" in report(broken(proxy=""), ptxsim.ProxyError)


def test_operand_overwritten_while_in_flight() -> None:
    message = report(broken(before_wait="st.shared.u32 [smem+16384], 0;"), ptxsim.RaceError)
    assert "reads it asynchronously" in message


def test_operand_of_another_warp_without_barrier() -> None:
    case = broken()
    ptx = case.ptx().replace("  bar.sync 0;\n", "")
    with pytest.raises((ptxsim.RaceError, ptxsim.UninitializedRead)):
        ReplacedPtx(case, ptx).run(*values(case))


class ReplacedPtx(Case):
    """A case with other text."""

    def __init__(self, case: Case, text: str) -> None:
        super().__init__(**{f.name: getattr(case, f.name) for f in dataclasses.fields(case)})
        object.__setattr__(self, "_text", text)

    def ptx(self) -> str:
        return self._text  # type: ignore[attr-defined, no-any-return]


def test_warps_that_disagree_about_the_descriptor() -> None:
    case = broken()
    differs = "  shr.u32 %r9, %t, 5;\n  cvt.u64.u32 %l9, %r9;\n  add.s64 %descb, %descb, %l9;\n"
    ptx = case.ptx().replace("  setp.ne.u32 %ps,", differs + "  setp.ne.u32 %ps,")
    with pytest.raises(ptxsim.WgmmaError, match="different descriptors"):
        ReplacedPtx(case, ptx).run(*values(case))


def test_flops_are_counted_once_per_warpgroup() -> None:
    case = Case("f16", "f16", 64)
    c = values(case)[2]
    image = np.zeros(65536, np.uint8)
    args = [np.zeros((128, 32), np.uint32), image, case.spread(c), np.zeros((128, 4), np.uint32)]
    stats = ptxsim.load(case.ptx()).launch("k", 1, 128, args, shared_bytes=65536, device="h100")
    assert stats.tensor_flops == 2 * 64 * 64 * 16
    assert stats.by_class["wgmma"] == 4 * 4


def test_wgmma_needs_the_architecture_specific_target() -> None:
    with pytest.raises(ptxsim.UnsupportedInstruction, match="sm_90a"):
        ptxsim.load(Case("f16", "f16", 8).ptx().replace(".target sm_90a", ".target sm_90"))
