# SPDX-License-Identifier: Apache-2.0
"""Loops of disassembled code: what is innermost, what every iteration executes, and of what it consists."""

from __future__ import annotations

import pytest
from attnsmith.tools.sass import Instruction, Loop, count_opcodes, parse_kernels, tensor_loops

SASS = """
\tcode for sm_80
\t\tFunction : kernel
\t.headerflags\t@"EF_CUDA_SM80"
        /*0000*/                   MOV R1, c[0x0][0x28] ;            /* 0x00000a00ff017624 */
                                                                     /* 0x000fe400078e00ff */
        /*0010*/                   S2R R6, SR_CTAID.X ;              /* 0x0000000000067919 */
        /*0020*/                   LDSM.16.M88.4 R4, [R8] ;          /* outer loop starts */
        /*0030*/                   HMMA.16816.F32 R12, R4, R8, R12 ; /* first inner loop starts */
        /*0040*/                   FFMA R3, R3, R2, -R5 ;
        /*0050*/              @!P1 BRA 0x80 ;
        /*0060*/                   FMUL R12, R12, R3 ;
        /*0070*/                   STL [R1], R12 ;
        /*0080*/                   MUFU.EX2 R3, R3 ;
        /*0090*/               @P0 BRA 0x30 ;
        /*00a0*/                   ISETP.GE.AND P0, PT, R1, R2, PT ; /* second inner loop starts */
        /*00b0*/                   HMMA.16816.F32.BF16 R12, R4, R8, R12 ;
        /*00c0*/              @!P0 BRA P2, 0x170 ;
        /*00d0*/                   FSEL R3, R3, -INF , P1 ;
        /*00e0*/               @P3 BRA 0xa0 ;
        /*00f0*/                   IADD3 R7, R7, 0x1, RZ ;
        /*0100*/              @UP0 BRA 0x20 ;
        /*0110*/                   FADD R1, R1, R2 ;                 /* a loop without tensor instructions */
        /*0120*/               @P0 BRA 0x110 ;
        /*0130*/                   EXIT ;
        /*0140*/                   BRA 0x140;
        /*0150*/                   NOP;
        /*0160*/                   NOP;
        /*0170*/                   SHFL.BFLY PT, R3, R3, 0x2, 0x1f ; /* rare path of the second loop, out of line */
        /*0180*/                   BRA 0xd0 ;
\t\tFunction : other
        /*0000*/                   EXIT ;
"""


def code_of(name: str) -> list[Instruction]:
    """The instructions of one kernel."""
    return dict(parse_kernels(SASS))[name]


def test_kernels_and_instructions() -> None:
    assert [name for name, _ in parse_kernels(SASS)] == ["kernel", "other"]
    code = code_of("kernel")
    assert len(code) == 25
    assert (code[5].opcode, code[5].branch_target, code[5].falls_through) == ("BRA", 0x80, True)
    assert (code[12].branch_target, code[12].falls_through) == (0x170, True)
    assert (code[24].branch_target, code[24].falls_through) == (0xD0, False)
    assert not code[19].falls_through
    assert Instruction(0, "@!PT BRA 0x10").branch_target is None


def test_innermost_tensor_loops_only() -> None:
    assert [loop.start for loop in tensor_loops(code_of("kernel"))] == [0x30, 0xA0]
    assert tensor_loops(code_of("other")) == []
    assert tensor_loops([]) == []


def test_what_a_branch_skips_is_not_executed_always() -> None:
    first = tensor_loops(code_of("kernel"))[0]
    assert len(first.body) == 7 and first.num_tensor == 1
    skipped = [i.opcode for i in first.body if i not in first.always]
    assert skipped == ["FMUL", "STL"]


def test_out_of_line_path_belongs_to_its_loop() -> None:
    second = tensor_loops(code_of("kernel"))[1]
    assert [i.address for i in second.body] == [0xA0, 0xB0, 0xC0, 0xD0, 0xE0, 0x170, 0x180]
    assert [i.address for i in second.always] == [0xA0, 0xB0, 0xC0, 0xD0, 0xE0]


