# SPDX-License-Identifier: Apache-2.0
"""Barriers of the simulator: bar.sync, bar.arrive, bar.red, named barriers, warp barriers; deadlocks and budgets."""

from __future__ import annotations

import numpy as np
import pytest
from attnsmith.tools import ptxsim

from tests.sim.ptx.builder import entry, line_of, run, run_words

SHARED = ".shared .align 16 .b8 smem[4096];"
SLOT = "mov.u32 %r50, smem; shl.b32 %r51, %t, 2; add.u32 %r52, %r50, %r51;"
STORE = "mul.wide.u32 %l0, %t, 4; add.u64 %l1, %out, %l0; st.global.u32 [%l1], %r10;"
SCHEDULES = [("round_robin", 0), ("random", 1), ("random", 2)]


def lanes(body: str, count: int, **launch: object) -> list[int]:
    return run_words(entry(SLOT + body + STORE, globals_=SHARED), count, block=count, **launch).tolist()


@pytest.mark.parametrize("barrier", ["bar.sync 0;", "barrier.sync 0;", "bar.sync 3, 128;", "barrier.sync.aligned 15;",
                                     "mov.u32 %r60, 5; bar.sync %r60;", "bar.cta.sync 1;"])  # fmt: skip
@pytest.mark.parametrize("schedule, seed", SCHEDULES)
def test_repeated_exchange(barrier: str, schedule: str, seed: int) -> None:
    """Eight rounds of neighbour exchange: each round needs both of its barriers."""
    body = f"""
      mov.u32 %r10, %t; mov.u32 %r0, 0;
    LOOP:
      st.shared.u32 [%r52], %r10; {barrier}
      add.u32 %r1, %t, 33; and.b32 %r1, %r1, 127; shl.b32 %r1, %r1, 2; add.u32 %r1, %r1, %r50;
      ld.shared.u32 %r2, [%r1]; {barrier}
      mad.lo.u32 %r10, %r10, 3, %r2; add.u32 %r0, %r0, 1; setp.lt.u32 %p0, %r0, 8; @%p0 bra LOOP;"""
    want = np.arange(128, dtype=np.uint32)
    for _ in range(8):
        want = want * np.uint32(3) + np.roll(want, -33)
    assert lanes(body, 128, schedule=schedule, seed=seed) == want.tolist()


@pytest.mark.parametrize("schedule, seed", SCHEDULES)
def test_producer_arrives_and_consumer_waits(schedule: str, seed: int) -> None:
    """Warp 0 produces and only arrives; warp 1 waits on full and arrives on empty."""
    body = """
      mov.u32 %r10, 0; mov.u32 %r0, 0; and.b32 %r3, %t, 31; shl.b32 %r4, %r3, 2; add.u32 %r5, %r50, %r4;
      setp.ge.u32 %p0, %t, 32; @%p0 bra CONSUME;
    PRODUCE:
      mad.lo.u32 %r1, %r0, 100, %r3; st.shared.u32 [%r5], %r1;
      bar.arrive 1, 64; bar.sync 2, 64;
      add.u32 %r0, %r0, 1; setp.lt.u32 %p1, %r0, 5; @%p1 bra PRODUCE; bra DONE;
    CONSUME:
      bar.sync 1, 64; ld.shared.u32 %r1, [%r5]; add.u32 %r10, %r10, %r1; bar.arrive 2, 64;
      add.u32 %r0, %r0, 1; setp.lt.u32 %p1, %r0, 5; @%p1 bra CONSUME;
    DONE:"""
    got = lanes(body, 64, schedule=schedule, seed=seed)
    assert got == [0] * 32 + [5 * t + 1000 for t in range(32)]


def test_two_named_barriers_split_the_block() -> None:
    body = """
      shr.u32 %r0, %t, 6; add.u32 %r0, %r0, 1; mul.lo.u32 %r1, %t, 5; st.shared.u32 [%r52], %r1;
      bar.sync %r0, 64;
      xor.b32 %r2, %t, 63; shl.b32 %r2, %r2, 2; add.u32 %r2, %r2, %r50; ld.shared.u32 %r10, [%r2];"""
    assert lanes(body, 128) == [5 * (t ^ 63) for t in range(128)]


def test_bar_red() -> None:
    body = """
      setp.lt.u32 %p0, %t, 70; bar.red.popc.u32 %r10, 0, %p0;
      setp.lt.u32 %p1, %t, 96; bar.red.and.pred %p2, 0, %p1; bar.red.or.pred %p3, 0, %p0;
      selp.u32 %r0, 1000, 0, %p2; selp.u32 %r1, 2000, 0, %p3; add.u32 %r10, %r10, %r0; add.u32 %r10, %r10, %r1;
      bar.red.and.pred %p4, 1, !%p0; selp.u32 %r2, 5000, 0, %p4; add.u32 %r10, %r10, %r2;"""
    assert lanes(body, 96) == [3070] * 96


