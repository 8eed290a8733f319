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
from attnsmith.tools.anchors import ANCHORS, SPLIT_NAMES, anchor_of
from attnsmith.tools.inspect import find_cuobjdump, kernel_facts, loop_facts, parse_ptxas, parse_remarks
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

SPEC90 = KernelSpec(
    key=ProblemKey(arch=Arch.SM90, dtype=DType.BF16, head_dim=128, head_dim_v=128, mask=Mask.CAUSAL),
    tile=TileConfig(block_m=128, block_n=128, num_warps=8, num_stages=2),
)


def built(log: str, spec: KernelSpec = SPEC) -> BuiltKernel:
    """A kernel that was compiled with this log."""
    target = "sm_90a" if spec.key.arch is Arch.SM90 else "sm_80"
    return BuiltKernel(
        spec=spec, target=target, name=spec.name, digest="0" * 64, directory=None, cubin=b"", ptx="", log=log,
        seconds=5.678, was_cached=True,
    )  # fmt: skip


def loop_of(behind_branch: int = 10, **counts: int) -> Loop:
    """A straight loop with so many instructions of each opcode, the last of them behind a branch."""
    names = {"HMMA": "HMMA.16816.F32.BF16", "HGMMA": "HGMMA.64x128x16.F32.BF16"}
    opcodes = [names.get(opcode, opcode) for opcode, count in counts.items() for _ in range(count)]
    body = tuple(Instruction(16 * index, f"{opcode} R0, R1") for index, opcode in enumerate(opcodes))
    return Loop(start=0, body=body, always=body[: len(body) - behind_branch])


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


@pytest.mark.parametrize(
    "line",
    [
        "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count.",
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to ...",
        "ptxas info    : (C7519) warpgroup.arrive is injected in around line 59 by compiler to allow use of registers",
        "ptxas info    : (C7517) warpgroup.wait is injected in around line 62 by compiler to allow use of registers",
        "ptxas info    : 'setmaxnreg' ignored to maintain minimum register requirements.",
        "ptxas info    : Potential Performance Loss: something new",
        "ptxas warning : Value of threads per SM for entry k is out of range. .minnctapersm will be ignored",
        "ptxas /tmp/x.ptx, line 12; warning : Instruction ... is deprecated",
    ],
)
def test_remarks_of_hopper(line: str) -> None:
    noise = 'cute/atom/copy_traits.hpp(985): warning #177-D: variable "x" was declared but never referenced\n'
    assert parse_remarks(noise + GOOD + f"  {line}\n") == (line,)


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
    loops = tuple(loop_facts(loop_of(HMMA=256, FFMA=n), SPEC) for n in (320, 64))
    facts = replace(kernel_facts(built(LOG), SPEC, []), loops=loops)
    assert facts.to_dict()["main_loop"] == {
        "start": 0, "tensor": 256, "hmma": 256, "per_score_always": 4.84, "per_score": 5.0, "anchor_per_score": 10.2,
        "split": {"scale": 310, "exp": 0, "max": 0, "sum": 0, "cvt": 0, "rescale": 0, "other": 0}, "anchor_split": None,
    }  # fmt: skip
    assert replace(facts, loops=()).to_dict()["main_loop"] is None
    assert replace(facts, anchor=None).to_dict()["main_loop"]["anchor_per_score"] is None


@pytest.mark.parametrize(
    ("arch", "dtype", "head_dim", "full", "causal"),
    [
        (Arch.SM80, DType.FP16, 64, 7.0, 7.0),
        (Arch.SM80, DType.BF16, 128, 10.2, 10.2),
        (Arch.SM80, DType.BF16, 256, 14.8, 14.8),
        (Arch.SM90, DType.FP16, 64, 6.4, 6.6),
        (Arch.SM90, DType.BF16, 128, 6.5, 7.1),
        (Arch.SM90, DType.BF16, 256, 11.1, 11.1),
        (Arch.SM90, DType.E4M3, 128, 5.9, 5.9),
        (Arch.SM90, DType.E5M2, 128, 5.9, 5.9),
        (Arch.SM90, DType.E4M3, 64, None, None),
        (Arch.SM90, DType.BF16, 96, None, None),
    ],
)
def test_anchors(arch: Arch, dtype: DType, head_dim: int, full: float | None, causal: float | None) -> None:
    for mask, per_score in ((Mask.FULL, full), (Mask.CAUSAL, causal)):
        key = ProblemKey(arch=arch, dtype=dtype, head_dim=head_dim, head_dim_v=head_dim, mask=mask)
        spec = KernelSpec(key=key, tile=TileConfig(block_m=128, block_n=64, num_warps=8))
        anchor = anchor_of(spec)
        assert (anchor and anchor.per_score) == per_score
        assert anchor_of(replace(spec, key=replace(key, head_dim_v=32))) is None
        short = anchor_of(replace(spec, tile=TileConfig(block_m=64, block_n=64, num_warps=4)))
        assert short is (None if arch is Arch.SM90 else anchor)


