# SPDX-License-Identifier: Apache-2.0
"""Divergence in the simulator: nested branches, loops of different length, early exit, reconvergence."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from attnsmith.tools import ptxsim
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.ptx.builder import entry, run, run_words

STORE = "mul.wide.u32 %l0, %t, 4; add.u64 %l1, %out, %l0; st.global.u32 [%l1], %r10;"


def lanes(body: str, count: int = 32, **launch: object) -> list[int]:
    return run_words(entry(body + STORE), count, block=count, **launch).tolist()


def test_if_else() -> None:
    body = """
      and.b32 %r0, %t, 1; setp.eq.u32 %p0, %r0, 0; @%p0 bra EVEN;
      mul.lo.u32 %r10, %t, 3; bra.uni JOIN;
    EVEN: add.u32 %r10, %t, 100;
    JOIN: add.u32 %r10, %r10, 1;"""
    assert lanes(body) == [(t + 100 if t % 2 == 0 else 3 * t) + 1 for t in range(32)]


def test_nested_if() -> None:
    body = """
      mov.u32 %r10, 0; setp.lt.u32 %p0, %t, 20; @!%p0 bra OUTER_ELSE;
      setp.lt.u32 %p1, %t, 10; @!%p1 bra INNER_ELSE;
      setp.eq.u32 %p2, %t, 3; @%p2 add.u32 %r10, %r10, 1000;
      add.u32 %r10, %r10, 1; bra INNER_JOIN;
    INNER_ELSE: add.u32 %r10, %r10, 2;
    INNER_JOIN: add.u32 %r10, %r10, 10; bra OUTER_JOIN;
    OUTER_ELSE: add.u32 %r10, %r10, 3;
    OUTER_JOIN: add.u32 %r10, %r10, 100;"""

    def expected(t: int) -> int:
        inner = (1000 if t == 3 else 0) + 1 if t < 10 else 2
        return 100 + (inner + 10 if t < 20 else 3)

    assert lanes(body) == [expected(t) for t in range(32)]


def test_loop_with_a_trip_count_per_lane() -> None:
    body = """
      mov.u32 %r10, 0; mov.u32 %r0, 0;
    LOOP: setp.ge.u32 %p0, %r0, %t; @%p0 bra DONE;
      add.u32 %r0, %r0, 1; add.u32 %r10, %r10, %r0; bra LOOP;
    DONE: add.u32 %r10, %r10, 1000;"""
    assert lanes(body) == [t * (t + 1) // 2 + 1000 for t in range(32)]


def test_reconvergence_after_a_divergent_loop_is_complete() -> None:
    """All lanes meet again: a full-mask shuffle after the loop sees every lane."""
    body = """
      and.b32 %r1, %t, 7; mov.u32 %r0, 0;
    LOOP: setp.ge.u32 %p0, %r0, %r1; @%p0 bra DONE; add.u32 %r0, %r0, 1; bra LOOP;
    DONE: shfl.sync.bfly.b32 %r10, %r0, 7, 31, -1; activemask.b32 %r2; add.u32 %r10, %r10, %r2;"""
    assert lanes(body) == [((t ^ 7) & 7) + 0xFFFFFFFF & 0xFFFFFFFF for t in range(32)]


def test_break_and_continue_inside_a_nested_loop() -> None:
    body = """
      mov.u32 %r10, 0; mov.u32 %r0, 0;
    OUTER: setp.ge.u32 %p0, %r0, 6; @%p0 bra DONE;
      mov.u32 %r1, 0;
    INNER: setp.ge.u32 %p1, %r1, 5; @%p1 bra NEXT;
      add.u32 %r2, %r0, %r1; add.u32 %r2, %r2, %t; and.b32 %r3, %r2, 7; add.u32 %r1, %r1, 1;
      setp.eq.u32 %p2, %r3, 5; @%p2 bra NEXT;
      and.b32 %r4, %r2, 1; setp.eq.u32 %p3, %r4, 1; @%p3 bra INNER;
      add.u32 %r10, %r10, %r2; bra INNER;
    NEXT: add.u32 %r0, %r0, 1; setp.gt.u32 %p4, %r10, 150; @%p4 bra DONE; bra OUTER;
    DONE:"""

    def expected(t: int) -> int:
        total = 0
        for i in range(6):
            for j in range(5):
                x = i + j + t
                if x % 8 == 5:
                    break
                if x % 2 == 1:
                    continue
                total += x
            if total > 150:
                break
        return total

    assert lanes(body) == [expected(t) for t in range(32)]


@pytest.mark.parametrize("leave", ["ret", "exit"])
def test_early_exit_of_some_lanes(leave: str) -> None:
    body = f"""
      mov.u32 %r10, 5; and.b32 %r0, %t, 3; setp.eq.u32 %p0, %r0, 2; @%p0 {leave};
      activemask.b32 %r10;"""
    assert lanes(body) == [0 if t % 4 == 2 else 0xBBBBBBBB for t in range(32)]


def test_a_barrier_does_not_wait_for_lanes_that_left() -> None:
    body = """
      mov.u32 %r10, 0; setp.ge.u32 %p0, %t, 50; @%p0 exit;
      bar.sync 0; mov.u32 %r10, 1;"""
    assert lanes(body, 96) == [1 if t < 50 else 0 for t in range(96)]


def test_return_inside_a_divergent_loop() -> None:
    body = """
      mov.u32 %r0, 0; mov.u32 %r10, 0;
    LOOP: add.u32 %r10, %r10, %t; mul.wide.u32 %l0, %t, 4; add.u64 %l1, %out, %l0; st.global.u32 [%l1], %r10;
      add.u32 %r0, %r0, 1; setp.gt.u32 %p0, %r0, %t; @%p0 ret;
      setp.lt.u32 %p1, %r0, 10; @%p1 bra LOOP;
      mov.u32 %r10, 7777;"""
    assert lanes(body) == [t * (t + 1) if t + 1 <= 10 else 7777 for t in range(32)]


def test_brx_or_its_refusal() -> None:
    body = """
      and.b32 %r0, %t, 3;
    targets: .branchtargets A, B, C, D;
      brx.idx %r0, targets;
    A: mov.u32 %r10, 10; bra JOIN;
    B: mov.u32 %r10, 20; bra JOIN;
    C: mov.u32 %r10, 30; bra JOIN;
    D: mov.u32 %r10, 40;
    JOIN: add.u32 %r10, %r10, %t;"""
    try:
        got = lanes(body)
    except ptxsim.PtxSimError as error:
        assert isinstance(error, (ptxsim.UnsupportedInstruction, ptxsim.ParseError)) and error.line
        return
    assert got == [10 * (t % 4 + 1) + t for t in range(32)]


def test_uniform_branch_is_no_divergence() -> None:
    body = "mov.u32 %r10, 1; setp.lt.u32 %p0, %t, 1000; @%p0 bra YES; mov.u32 %r10, 2;\nYES:"
    out = np.zeros(32, np.uint32)
    stats = run(entry(body + STORE), [out])
    assert out.tolist() == [1] * 32
    assert stats.divergent_branches == 0


def test_divergent_branches_are_counted() -> None:
    body = "mov.u32 %r10, 1; setp.lt.u32 %p0, %t, 40; @%p0 bra YES; mov.u32 %r10, 2;\nYES:"
    out = np.zeros(128, np.uint32)
    stats = run(entry(body + STORE), [out], block=128)
    assert out.tolist() == [1] * 40 + [2] * 88
    assert stats.divergent_branches == 1  # only warp 1 (threads 32 to 63) parts


# Random programs ---------------------------------------------------------------------------------------------------

VARIABLES = 8  # %r10 to %r17
MASK = 0xFFFFFFFF


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_control_flow(data: st.DataObject) -> None:
    """A random nest of ifs, loops, early exits and predicated instructions on eight variables, against a Python
    interpreter that runs the lanes one by one."""
    code: list[str] = []
    program: list = []
    _random_block(data, code, program, depth=0, label=[0])
    begin = "".join(f"add.u32 %r{10 + v}, %t, {v * 3};\n" for v in range(VARIABLES))
    combine = "".join(f"mad.lo.u32 %r10, %r10, 31, %r{10 + v};\n" for v in range(1, VARIABLES))
    ptx = begin + "\n".join(code) + "\nEND:\n" + combine
    assert lanes(ptx, 64) == [_lane(program, t) for t in range(64)], ptx


def _random_block(data: st.DataObject, code: list[str], program: list, depth: int, label: list[int]) -> None:
    variable = st.integers(0, VARIABLES - 1)
    kinds = ["assign", "assign", "predicated", "if", "loop", "leave"] if depth < 3 else ["assign", "predicated"]
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(kinds))
        label[0] += 1
        name, counter = f"L{label[0]}", f"%r{20 + depth}"
        d, a, b = data.draw(variable), data.draw(variable), data.draw(variable)
        constant, divisor = data.draw(st.integers(1, 9)), data.draw(st.integers(2, 7))
        condition = f"add.u32 %r30, %t, {constant}; rem.u32 %r30, %r30, {divisor}; setp.eq.u32 %p0, %r30, 0;"
        inner: list = []
        if kind == "assign":
            code.append(f"mad.lo.u32 %r{10 + d}, %r{10 + a}, {constant}, %r{10 + b};")
        elif kind == "predicated":
            code.append(f"{condition} @%p0 xor.b32 %r{10 + d}, %r{10 + a}, %r{10 + b};")
            code.append(f"@!%p0 add.u32 %r{10 + a}, %r{10 + d}, {constant};")
        elif kind == "leave":
            code.append(f"{condition} setp.eq.and.u32 %p1, %r{10 + d}, %r{10 + a}, %p0; @%p1 bra END;")
        elif kind == "if":
            code.append(f"{condition} @!%p0 bra {name}_ELSE;")
            _random_block(data, code, inner, depth + 1, label)
            code.append(f"bra {name}_JOIN;\n{name}_ELSE: sub.u32 %r{10 + d}, %r{10 + a}, {constant};\n{name}_JOIN:")
        else:
            code.append(f"rem.u32 {counter}, %t, {divisor};\n{name}_TOP: setp.eq.u32 %p2, {counter}, 0;")
            code.append(f"@%p2 bra {name}_JOIN;")
            _random_block(data, code, inner, depth + 1, label)
            code.append(f"sub.u32 {counter}, {counter}, 1; bra {name}_TOP;\n{name}_JOIN:")
        program.append((kind, d, a, b, constant, divisor, inner))


class _Leave(Exception):
    pass


def _lane(program: list, t: int) -> int:
    x = [t + 3 * v for v in range(VARIABLES)]
    with contextlib.suppress(_Leave):
        _interpret(program, t, x)
    result = x[0]
    for value in x[1:]:
        result = (31 * result + value) & MASK
    return result


def _interpret(program: list, t: int, x: list[int]) -> None:
    for kind, d, a, b, constant, divisor, inner in program:
        holds = (t + constant) % divisor == 0
        if kind == "assign":
            x[d] = (x[a] * constant + x[b]) & MASK
        elif kind == "predicated" and holds:
            x[d] = x[a] ^ x[b]
        elif kind == "predicated":
            x[a] = (x[d] + constant) & MASK
        elif kind == "leave" and holds and x[d] == x[a]:
            raise _Leave
        elif kind == "if" and holds:
            _interpret(inner, t, x)
        elif kind == "if":
            x[d] = (x[a] - constant) & MASK
        elif kind == "loop":
            for _ in range(t % divisor):
                _interpret(inner, t, x)
