# SPDX-License-Identifier: Apache-2.0
"""mbarriers, bulk copies and their fences on the simulator: phases, late landing, and what is reported when one of
the steps is left out."""

from __future__ import annotations

import numpy as np
import pytest
from attnsmith.tools import ptxsim

from tests.sim.ptx.builder import aligned_zeros, entry, line_of, run, run_words

SHARED = ".shared .align 128 .b8 smem[8192];\n.shared .align 8 .b64 bar;\n.shared .align 8 .b64 other;"
H100 = {"device": "h100"}
MODES = [("late", 0), ("random", 1), ("random", 2)]


def hopper(body: str, params: tuple[str, ...] = ("u64 out",), **options: str) -> str:
    return entry(body, params, globals_=SHARED, target="sm_90a", **options)


INIT = """
  mov.u32 %r10, bar;
  setp.ne.u32 %p1, %t, 0;
  @!%p1 mbarrier.init.shared::cta.b64 [bar], {count};
  @!%p1 fence.mbarrier_init.release.cluster;
  bar.sync 0;
"""
STORE_T = """
  mul.wide.u32 %l1, %t, 4;
  add.s64 %l1, %out, %l1;
  st.global.u32 [%l1], %r1;
"""


def wait(parity: int | str, label: str = "W") -> str:
    return f"""
{label}:
  mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], {parity};
  @!%p2 bra {label};
"""


def test_phases_alternate_and_a_wait_sees_each_end() -> None:
    """Three phases of 64 arrivals; test_wait of the wrong parity is false before and true after."""
    body = INIT.format(count=64) + "  mov.u32 %r1, 0;\n"
    for phase in range(3):
        body += f"""
  mbarrier.arrive.shared::cta.b64 %l2, [bar];
  {wait(phase % 2, f"W{phase}")}
  mbarrier.test_wait.parity.shared::cta.b64 %p3, [bar], {phase % 2};
  mbarrier.test_wait.shared::cta.b64 %p4, [bar], %l2;
  selp.u32 %r2, 1, 0, %p3;
  selp.u32 %r3, 2, 0, %p4;
  add.u32 %r1, %r1, %r2;
  add.u32 %r1, %r1, %r3;
  bar.sync 0;
"""
    out = run_words(hopper(body + STORE_T), 64, block=64, **H100)
    assert out.tolist() == [9] * 64


def test_state_form_is_false_before_the_last_arrival() -> None:
    body = (
        INIT.format(count=2)
        + """
  @%p1 bra END;
  mbarrier.arrive.shared::cta.b64 %l2, [bar];
  mbarrier.test_wait.shared::cta.b64 %p3, [bar], %l2;
  mbarrier.arrive.shared::cta.b64 _, [bar], 1;
  mbarrier.test_wait.shared::cta.b64 %p4, [bar], %l2;
  selp.u32 %r1, 1, 0, %p3;
  selp.u32 %r2, 2, 0, %p4;
  add.u32 %r1, %r1, %r2;
  st.global.u32 [%out], %r1;
END:
"""
    )
    assert run_words(hopper(body), 1, **H100).tolist() == [2]


def test_generic_addresses_and_inval() -> None:
    body = (
        INIT.format(count=1)
        + """
  @%p1 bra END;
  cvta.shared.u64 %l3, 0;
  cvt.u64.u32 %l4, %r10;
  add.s64 %l3, %l3, %l4;
  mbarrier.arrive.b64 %l2, [%l3];
  mbarrier.test_wait.parity.b64 %p3, [%l3], 0;
  mbarrier.inval.shared::cta.b64 [bar];
  st.shared.u64 [bar], %l2;
  selp.u32 %r1, 1, 0, %p3;
  st.global.u32 [%out], %r1;
END:
"""
    )
    assert run_words(hopper(body), 1, **H100).tolist() == [1]


def test_too_many_arrivals() -> None:
    ptx = hopper(INIT.format(count=31) + "  mbarrier.arrive.shared::cta.b64 _, [bar], 20;")
    with pytest.raises(ptxsim.MbarrierError, match=r"more arrivals .* than its count"):
        run(ptx, [np.zeros(1, np.uint32)], **H100)


def test_an_arrival_at_nothing_is_an_error() -> None:
    with pytest.raises(ptxsim.MbarrierError, match="no mbarrier is initialized"):
        run(hopper("  mbarrier.arrive.shared::cta.b64 _, [bar];"), [np.zeros(1, np.uint32)], **H100)


@pytest.mark.parametrize("access", ["ld.shared.u64 %l2, [bar];", "st.shared.u64 [bar], %l2;"])
def test_other_accesses_to_the_object_are_errors(access: str) -> None:
    with pytest.raises(ptxsim.MbarrierError, match="belongs to an mbarrier"):
        run(hopper(INIT.format(count=1) + "  mov.u64 %l2, 0;\n  @!%p1 " + access), [np.zeros(1, np.uint32)], **H100)