def test_warp_barrier_joins_diverged_lanes() -> None:
    body = """
      setp.lt.u32 %p0, %t, 16; @%p0 bra LOW;
      mov.u32 %r0, 5; st.shared.u32 [%r52], %r0; bar.warp.sync 0xffffffff; bra JOIN;
    LOW: mov.u32 %r0, 9; st.shared.u32 [%r52], %r0; bar.warp.sync 0xffffffff;
    JOIN: xor.b32 %r1, %t, 16; shl.b32 %r1, %r1, 2; add.u32 %r1, %r1, %r50; bar.warp.sync 0xffffffff;
      ld.shared.u32 %r10, [%r1];"""
    try:
        got = lanes(body, 32)
    except ptxsim.Deadlock as error:  # two barrier instructions for one meeting: the simulator may refuse, by line
        assert error.line
        return
    assert got == [5] * 16 + [9] * 16


@pytest.mark.parametrize(
    "fence", ["membar.cta;", "membar.gl;", "membar.sys;", "fence.acq_rel.gpu;", "fence.sc.cta;", "fence.acq_rel.sys;"]
)
def test_fences_are_accepted(fence: str) -> None:
    assert lanes(f"mov.u32 %r10, 3; {fence}", 32) == [3] * 32


def test_flag_in_global_memory_between_warps_makes_progress() -> None:
    """A spinning warp must not starve the warp that it waits for."""
    body = """
      mov.u32 %r10, 1; setp.ge.u32 %p0, %t, 32; @%p0 bra SETTER;
    SPIN: ld.volatile.global.u32 %r0, [%out+256]; setp.eq.u32 %p1, %r0, 0; @%p1 bra SPIN;
      bra DONE;
    SETTER: mov.u32 %r10, 2; st.volatile.global.u32 [%out+256], 1;
    DONE:"""
    for schedule, seed in SCHEDULES:
        out = np.zeros(65, np.uint32)
        run(entry(SLOT + body + STORE, globals_=SHARED), [out], block=64, schedule=schedule, seed=seed)
        assert out[:64].tolist() == [1] * 32 + [2] * 32


def test_deadlock_reports_the_barrier_and_who_is_missing() -> None:
    body = """
      setp.ge.u32 %p0, %t, 32; @%p0 bra SECOND;
      bar.sync 1, 64;
      bra DONE;
    SECOND:
      bar.sync 2, 64;
    DONE:
      mov.u32 %r10, 0;"""
    ptx = entry(SLOT + body + STORE, globals_=SHARED)
    with pytest.raises(ptxsim.Deadlock) as caught:
        run(ptx, [np.zeros(64, np.uint32)], block=64)
    text = str(caught.value)
    for line in (line_of(ptx, "bar.sync 1, 64"), line_of(ptx, "bar.sync 2, 64")):
        assert str(line) in text
    assert "barrier 1" in text and "barrier 2" in text
    assert caught.value.kind == "deadlock"


def test_waiting_for_more_threads_than_ever_arrive_is_a_deadlock() -> None:
    with pytest.raises(ptxsim.Deadlock):
        lanes("mov.u32 %r10, 0; bar.sync 1, 96;", 64)


def test_step_budget_ends_an_endless_loop() -> None:
    ptx = entry("LOOP: add.u32 %r0, %r0, 1;\nbra LOOP;")
    with pytest.raises(ptxsim.StepBudgetExceeded) as caught:
        run(ptx, [np.zeros(1, np.uint32)], step_budget=10_000)
    assert "10000" in str(caught.value).replace(",", "").replace("_", "")


def test_step_budget_is_not_hit_by_a_short_kernel() -> None:
    assert run_words(entry("st.global.u32 [%out], 1;"), 1, block=1, step_budget=100).tolist() == [1]


def test_trap_is_an_error_with_its_line() -> None:
    ptx = entry("setp.eq.u32 %p0, %t, 7;\n@%p0 trap;")
    with pytest.raises(ptxsim.TrapError) as caught:
        run(ptx, [np.zeros(1, np.uint32)])
    assert caught.value.line == line_of(ptx, "@%p0 trap")
    assert caught.value.thread == 7


def test_missing_barrier_is_noticed() -> None:
    """Neighbour exchange without a barrier: an uninitialized read, a race, or (at the very least) a wrong result."""
    body = """
      mul.lo.u32 %r0, %t, 5; st.shared.u32 [%r52], %r0;
      xor.b32 %r2, %t, 64; shl.b32 %r2, %r2, 2; add.u32 %r2, %r2, %r50; ld.shared.u32 %r10, [%r2];"""
    for schedule, seed in SCHEDULES:
        with pytest.raises((ptxsim.UninitializedRead, ptxsim.RaceError)):
            lanes(body, 128, schedule=schedule, seed=seed)
