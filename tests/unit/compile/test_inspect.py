# SPDX-License-Identifier: Apache-2.0
"""Facts from ptxas logs and loops: numbers, remarks, masked or not, and what is reported without a disassembler."""

from __future__ import annotations

from dataclasses import replace

import pytest
from attnsmith.codegen.build import BuiltKernel
from attnsmith.codegen.errors import ToolchainError
from attnsmith.codegen.resources import smem_bytes
from attnsmith.codegen.spec import Arch, DType, KernelSpec, Mask, ProblemKey, TileConfig
from attnsmith.tools import inspect as inspect_module
from attnsmith.tools.inspect import ANCHORS, find_cuobjdump, kernel_facts, loop_facts, parse_ptxas, parse_remarks
from attnsmith.tools.sass import Instruction, Loop

LOG = """\
ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum register requirements.
ptxas info    : 5145 bytes gmem, 17848 bytes cmem[4]
ptxas info    : Compiling entry function 'kernel' for 'sm_80'
ptxas info    : Function properties for kernel
ptxas         .     88 bytes stack frame, 88 bytes spill stores, 160 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 88 bytes cumulative stack size, 16 bytes smem, 536 bytes cmem[0]
ptxas warning : Registers are spilled to local memory in function 'kernel', 88 bytes spill stores
ptxas info    : Compile time = 495.121 ms
"""

SPEC = KernelSpec(
    key=ProblemKey(arch=Arch.SM80, dtype=DType.BF16, head_dim=128, head_dim_v=128, mask=Mask.CAUSAL),
    tile=TileConfig(block_m=128, block_n=64, num_warps=4),
)


def built(log: str) -> BuiltKernel:
    """A kernel that was compiled with this log."""
    return BuiltKernel(
        spec=SPEC, target="sm_80", name=SPEC.name, digest="0" * 64, directory=None, cubin=b"", ptx="", log=log,
        seconds=5.678, was_cached=True,
    )  # fmt: skip


def loop_of(**counts: int) -> Loop:
    """A straight loop with so many instructions of each opcode."""
    opcodes = [opcode for opcode, count in counts.items() for _ in range(count)]
    body = tuple(Instruction(16 * index, f"{opcode} R0, R1") for index, opcode in enumerate(opcodes))
    return Loop(start=0, body=body, always=body[:-10])


def test_ptxas_numbers() -> None:
    assert parse_ptxas(LOG) == {
        "registers": 255, "spill_store_bytes": 88, "spill_load_bytes": 160, "static_smem_bytes": 16,
    }  # fmt: skip
    assert set(parse_ptxas("nothing").values()) == {0}


def test_remarks_are_warnings_and_c75xx_of_any_level() -> None:
    remarks = parse_remarks(LOG + LOG)
    assert len(remarks) == 2
    assert "C7508" in remarks[0] and "warning" in remarks[1]
    assert parse_remarks("ptxas info    : Used 8 registers") == ()


def test_kernel_facts_without_a_disassembler() -> None:
    facts = kernel_facts(built(LOG), SPEC, [])
    assert (facts.registers, facts.spill_bytes, facts.loops, facts.main_loop) == (255, 248, (), None)
    assert facts.smem_bytes == smem_bytes(SPEC) + 16
    assert facts.anchor is not None and facts.anchor.per_score == 10.2
    row = facts.to_dict()
    wanted = {"kernel", "arch", "op", "registers", "spill_bytes", "smem_bytes", "remarks", "loops"}
    assert wanted <= set(row)
    assert (row["kernel"], row["arch"], row["op"]) == (SPEC.name, "sm80", "fwd")


def test_the_claim_stands_beside_the_anchor() -> None:
    loops = tuple(loop_facts(loop_of(HMMA=256, FFMA=n), scores_per_thread=64) for n in (320, 64))
    facts = replace(kernel_facts(built(LOG), SPEC, []), loops=loops)
    assert facts.to_dict()["main_loop"] == {
        "start": 0, "per_score_always": 4.84, "per_score": 5.0, "anchor_per_score": 10.2,
    }  # fmt: skip
    assert replace(facts, loops=()).to_dict()["main_loop"] is None
    assert replace(facts, anchor=None).to_dict()["main_loop"]["anchor_per_score"] is None


@pytest.mark.parametrize(("head_dim", "per_score"), [(64, 7.0), (128, 10.2), (256, 14.8)])
def test_anchors(head_dim: int, per_score: float) -> None:
    assert ANCHORS[Arch.SM80, head_dim].per_score == per_score


def test_per_score_counts_what_is_not_tensor() -> None:
    facts = loop_facts(loop_of(HMMA=256, FFMA=300, STL=2, BRA=10), scores_per_thread=64)
    assert (facts.instructions, facts.tensor, facts.always, facts.spills) == (568, 256, 558, 2)
    assert facts.per_score == round(312 / 64, 2)
    assert facts.per_score_always == round(302 / 64, 2)
    assert facts.per_tensor == round(312 / 256, 2)


@pytest.mark.parametrize(("selects", "is_masked"), [(20, False), (64, True), (130, True)])
def test_masked_is_about_one_select_per_score(selects: int, is_masked: bool) -> None:
    half = selects // 2
    loop = loop_of(HMMA=256, FSEL=half, ISETP=selects - half, FFMA=200)
    assert loop_facts(loop, scores_per_thread=64).is_masked is is_masked


def test_missing_cuobjdump_is_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def missing(_: str) -> None:
        raise ToolchainError(asked="find cuobjdump", got="none", allowed="one", do="Run `pip install triton`.")

    monkeypatch.setattr(inspect_module, "find_disassembler", missing)
    assert find_cuobjdump() is None
    assert "pip install triton" in caplog.text