def test_deadlock_report_names_the_mbarrier() -> None:
    """Wrong parity: the second phase never ends."""
    ptx = hopper(INIT.format(count=32) + "  mbarrier.arrive.shared::cta.b64 _, [bar];\n" + wait(1))
    with pytest.raises(ptxsim.Deadlock) as caught:
        run(ptx, [np.zeros(1, np.uint32)], **H100)
    message = str(caught.value)
    assert "phase 1 (parity 1)" in message and "32 of 32 arrivals pending" in message and "tx-count 0" in message
    assert caught.value.line == line_of(ptx, "try_wait")


BULK_LOAD = """
  mul.lo.u32 %r11, %t, 4;
  @%p1 bra LOADED;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {expect};
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [smem], [%in], 512, [bar];
LOADED:
"""
READ = """
  mov.u32 %r12, smem;
  add.u32 %r12, %r12, %r11;
  ld.shared.u32 %r1, [%r12];
"""
IO = ("u64 out", "u64 in")


def loaded(body: str, **launch: object) -> np.ndarray:
    source = aligned_zeros(128, np.uint32)
    source[:] = np.arange(128) * 7
    out = np.zeros(128, np.uint32)
    run(hopper(body, IO), [out, ptxsim.ReadOnly(source)], block=128, **H100, **launch)
    assert out.tolist() == source.tolist()
    return out


@pytest.mark.parametrize("mode, seed", MODES)
@pytest.mark.parametrize("schedule", ["round_robin", "random"])
def test_bulk_load(mode: str, seed: int, schedule: str) -> None:
    body = INIT.format(count=1) + BULK_LOAD.format(expect=512) + wait(0) + READ + STORE_T
    loaded(body, async_mode=mode, seed=seed, schedule=schedule)


@pytest.mark.parametrize("mode, seed", MODES)
def test_bulk_load_without_wait_is_reported(mode: str, seed: int) -> None:
    body = INIT.format(count=1) + BULK_LOAD.format(expect=512) + READ + STORE_T
    with pytest.raises((ptxsim.UninitializedRead, ptxsim.RaceError)):
        loaded(body, async_mode=mode, seed=seed)


@pytest.mark.parametrize("expect, says", [(496, "tx-count -16"), (528, "tx-count 16")])
def test_wrong_byte_count_is_explained(expect: int, says: str) -> None:
    body = INIT.format(count=1) + BULK_LOAD.format(expect=expect) + wait(0) + READ + STORE_T
    with pytest.raises(ptxsim.Deadlock, match=says):
        loaded(body)


@pytest.mark.parametrize("fence", ["fence.mbarrier_init.release.cluster;", "fence.proxy.async.shared::cta;", ""])
def test_the_copy_must_see_the_initialized_mbarrier(fence: str) -> None:
    """mbarrier.init is a write of the generic proxy, the copy completes through the async proxy."""
    body = INIT.format(count=1).replace("fence.mbarrier_init.release.cluster;", fence or "mov.u32 %r1, 0;")
    body += BULK_LOAD.format(expect=512) + wait(0) + READ + STORE_T
    if fence:
        loaded(body)
        return
    with pytest.raises(ptxsim.ProxyError, match=r"fence\.mbarrier_init or fence\.proxy\.async is missing"):
        loaded(body)


def test_a_wait_knows_the_arrivals_of_its_own_phase_only() -> None:
    """Warp 0 waits for phase 0, to which warp 1 arrives. That warp 1 arrives again, after it has read, does not order
    warp 0's store after the read."""
    body = (
        INIT.format(count=2)
        + """
  mov.u32 %r12, smem;
  shr.u32 %r11, %t, 5;
  setp.ne.u32 %p3, %r11, 1;
  setp.ne.u32 %p4, %r11, 0;
  @%p3 bra FIRST;
  setp.ne.u32 %p5, %t, 32;
  st.shared.u32 [smem], 1;
  @!%p5 mbarrier.arrive.shared::cta.b64 _, [bar], 2;
  ld.shared.u32 %r1, [smem];
  AGAIN
FIRST:
  @%p4 bra END;
"""
        + wait(0)
        + """
  st.shared.u32 [smem], 2;
END:
"""
    )
    for again in ("", "@!%p5 mbarrier.arrive.shared::cta.b64 _, [bar];"):
        with pytest.raises(ptxsim.RaceError, match="warp 0 writes it, warp 1 reads it"):
            run(hopper(body.replace("AGAIN", again), IO), [np.zeros(1, np.uint32)] * 2, block=64, **H100)