def test_mix_and_counts() -> None:
    first, second = tensor_loops(code_of("kernel"))
    assert first.mix() == {"branch": 2, "mma": 1, "ffma": 1, "fmul": 1, "spill": 1, "mufu": 1}
    assert second.mix()["select"] == 2 and second.mix()["shuffle"] == 1
    assert count_opcodes(code_of("kernel"), "STL", "LDL") == 1


HOPPER = """
		Function : kernel
        /*0000*/                   @P0 BRA 0xa0 ;
        /*0010*/                   USETMAXREG.DEALLOC.CTAPOOL 0x18 ;
        /*0020*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR6], R0 ;      /* the producer's loop */
        /*0030*/                   @!P0 BRA 0x2b0 ;
        /*0040*/                   SYNCS.ARRIVE.TRANS64 RZ, [UR9], R5 ;
        /*0050*/                   UTMALDG.4D [UR8], [UR4], desc[UR6] ;
        /*0060*/                   UIADD3 UR7, UR7, 0x1, URZ ;
        /*0070*/                   @P1 BRA 0x20 ;
        /*0080*/                   EXIT ;
        /*0090*/                   NOP ;
        /*00a0*/                   USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xf0 ;
        /*00b0*/                   @!UP0 BRA 0xa0 ;                                    /* no tensor instruction */
        /*00c0*/                   HGMMA.64x128x16.F32 R24, gdesc[UR12], RZ, !UPT ;    /* first block, peeled */
        /*00d0*/                   ULEA UR6, UR43, UR40, 0x3 ;                         /* the main loop */
        /*00e0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR6], R0 ;
        /*00f0*/                   @!P0 BRA 0x2d0 ;
        /*0100*/                   WARPGROUP.ARRIVE ;
        /*0110*/                   HGMMA.64x128x16.F32 R24, gdesc[UR12], RZ, !UPT ;
        /*0120*/                   HGMMA.64x64x16.F32 R88, R4, gdesc[UR8], R88, gsb0 ;
        /*0130*/                   WARPGROUP.DEPBAR.LE gsb0, 0x1 ;
        /*0140*/                   FSETP.GT.FTZ.AND P2, PT, R3, R9, PT ;
        /*0150*/                   @P2 BRA 0x210 ;
        /*0160*/                   MUFU.EX2 R3, R3 ;
        /*0170*/                   @P1 BRA 0xd0 ;
        /*0180*/                   QGMMA.64x224x32.F32.E4M3.E4M3 R24, gdesc[UR12], RZ, !UPT ; /* masked loop */
        /*0190*/                   FSEL R3, R3, -INF , P1 ;
        /*01a0*/                   @P0 BRA 0x180 ;
        /*01b0*/                   UTMASTG.4D [UR8], [UR4] ;
        /*01c0*/                   EXIT ;
        /*01d0*/                   NOP ;
        /*01e0*/                   NOP ;
        /*01f0*/                   NOP ;
        /*0200*/                   NOP ;
        /*0210*/                   FMUL R88, R88, R3 ;                                 /* rescale, out of line */
        /*0220*/                   FMUL R89, R89, R3 ;
        /*0230*/                   MUFU.EX2 R3, R3 ;                                   /* ... with a copy of the end */
        /*0240*/                   @P1 BRA 0xd0 ;
        /*0250*/                   BRA 0x180 ;
        /*02b0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR6], R0 ;
        /*02c0*/                   @!P0 BRA 0x2b0 ;
        /*02c8*/                   BRA 0x40 ;
        /*02d0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR6], R0 ;      /* a wait that has to wait */
        /*02e0*/                   @!P0 BRA 0x2d0 ;
        /*02f0*/                   BRA 0x100 ;
"""


def hopper_loops() -> list[Loop]:
    """The tensor loops of the warp-specialized kernel."""
    return tensor_loops(dict(parse_kernels(HOPPER))["kernel"])


