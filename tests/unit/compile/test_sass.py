# SPDX-License-Identifier: Apache-2.0
"""Loops of disassembled code: what is innermost, what every iteration executes, and of what it consists."""

from __future__ import annotations

from attnsmith.tools.sass import Instruction, count_opcodes, parse_kernels, tensor_loops

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
