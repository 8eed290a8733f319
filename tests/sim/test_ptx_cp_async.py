# SPDX-License-Identifier: Apache-2.0
"""cp.async of the simulator: right data after the wait, an error before it, groups, zero-fill, bounds."""

from __future__ import annotations

import numpy as np
import pytest
from attnsmith.tools import ptxsim

from tests.sim.ptx.builder import aligned_zeros, entry, line_of, run, run_words

SHARED = ".shared .align 128 .b8 smem[8192];"
PAIR = ["u64 out", "u64 in"]
MODES = [("late", 0), ("random", 1), ("random", 2), ("random", 3)]
# %r1 and %l1: this lane's 16 bytes in shared and global memory.
SETUP = """
  mov.u32 %r0, smem; shl.b32 %r2, %t, 4; add.u32 %r1, %r0, %r2; mul.wide.u32 %l0, %t, 16; add.u64 %l1, %in, %l0;
  add.u64 %l2, %out, %l0;"""
COPY_BACK = """
  ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r1]; st.global.v4.u32 [%l2], {%r10, %r11, %r12, %r13};"""
ISSUE = "cp.async.cg.shared.global [%r1], [%l1], 16;"


def source(count: int = 256) -> np.ndarray:
    data = aligned_zeros(count, np.uint32)
    data[:] = np.arange(1, count + 1)
    return data


def copy(body: str, count: int = 128, data: np.ndarray | None = None, **launch: object) -> np.ndarray:
    out = aligned_zeros(count, np.uint32)
    run(entry(SETUP + body, PAIR, globals_=SHARED), [out, source() if data is None else data], **launch)
    return out


@pytest.mark.parametrize("mode, seed", MODES)
@pytest.mark.parametrize(
    "wait",
    [
        "cp.async.commit_group; cp.async.wait_group 0;",
        "cp.async.wait_all;",
        "cp.async.commit_group; cp.async.wait_all;",
    ],
)
def test_data_is_there_after_the_wait(wait: str, mode: str, seed: int) -> None:
    got = copy(f"{ISSUE} {wait} {COPY_BACK}", async_mode=mode, seed=seed)
    assert got.tolist() == list(range(1, 129))


def test_reading_before_the_wait_is_an_error() -> None:
    for body in (f"{ISSUE} {COPY_BACK}", f"{ISSUE} cp.async.commit_group; {COPY_BACK} cp.async.wait_all;"):
        with pytest.raises(ptxsim.UninitializedRead):
            copy(body)


def test_waiting_for_an_older_group_does_not_complete_the_newer() -> None:
    body = f"""
      cp.async.cg.shared.global [%r1], [%l1], 16; cp.async.commit_group;
      cp.async.cg.shared.global [%r1+1024], [%l1+512], 16; cp.async.commit_group;
      cp.async.wait_group 1; {COPY_BACK}"""
    assert copy(body).tolist() == list(range(1, 129))
    with pytest.raises(ptxsim.UninitializedRead):
        copy(body + "ld.shared.u32 %r20, [%r1+1024]; st.global.u32 [%l2], %r20;")
    done = body + "cp.async.wait_group 0; ld.shared.u32 %r20, [%r1+1024]; st.global.u32 [%l2], %r20;"
    assert copy(done).reshape(32, 4)[:, 0].tolist() == [129 + 4 * t for t in range(32)]


def test_wait_group_does_not_cover_what_was_not_committed() -> None:
    with pytest.raises(ptxsim.UninitializedRead):
        copy(f"{ISSUE} cp.async.wait_group 0; {COPY_BACK}")


def test_empty_groups_count() -> None:
    """A commit without copies is a group: two empty ones after the real one let wait_group 2 complete it."""
    commits = "cp.async.commit_group; " * 3
    body = f"{ISSUE} {commits} cp.async.wait_group 2; {COPY_BACK}"
    assert copy(body).tolist() == list(range(1, 129))


def test_other_threads_need_a_barrier_after_the_wait() -> None:
    """Warp 1 reads what warp 0 copied."""
    ready = "setp.ge.u32 %p0, %t, 32; @!%p0 cp.async.cg.shared.global [%r1], [%l1], 16; cp.async.commit_group;"
    read = """
      @!%p0 bra DONE; sub.u32 %r3, %r1, 512; ld.shared.u32 %r10, [%r3]; st.global.u32 [%l2], %r10;
    DONE:"""
    right = copy(f"{ready} cp.async.wait_group 0; bar.sync 0; {read}", 256, block=64).reshape(64, 4)
    assert right[32:, 0].tolist() == [1 + 4 * t for t in range(32)]
    with pytest.raises((ptxsim.UninitializedRead, ptxsim.RaceError)):
        copy(f"{ready} bar.sync 0; cp.async.wait_group 0; {read}", 256, block=64)