def test_loops_of_a_warp_specialized_kernel_are_the_consumers() -> None:
    assert [(loop.start, loop.num_tensor) for loop in hopper_loops()] == [(0xD0, 2), (0x180, 1)]


def test_cold_code_out_of_line_is_in_the_body_but_not_in_the_cheapest_iteration() -> None:
    main = hopper_loops()[0]
    in_line = list(range(0xD0, 0x180, 0x10))
    assert [i.address for i in main.always] == in_line
    assert [i.address for i in main.body] == [*in_line, 0x210, 0x220, 0x230, 0x240, 0x2D0, 0x2E0, 0x2F0]


def test_both_ways_of_a_branch_cost_the_cheaper_one() -> None:
    code = [
        Instruction(0x00, "HGMMA.64x64x16.F32 R0, gdesc[UR4], RZ"),
        Instruction(0x10, "@P0 BRA 0x50"),
        Instruction(0x20, "BAR.SYNC.DEFER_BLOCKING 0x1, 0x100"),
        Instruction(0x30, "MOV R1, R2"),
        Instruction(0x40, "BRA 0x60"),
        Instruction(0x50, "BAR.SYNC.DEFER_BLOCKING 0x2, 0x100"),
        Instruction(0x60, "@P1 BRA 0x0"),
    ]
    (loop,) = tensor_loops(code)
    assert [i.address for i in loop.always] == [0x00, 0x10, 0x50, 0x60]


def test_an_iteration_that_skips_tensor_work_is_not_the_cheapest() -> None:
    code = [
        Instruction(0x00, "HGMMA.64x64x16.F32 R0, gdesc[UR4], RZ"),
        Instruction(0x10, "@P0 BRA 0x40"),
        Instruction(0x20, "HGMMA.64x64x16.F32 R0, gdesc[UR4], R0"),
        Instruction(0x30, "FADD R1, R1, R2"),
        Instruction(0x40, "@P1 BRA 0x0"),
    ]
    (loop,) = tensor_loops(code)
    assert len(loop.always) == 5


@pytest.mark.parametrize(
    ("text", "macs"),
    [
        ("HGMMA.64x128x16.F32.BF16 R24, gdesc[UR12], RZ, !UPT", 64 * 128 * 16),
        ("@P0 QGMMA.64x224x32.F32.E4M3.E5M2 R24, R4, gdesc[UR12], R24", 64 * 224 * 32),
        ("HMMA.16816.F32.BF16 R12, R4, R8, R12", 16 * 8 * 16),
        ("HMMA.1688.F32 R12, R4, R8, R12", 16 * 8 * 8),
        ("FFMA R1, R2, R3, R4", 0),
    ],
)
def test_multiply_adds_follow_from_the_shape(text: str, macs: int) -> None:
    assert Instruction(0, text).macs == macs


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("QGMMA.64x224x32.F32.E4M3.E4M3 R24, gdesc[UR12], RZ", "wgmma"),
        ("USETMAXREG.DEALLOC.CTAPOOL 0x18", "setmaxnreg"),
        ("WARPGROUP.DEPBAR.LE gsb0, 0x1", "sync"),
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR6], R0", "sync"),
        ("@P0 ELECT P0, URZ, PT", "sync"),
        ("UTMALDG.4D.MULTICAST [UR8], [UR4], UR6", "tma"),
        ("UTMASTG.4D [UR8], [UR4]", "tma"),
        ("UBLKCP.S.G [UR8], [UR4], UR6", "tma"),
        ("R2UR UR4, R5", "uniform"),
        ("@!UP0 UIADD3 UR7, UR7, 0x1, URZ", "uniform"),
        ("ULDC.64 UR4, c[0x0][0x208]", "constant"),
        ("F2FP.SATFINITE.E4M3.F32.PACK_AB_MERGE_C R4, R5, R6, RZ", "cvt"),
    ],
)
def test_classes_of_hopper(text: str, name: str) -> None:
    assert Instruction(0, text).instruction_class == name