def test_polling_with_test_wait_ends() -> None:
    body = INIT.format(count=1) + BULK_LOAD.format(expect=512) + wait(0).replace("try_wait", "test_wait")
    loaded(body + READ + STORE_T)


def test_overwriting_what_others_read_is_a_race() -> None:
    """The second load is issued without knowing that the readers of the first are done."""
    again = BULK_LOAD.format(expect=512).replace("LOADED", "AGAIN")
    body = INIT.format(count=1) + BULK_LOAD.format(expect=512) + wait(0) + READ + again + wait(1, "V") + STORE_T
    with pytest.raises((ptxsim.RaceError, ptxsim.UninitializedRead)):
        loaded(body)


BULK_STORE = """
  mov.u32 %r12, smem;
  mul.lo.u32 %r11, %t, 4;
  add.u32 %r12, %r12, %r11;
  st.shared.u32 [%r12], %t;
  {fence}
  bar.sync 0;
  setp.ne.u32 %p1, %t, 0;
  @%p1 bra END;
  cp.async.bulk.global.shared::cta.bulk_group [%out], [smem], 512;
  {commit}
  {wait}
  {after}
END:
"""
GOOD = {
    "fence": "fence.proxy.async.shared::cta;",
    "commit": "cp.async.bulk.commit_group;",
    "wait": "cp.async.bulk.wait_group.read 0;",
    "after": "",
}


def stored(**changes: str) -> list[int]:
    out = aligned_zeros(128, np.uint32)
    run(hopper(BULK_STORE.format(**{**GOOD, **changes})), [out], block=128, **H100)
    return out.tolist()


@pytest.mark.parametrize("wait_for", ["cp.async.bulk.wait_group.read 0;", "cp.async.bulk.wait_group 0;"])
def test_bulk_store(wait_for: str) -> None:
    assert stored(wait=wait_for) == list(range(128))


def test_bulk_store_fence_by_the_issuing_thread() -> None:
    """The proxy fence may stand anywhere on the path from the write to the copy."""
    body = BULK_STORE.format(**{**GOOD, "fence": ""})
    body = body.replace("@%p1 bra END;", "@%p1 bra END;\n  fence.proxy.async;")
    out = aligned_zeros(128, np.uint32)
    run(hopper(body), [out], block=128, **H100)
    assert out.tolist() == list(range(128))


def test_missing_proxy_fence() -> None:
    with pytest.raises(ptxsim.ProxyError, match=r"fence\.proxy\.async is missing"):
        stored(fence="")


@pytest.mark.parametrize("missing", ["wait", "commit"])
def test_store_in_flight_at_exit(missing: str) -> None:
    with pytest.raises(ptxsim.RaceError, match="exits while"):
        stored(**{missing: ""})


def test_source_overwritten_before_the_wait() -> None:
    with pytest.raises(ptxsim.RaceError):
        stored(commit="cp.async.bulk.commit_group;\n  st.shared.u32 [%r12], 5;")


def test_bulk_reduce_add() -> None:
    out = aligned_zeros(128, np.uint32)
    out[:] = 1000
    body = BULK_STORE.format(**GOOD).replace("cp.async.bulk.global", "cp.reduce.async.bulk.global")
    body = body.replace(".bulk_group [", ".bulk_group.add.u32 [")
    run(hopper(body), [out], block=128, grid=3, **H100)
    assert out.tolist() == [1000 + 3 * k for k in range(128)]


def test_cp_async_arrival() -> None:
    body = (
        INIT.format(count=32)
        + """
  mul.wide.u32 %l1, %t, 16;
  add.s64 %l1, %in, %l1;
  mov.u32 %r12, smem;
  shl.b32 %r11, %t, 4;
  add.u32 %r13, %r12, %r11;
  cp.async.cg.shared.global [%r13], [%l1], 16;
  cp.async.mbarrier.arrive.noinc.shared::cta.b64 [bar];
"""
        + wait(0)
        + """
  xor.b32 %r11, %r11, 16;
  add.u32 %r13, %r12, %r11;
  ld.shared.u32 %r1, [%r13];
"""
        + STORE_T
    )
    source = aligned_zeros(128, np.uint32)
    source[:] = np.arange(128)
    out = np.zeros(32, np.uint32)
    run(hopper(body, IO), [out, source], **H100)
    assert out.tolist() == [(k ^ 1) * 4 for k in range(32)]


def test_statistics() -> None:
    source = aligned_zeros(128, np.uint32)
    body = INIT.format(count=1) + BULK_LOAD.format(expect=512) + wait(0)
    stats = run(hopper(body, IO), [np.zeros(1, np.uint32), source], block=128, **H100)
    assert stats.tma_bytes_read == 512 and stats.by_class["bulk"] == 1