def test_overwriting_a_buffer_shows_the_old_data_or_an_error_until_the_wait() -> None:
    """The pipeline's hazard: the buffer holds the previous tile, a forgotten wait must not deliver the new one."""
    body = f"""
      mov.u32 %r5, 7; st.shared.v4.u32 [%r1], {{%r5, %r5, %r5, %r5}}; bar.sync 0;
      {ISSUE} cp.async.commit_group;
      {COPY_BACK} cp.async.wait_all;"""
    try:
        got = copy(body)
    except (ptxsim.UninitializedRead, ptxsim.RaceError):
        return
    assert got.tolist() == [7] * 128


@pytest.mark.parametrize("wait", ["cp.async.wait_all;", ""], ids=["waited later", "never waited"])
def test_storing_over_a_copy_in_flight_is_an_error(wait: str) -> None:
    """Nothing orders the copy before the wait: either value could win."""
    body = f"""
      {ISSUE} cp.async.commit_group; mov.u32 %r5, 7; st.shared.v4.u32 [%r1], {{%r5, %r5, %r5, %r5}};
      {wait} {COPY_BACK}"""
    with pytest.raises(ptxsim.RaceError):
        copy(body)


@pytest.mark.parametrize("earlier", ["read", "write"])
def test_copying_over_what_another_warp_still_uses_is_an_error(earlier: str) -> None:
    """The hazard that the second barrier of a pipeline prevents."""
    use = {"read": "ld.shared.u32 %r9, [%r7];", "write": "st.shared.u32 [%r7], %t;"}[earlier]
    body = f"""
      st.shared.v4.u32 [%r1], {{%t, %t, %t, %t}}; bar.sync 0; xor.b32 %r7, %r1, 512; setp.ge.u32 %p0, %t, 32;
      @%p0 {use} BARRIER @!%p0 {ISSUE} cp.async.wait_all;"""
    copy(body.replace("BARRIER", "bar.sync 0;"), 256, block=64)
    with pytest.raises(ptxsim.RaceError):
        copy(body.replace("BARRIER", ""), 256, block=64)


