# SPDX-License-Identifier: Apache-2.0
"""What the compiler made of every default kernel: nothing spilled, no remark, registers as allowed; and of those that
have an anchor, how many instructions a score costs. Here, because the kernels are compiled for these tests anyway."""

from __future__ import annotations

import pytest
from attnsmith.codegen.spec import KernelSpec
from attnsmith.codegen.toolchain import find_disassembler
from attnsmith.tools.anchors import anchor_of
from attnsmith.tools.inspect import disassemble, kernel_facts

from tests.sim import fwd_kernel, fwd_sm90_kernel

KERNELS = [(spec, part.TARGET) for part in (fwd_kernel, fwd_sm90_kernel) for spec in part.SPECS]
ANCHORED = [spec for spec in fwd_sm90_kernel.SPECS if anchor_of(spec)]


@pytest.mark.parametrize(("spec", "target"), KERNELS, ids=[spec.name for spec, _ in KERNELS])
def test_a_default_kernel_has_no_fault(spec: KernelSpec, target: str) -> None:
    facts = kernel_facts(fwd_kernel.built(spec, target), spec, [])
    assert facts.registers > 0
    assert facts.faults == ()


@pytest.mark.parametrize("spec", ANCHORED, ids=lambda spec: spec.name)
def test_a_score_costs_no_more_than_the_anchors(spec: KernelSpec) -> None:
    kernel = fwd_kernel.built(spec, fwd_sm90_kernel.TARGET)
    code = dict(disassemble(kernel.cubin, find_disassembler("cuobjdump")))[spec.name]
    facts = kernel_facts(kernel, spec, code)
    assert facts.main_loop is not None and facts.tensor_instructions > 0
    assert facts.faults == () and facts.local_instructions == 0