def test_the_anchors_own_figures_agree() -> None:
    """Per score is non-tensor instructions over the tile's scores per thread, and the split is a part of them."""
    for (arch, *_), anchor in ANCHORS.items():
        block_m, block_n, *warps = map(int, anchor.tile.split("x"))
        threads = 32 * warps[0] if warps else 2 * block_m
        per_score = (anchor.instructions - anchor.tensor) / (block_m * block_n / threads)
        assert per_score == pytest.approx(anchor.per_score, abs=0.07)
        assert (anchor.split is None) is (arch is Arch.SM80)
        if anchor.split is not None:
            assert sum(anchor.split.values()) == anchor.instructions - anchor.tensor
            assert set(anchor.split) == {*SPLIT_NAMES, "not_listed"} and min(anchor.split.values()) > 0


def test_per_score_counts_what_is_not_tensor() -> None:
    facts = loop_facts(loop_of(HMMA=256, FFMA=300, STL=2, BRA=10), SPEC)
    assert (facts.instructions, facts.tensor, facts.always, facts.spills) == (568, 256, 558, 2)
    assert facts.key_blocks == 1.0
    assert facts.per_score == round(312 / 64, 2)
    assert facts.per_score_always == round(302 / 64, 2)
    assert facts.per_tensor == round(312 / 256, 2)


def test_sm90_scores_are_of_the_warps_that_compute() -> None:
    """128 x 128 scores over two consumer warpgroups, not over the producer's threads too."""
    facts = loop_facts(loop_of(HGMMA=16, FFMA=64, MUFU=64, SYNCS=20, FMUL=68, behind_branch=68), SPEC90)
    assert (facts.tensor, facts.hmma, facts.key_blocks) == (16, 0, 1.0)
    assert facts.per_score_always == round(148 / 64, 2) and facts.per_score == round(216 / 64, 2)
    assert facts.split == {"scale": 64, "exp": 64, "max": 0, "sum": 0, "cvt": 0, "rescale": 0, "other": 20}


def test_an_unrolled_loop_counts_per_key_block() -> None:
    once = loop_facts(loop_of(HGMMA=16, FFMA=320, behind_branch=0), SPEC90)
    twice = loop_facts(loop_of(HGMMA=32, FFMA=640, behind_branch=0), SPEC90)
    assert (once.key_blocks, twice.key_blocks) == (1.0, 2.0)
    assert once.per_score == twice.per_score == 5.0


@pytest.mark.parametrize(("selects", "is_masked"), [(20, False), (64, True), (130, True)])
def test_masked_is_about_one_select_per_score(selects: int, is_masked: bool) -> None:
    half = selects // 2
    loop = loop_of(HMMA=256, FSEL=half, ISETP=selects - half, FFMA=200)
    assert loop_facts(loop, SPEC).is_masked is is_masked


def code_of(loop: Loop) -> list[Instruction]:
    """A kernel that is this loop: the last instruction branches to the first."""
    last = Instruction(loop.body[-1].address + 16, "@P0 BRA 0x0")
    return [*loop.body, last, Instruction(last.address + 16, "EXIT")]


GOOD = "ptxas info    : Used 168 registers, used 8 barriers\n"


def test_a_good_sm90_kernel_has_no_faults() -> None:
    facts = kernel_facts(built(GOOD, SPEC90), SPEC90, code_of(loop_of(HGMMA=16, FFMA=300)))
    assert facts.faults == () and facts.registers_allowed == 168
    assert (facts.tensor_instructions, facts.hmma_instructions) == (16, 0)
    assert facts.to_dict()["faults"] == []


@pytest.mark.parametrize(
    ("log", "code", "fault"),
    [
        (GOOD.replace("168", "176"), {}, "176 registers, allowed 168"),
        (GOOD + "ptxas . 8 bytes spill stores, 4 bytes spill loads", {}, "12 bytes spilled"),
        (GOOD + "ptxas info : (C7519) warpgroup.arrive is injected in around line 9", {}, "1 remarks"),
        (GOOD, {"HMMA": 1}, "1 HMMA on SM90"),
        (GOOD, {"FFMA": 500}, "per score, anchor 7.1"),
        (GOOD, {"FSEL": 70}, "no unmasked loop"),
    ],
)
def test_faults_name_what_is_wrong(log: str, code: dict[str, int], fault: str) -> None:
    loop = loop_of(**{"HGMMA": 16, "FFMA": 300, **code}, behind_branch=0)
    facts = kernel_facts(built(log, SPEC90), SPEC90, code_of(loop))
    assert len(facts.faults) == 1 and fault in facts.faults[0]


@pytest.mark.parametrize(
    ("num_warps", "block_n", "allowed"), [(4, 96, 128), (4, 128, 248), (8, 128, 168), (12, 128, 128)]
)
def test_registers_at_entry_follow_the_ctas_of_an_sm(num_warps: int, block_n: int, allowed: int) -> None:
    """A single consumer warpgroup shares the SM with a second CTA where shared memory lets it (96 keys here)."""
    tile = replace(SPEC90.tile, block_m=16 * num_warps, block_n=block_n, num_warps=num_warps)
    spec = replace(SPEC90, tile=tile)
    assert kernel_facts(built(GOOD, spec), spec, []).registers_allowed == allowed
    assert kernel_facts(built(LOG), SPEC, []).registers_allowed == 255


def test_missing_cuobjdump_is_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def missing(_: str) -> None:
        raise ToolchainError(asked="find cuobjdump", got="none", allowed="one", do="Run `pip install triton`.")

    monkeypatch.setattr(inspect_module, "find_disassembler", missing)
    assert find_cuobjdump() is None
    assert "pip install triton" in caplog.text