@pytest.mark.parametrize("size, cache", [(4, "ca"), (8, "ca"), (16, "ca"), (16, "cg")])
def test_sizes(size: int, cache: str) -> None:
    load = {4: "ld.shared.u32 %r10, [%r1];", 8: "ld.shared.v2.u32 {%r10, %r11}, [%r1];",
            16: "ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r1];"}[size]  # fmt: skip
    body = f"""
      mov.u32 %r10, 0; mov.u32 %r11, 0; mov.u32 %r12, 0; mov.u32 %r13, 0;
      cp.async.{cache}.shared.global [%r1], [%l1], {size}; cp.async.wait_all; {load}
      st.global.v4.u32 [%l2], {{%r10, %r11, %r12, %r13}};"""
    want = source(128).reshape(32, 4).copy()
    want[:, size // 4 :] = 0
    assert np.array_equal(copy(body).reshape(32, 4), want)


@pytest.mark.parametrize("hint", [".L2::64B", ".L2::128B", ".L2::256B"])
def test_prefetch_hints(hint: str) -> None:
    body = f"cp.async.cg.shared.global{hint} [%r1], [%l1], 16; cp.async.wait_all; {COPY_BACK}"
    assert copy(body).tolist() == list(range(1, 129))


@pytest.mark.parametrize("size", [0, 1, 4, 7, 12, 16])
def test_source_size_fills_the_rest_with_zeros(size: int) -> None:
    body = f"""
      mov.u32 %r5, -1; st.shared.v4.u32 [%r1], {{%r5, %r5, %r5, %r5}};
      mov.u32 %r6, {size}; cp.async.cg.shared.global [%r1], [%l1], 16, %r6; cp.async.wait_all; {COPY_BACK}"""
    want = source(128).view(np.uint8).reshape(32, 16).copy()
    want[:, size:] = 0
    assert np.array_equal(copy(body).view(np.uint8).reshape(32, 16), want)


def test_zero_source_size_does_not_read_memory() -> None:
    """The usual tail: rows past the end point anywhere and copy nothing."""
    body = f"""
      setp.lt.u32 %p0, %t, 4; selp.u32 %r6, 16, 0, %p0;
      cp.async.cg.shared.global [%r1], [%l1], 16, %r6; cp.async.wait_all; {COPY_BACK}"""
    got = copy(body, data=source(16))
    assert got.tolist() == [*range(1, 17), *[0] * 112]


def test_ignore_source_predicate() -> None:
    body = f"""
      setp.ge.u32 %p0, %t, 4; cp.async.cg.shared.global [%r1], [%l1], 16, %p0; cp.async.wait_all; {COPY_BACK}"""
    try:
        got = copy(body, data=source(16))
    except ptxsim.PtxSimError as error:
        assert isinstance(error, (ptxsim.UnsupportedInstruction, ptxsim.ParseError)) and error.line
        return
    assert got.tolist() == [*range(1, 17), *[0] * 112]


def test_predicated_off_copy_leaves_the_buffer() -> None:
    body = f"""
      mov.u32 %r5, 9; st.shared.v4.u32 [%r1], {{%r5, %r5, %r5, %r5}}; setp.lt.u32 %p0, %t, 2;
      @%p0 cp.async.cg.shared.global [%r1], [%l1], 16; cp.async.wait_all; {COPY_BACK}"""
    assert copy(body, data=source(8)).tolist() == [*range(1, 9), *[9] * 120]


def test_out_of_bounds_source_names_the_copy() -> None:
    ptx = entry(SETUP + f"\n{ISSUE}\ncp.async.wait_all; {COPY_BACK}", PAIR, globals_=SHARED)
    with pytest.raises(ptxsim.MemoryAccessError) as caught:
        run(ptx, [aligned_zeros(128, np.uint32), source(100)])
    assert caught.value.line == line_of(ptx, ISSUE)
    assert caught.value.thread == 25


@pytest.mark.parametrize(
    "copy_line", ["cp.async.cg.shared.global [%r1+4], [%l1], 16;", "cp.async.cg.shared.global [%r1], [%l1+4], 16;"]
)
def test_misaligned(copy_line: str) -> None:
    with pytest.raises(ptxsim.MisalignedAccess):
        copy(f"{copy_line} cp.async.wait_all;", data=source())


def test_source_is_read_no_later_than_the_wait() -> None:
    """Overwriting the source after the wait does not change what was copied."""
    body = f"{ISSUE} cp.async.wait_all; mov.u32 %r5, 0; st.global.v4.u32 [%l1], {{%r5, %r5, %r5, %r5}}; {COPY_BACK}"
    assert copy(body).tolist() == list(range(1, 129))


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("mode, seed", MODES)
def test_software_pipeline(stages: int, mode: str, seed: int) -> None:
    """The main loop of a GEMM: prefetch, wait for all but the newest groups, barrier, use, refill."""
    tiles = 7
    body = f"""
      mov.u32 %r20, 0; mov.u32 %r21, 0; mov.u32 %r22, 0; mov.u32 %r10, 0;
    PROLOGUE:
      shl.b32 %r23, %r20, 9; add.u32 %r24, %r1, %r23; cvt.u64.u32 %l4, %r23; add.u64 %l5, %l1, %l4;
      cp.async.cg.shared.global [%r24], [%l5], 16; cp.async.commit_group;
      add.u32 %r20, %r20, 1; setp.lt.u32 %p0, %r20, {stages - 1}; @%p0 bra PROLOGUE;
    MAIN:
      cp.async.wait_group {stages - 2}; bar.sync 0;
      rem.u32 %r25, %r21, {stages}; shl.b32 %r25, %r25, 9; xor.b32 %r26, %r2, 496; add.u32 %r26, %r26, %r25;
      add.u32 %r26, %r26, %r0; ld.shared.u32 %r27, [%r26]; mad.lo.u32 %r10, %r10, 3, %r27;
      setp.ge.u32 %p1, %r20, {tiles}; @%p1 bra NO_COPY;
      rem.u32 %r28, %r20, {stages}; shl.b32 %r28, %r28, 9; add.u32 %r29, %r1, %r28;
      shl.b32 %r30, %r20, 9; cvt.u64.u32 %l4, %r30; add.u64 %l5, %l1, %l4;
      cp.async.cg.shared.global [%r29], [%l5], 16;
    NO_COPY:
      cp.async.commit_group; add.u32 %r20, %r20, 1; add.u32 %r21, %r21, 1;
      setp.lt.u32 %p2, %r21, {tiles}; @%p2 bra MAIN;
      mul.wide.u32 %l6, %t, 4; add.u64 %l7, %out, %l6; st.global.u32 [%l7], %r10;"""
    got = run_words(entry(SETUP + body, PAIR, globals_=SHARED), 32, source(tiles * 128), async_mode=mode, seed=seed)
    want = np.zeros(32, np.uint32)
    for tile in range(tiles):
        want = want * np.uint32(3) + (tile * 128 + 1 + 4 * (31 - np.arange(32))).astype(np.uint32)
    assert got.tolist() == want.tolist()
