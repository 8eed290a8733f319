# SPDX-License-Identifier: Apache-2.0
"""Warp-wide instructions of the simulator: shfl, vote, match, redux, elect and activemask, by the ISA's pseudo code."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

from tests.sim.ptx.builder import entry, run_words

STORE = "mul.wide.u32 %l0, %t, 8; add.u64 %l1, %out, %l0; st.global.v2.u32 [%l1], {%r10, %r11};"
FULL = 0xFFFFFFFF


def pairs(body: str, *inputs: np.ndarray, **launch: object) -> list[list[int]]:
    """Runs 32 lanes; returns each lane's %r10 and %r11."""
    params = ["u64 out"] + [f"u64 in{i}" for i in range(len(inputs))]
    target = launch.pop("target", "sm_80")
    return run_words(entry(body + STORE, params, target=str(target)), 64, *inputs, **launch).reshape(32, 2).tolist()


def shfl_source(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """Source lane and predicate, from the ISA's pseudo code."""
    bval, cval, mask = b & 31, c & 31, (c >> 8) & 31
    max_lane = (lane & mask) | (cval & ~mask & 31)
    min_lane = lane & mask
    if mode == "up":
        j, inside = lane - bval, lane - bval >= max_lane
    elif mode == "down":
        j, inside = lane + bval, lane + bval <= max_lane
    elif mode == "bfly":
        j, inside = lane ^ bval, lane ^ bval <= max_lane
    else:
        j = min_lane | (bval & ~mask & 31)
        inside = j <= max_lane
    return (j, True) if inside else (lane, False)


CLAMPS = {"width 32": 0x1F, "width 16": 0x101F, "width 8": 0x181F, "width 4": 0x1C1F, "clamp 10": 0x0A}


@pytest.mark.parametrize("clamp", CLAMPS)
@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("b", [0, 1, 3, 8, 16, 31, 33])
def test_shfl(mode: str, b: int, clamp: str) -> None:
    c = CLAMPS[clamp]
    if mode == "up":  # for up the clamp value is a lower bound
        c &= ~0x1F
    body = f"""
      mul.lo.u32 %r0, %t, 7; shfl.sync.{mode}.b32 %r10|%p0, %r0, {b}, {c}, -1; selp.u32 %r11, 1, 0, %p0;"""
    want = [shfl_source(mode, lane, b, c) for lane in range(32)]
    assert pairs(body) == [[7 * source, int(flag)] for source, flag in want]


def test_shfl_with_a_lane_index_per_lane_and_no_predicate() -> None:
    body = """
      mul.lo.u32 %r0, %t, 11; and.b32 %r1, %r0, 31; mov.u32 %r11, 0;
      shfl.sync.idx.b32 %r10, %t, %r1, 31, 0xffffffff;"""
    assert [row[0] for row in pairs(body)] == [11 * t % 32 for t in range(32)]


def test_shfl_in_place_reads_before_it_writes() -> None:
    body = "mov.u32 %r10, %t; shfl.sync.bfly.b32 %r10, %r10, 1, 31, -1; mov.u32 %r11, 0;"
    assert [row[0] for row in pairs(body)] == [t ^ 1 for t in range(32)]


def test_shfl_among_some_lanes() -> None:
    body = """
      mov.u32 %r10, 99; mov.u32 %r11, 0; setp.lt.u32 %p0, %t, 8; @!%p0 bra SKIP;
      shfl.sync.down.b32 %r10, %t, 1, 31, 0xff;
    SKIP:"""
    got = [row[0] for row in pairs(body)]
    assert got[:7] == [1, 2, 3, 4, 5, 6, 7]  # lane 7 reads lane 8, which does not take part: undefined
    assert got[8:] == [99] * 24


@pytest.mark.parametrize("value", [0, FULL, 0x0000FFFF, 0x10, 0xFFFFFFEF])
def test_vote(value: int) -> None:
    setup = f"shr.u32 %r0, {value}, %t; and.b32 %r0, %r0, 1; setp.ne.u32 %p0, %r0, 0;"
    for mode, want in (("all", value == FULL), ("any", value != 0), ("uni", value in (0, FULL))):
        got = pairs(f"{setup} vote.sync.{mode}.pred %p1, %p0, -1; selp.u32 %r10, 1, 0, %p1; mov.u32 %r11, 0;")
        assert [row[0] for row in got] == [int(want)] * 32, mode
    got = pairs(f"{setup} vote.sync.ballot.b32 %r10, %p0, -1; vote.sync.ballot.b32 %r11, !%p0, -1;")
    assert got == [[value, value ^ FULL]] * 32


def test_vote_counts_only_the_lanes_of_its_mask() -> None:
    body = """
      mov.u32 %r10, 5; mov.u32 %r11, 5; setp.ge.u32 %p0, %t, 16; setp.lt.u32 %p2, %t, 20; @!%p0 bra SKIP;
      vote.sync.ballot.b32 %r10, %p2, 0xffff0000; vote.sync.all.pred %p3, %p0, 0xffff0000; selp.u32 %r11, 1, 0, %p3;
    SKIP:"""
    assert pairs(body) == [[5, 5]] * 16 + [[0x000F0000, 1]] * 16


@pytest.mark.parametrize("width", [32, 64])
def test_match_any(width: int) -> None:
    reg = "%r1" if width == 32 else "%l4"
    widen = "" if width == 32 else "cvt.u64.u32 %l4, %r1; shl.b64 %l4, %l4, 33;"
    body = f"rem.u32 %r1, %t, 5; {widen} match.any.sync.b{width} %r10, {reg}, -1; mov.u32 %r11, 0;"
    want = [sum(1 << j for j in range(32) if j % 5 == i % 5) for i in range(32)]
    assert [row[0] for row in pairs(body)] == want


def test_match_all() -> None:
    body = """
      mov.u32 %r1, 4; match.all.sync.b32 %r10|%p0, %r1, -1; selp.u32 %r11, 1, 0, %p0;"""
    assert pairs(body) == [[FULL, 1]] * 32
    assert pairs(body.replace("mov.u32 %r1, 4", "shr.u32 %r1, %t, 4")) == [[0, 0]] * 32


def s32(x: int) -> int:
    return x - (1 << 32) if x >> 31 else x


REDUCTIONS = {
    "add.s32": lambda xs: sum(xs) & FULL,
    "add.u32": lambda xs: sum(xs) & FULL,
    "min.s32": lambda xs: min(xs, key=s32),
    "max.s32": lambda xs: max(xs, key=s32),
    "min.u32": min,
    "max.u32": max,
    "and.b32": lambda xs: reduce(lambda a, b: a & b, xs),
    "or.b32": lambda xs: reduce(lambda a, b: a | b, xs),
    "xor.b32": lambda xs: reduce(lambda a, b: a ^ b, xs),
}


@pytest.mark.parametrize("operation", REDUCTIONS)
def test_redux(operation: str) -> None:
    data = np.random.default_rng(1).integers(0, 2**32, 32, dtype=np.uint64).astype(np.uint32)
    if operation.startswith(("and", "or")):
        data = data | np.uint32(0x80000001) if operation[0] == "a" else data & np.uint32(0x00FF0F0F)
    body = f"""
      mul.wide.u32 %l4, %t, 4; add.u64 %l5, %in0, %l4; ld.global.u32 %r0, [%l5];
      redux.sync.{operation} %r10, %r0, -1; mov.u32 %r11, 0;
      setp.lt.u32 %p0, %t, 12; @!%p0 bra SKIP; redux.sync.{operation} %r11, %r0, 0xfff;
    SKIP:"""
    got = pairs(body, data)
    values = data.tolist()
    assert [row[0] for row in got] == [REDUCTIONS[operation](values)] * 32
    assert [row[1] for row in got[:12]] == [REDUCTIONS[operation](values[:12])] * 12


def test_activemask_inside_a_branch() -> None:
    body = """
      mov.u32 %r11, 0; mov.u32 %r10, 0; and.b32 %r0, %t, 3; setp.ne.u32 %p0, %r0, 1; @%p0 bra SKIP;
      activemask.b32 %r11;
    SKIP:
      bar.warp.sync -1; activemask.b32 %r10;"""
    got = pairs(body)
    assert [row[0] for row in got] == [FULL] * 32
    assert [row[1] for row in got] == [0x22222222 if t % 4 == 1 else 0 for t in range(32)]


def test_elect_picks_one_lane_of_the_mask() -> None:
    body = """
      mov.u32 %r10, 77; mov.u32 %r11, 0; setp.ge.u32 %p0, %t, 8; @!%p0 bra SKIP;
      elect.sync %r10|%p1, 0xffffff00; selp.u32 %r11, 1, 0, %p1;
    SKIP:"""
    got = pairs(body, target="sm_90", device="h100")
    leader = got[8][0]
    assert 8 <= leader < 32
    assert [row[0] for row in got] == [77] * 8 + [leader] * 24
    assert [t for t, row in enumerate(got) if row[1]] == [leader]


def test_warps_of_a_partial_block_have_fewer_lanes() -> None:
    got = run_words(entry("activemask.b32 %r10; mov.u32 %r11, 0;" + STORE), 80, block=40).reshape(40, 2)[:, 0].tolist()
    assert got == [FULL] * 32 + [0xFF] * 8
