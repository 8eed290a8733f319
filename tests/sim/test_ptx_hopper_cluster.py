# SPDX-License-Identifier: Apache-2.0
"""Clusters on the simulator: ranks, barrier.cluster, remote mbarriers, multicast; setmaxnreg's accounting."""

from __future__ import annotations

import numpy as np
import pytest
from attnsmith.tools import ptxsim

from tests.sim.ptx.builder import aligned_zeros, entry, run

SHARED = ".shared .align 128 .b8 smem[4096];\n.shared .align 8 .b64 bar;"
H100 = {"device": "h100"}
SYNC = "  barrier.cluster.arrive.aligned;\n  barrier.cluster.wait.aligned;\n"
STORE = """
  mov.u32 %r20, %ctaid.y;
  mov.u32 %r21, %nctaid.x;
  mov.u32 %r22, %ctaid.x;
  mad.lo.u32 %r20, %r20, %r21, %r22;
  mad.lo.u32 %r20, %r20, 32, %t;
  mul.wide.u32 %l9, %r20, 4;
  add.s64 %l9, %out, %l9;
  st.global.u32 [%l9], %r1;
"""


def hopper(body: str, params: tuple[str, ...] = ("u64 out",), **options: str) -> str:
    return entry(body, params, globals_=SHARED, target="sm_90a", **options)


SPECIALS = {
    "cluster_ctarank": lambda x, y: x % 2 + 2 * (y % 2),
    "cluster_nctarank": lambda x, y: 4,
    "cluster_ctaid.x": lambda x, y: x % 2,
    "cluster_ctaid.y": lambda x, y: y % 2,
    "cluster_nctaid.y": lambda x, y: 2,
    "clusterid.x": lambda x, y: x // 2,
    "clusterid.y": lambda x, y: y // 2,
    "nclusterid.x": lambda x, y: 2,
    "ctaid.x": lambda x, y: x,
}


@pytest.mark.parametrize("name", SPECIALS)
def test_special_registers(name: str) -> None:
    out = np.zeros((4, 4, 32), np.uint32)
    run(hopper(f"  mov.u32 %r1, %{name};" + STORE), [out], grid=(4, 4), cluster=(2, 2, 1), **H100)
    want = [[SPECIALS[name](x, y) for x in range(4)] for y in range(4)]
    assert out[:, :, 0].tolist() == want and (out == out[:, :, :1]).all()


REMOTE_ARRIVE = (
    """
  mov.u32 %r10, bar;
  setp.ne.u32 %p1, %t, 0;
  @!%p1 mbarrier.init.shared::cta.b64 [bar], 32;
  fence.mbarrier_init.release.cluster;
"""
    + SYNC
    + """
  mov.u32 %r11, %cluster_ctarank;
  xor.b32 %r11, %r11, 1;
  mapa.shared::cluster.u32 %r12, %r10, %r11;
  mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12];
W:
  mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [bar], 0;
  @!%p2 bra W;
  mov.u32 %r1, 7;
"""
)


@pytest.mark.parametrize("schedule, seed", [("round_robin", 0), ("random", 1)])
def test_remote_arrivals(schedule: str, seed: int) -> None:
    out = np.zeros((2, 32), np.uint32)
    run(hopper(REMOTE_ARRIVE + SYNC + STORE), [out], grid=2, cluster=(2, 1, 1), schedule=schedule, seed=seed, **H100)
    assert (out == 7).all()


def test_arrival_before_the_other_cta_has_initialized() -> None:
    ptx = hopper(REMOTE_ARRIVE.replace(SYNC, "") + STORE)
    with pytest.raises(ptxsim.PtxSimError):
        run(ptx, [np.zeros((2, 32), np.uint32)], grid=2, cluster=(2, 1, 1), **H100)


def test_rank_outside_the_cluster() -> None:
    ptx = hopper(REMOTE_ARRIVE.replace("xor.b32 %r11, %r11, 1", "add.u32 %r11, %r11, 2") + STORE)
    with pytest.raises(ptxsim.MemoryAccessError, match="cluster of 2"):
        run(ptx, [np.zeros((2, 32), np.uint32)], grid=2, cluster=(2, 1, 1), **H100)


def test_a_missing_cluster_arrival_is_a_deadlock() -> None:
    body = "  mov.u32 %r1, %cluster_ctarank;\n  setp.eq.u32 %p1, %r1, 0;\n  @%p1 bra SKIP;\n"
    body += SYNC + "SKIP:\n  bar.sync 1, 64;\n"
    with pytest.raises(ptxsim.Deadlock, match=r"(?s)CTA rank 1.*barrier\.cluster"):
        run(hopper(body), [np.zeros(1, np.uint32)], grid=2, cluster=(2, 1, 1), **H100)


MULTICAST = (
    """
  setp.ne.u32 %p1, %t, 0;
  @!%p1 mbarrier.init.shared::cta.b64 [bar], 1;
  @!%p1 fence.mbarrier_init.release.cluster;
  @!%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 256;
"""
    + SYNC
    + """
  mov.u32 %r11, %cluster_ctarank;
  mov.b16 %h1, 3;
  mul.wide.u32 %l1, %r11, 128;
  add.s64 %l1, %in, %l1;
  mul.lo.u32 %r12, %r11, 128;
  mov.u32 %r13, smem;
  add.u32 %r13, %r13, %r12;
  @!%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
      [%r13], [%l1], 128, [bar], %h1;
W:
  mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], 0;
  @!%p2 bra W;
  mov.u32 %r13, smem;
  shl.b32 %r14, %t, 3;
  add.u32 %r13, %r13, %r14;
  ld.shared.u32 %r1, [%r13];
"""
)


@pytest.mark.parametrize("mode, seed", [("late", 0), ("random", 1)])
def test_multicast(mode: str, seed: int) -> None:
    """Each CTA loads one half for both."""
    source = aligned_zeros(64, np.uint32)
    source[:] = np.arange(64) + 5
    out = np.zeros((2, 32), np.uint32)
    ptx = hopper(MULTICAST + SYNC + STORE, ("u64 out", "u64 in"))
    stats = run(ptx, [out, source], grid=2, cluster=(2, 1, 1), async_mode=mode, seed=seed, **H100)
    assert (out == source[::2]).all()
    assert stats.tma_bytes_read == 256 and stats.ctas == 2


def test_clusters_need_hopper_and_divide_the_grid() -> None:
    ptx = hopper("  mov.u32 %r1, 0;" + STORE)
    with pytest.raises(ptxsim.LaunchError, match="divide the grid"):
        run(ptx, [np.zeros(1, np.uint32)], grid=3, cluster=(2, 1, 1), **H100)


def setmaxnreg(producer: str, consumer: str, threads: int = 384, **options: str) -> str:
    body = f"""
  setp.ge.u32 %p1, %t, 128;
  @%p1 bra CONSUMER;
  {producer}
  bra DONE;
CONSUMER:
  {consumer}
DONE:
  mov.u32 %r1, 1;
"""
    options.setdefault("directives", f".maxntid {threads}, 1, 1 .minnctapersm 1")
    return hopper(body, **options)


def test_registers_move_from_producers_to_consumers() -> None:
    """168 at entry: 24 + 240 + 240 = 3 * 168."""
    ptx = setmaxnreg("setmaxnreg.dec.sync.aligned.u32 24;", "setmaxnreg.inc.sync.aligned.u32 240;")
    run(ptx, [np.zeros(1, np.uint32)], block=384, **H100)


def test_more_registers_than_the_pool_has() -> None:
    ptx = setmaxnreg("setmaxnreg.dec.sync.aligned.u32 40;", "setmaxnreg.inc.sync.aligned.u32 240;")
    with pytest.raises(ptxsim.Deadlock, match="registers; the CTA's pool has"):
        run(ptx, [np.zeros(1, np.uint32)], block=384, **H100)


def test_dec_cannot_increase() -> None:
    with pytest.raises(ptxsim.LaunchError, match=r"setmaxnreg\.dec to 240"):
        run(setmaxnreg("setmaxnreg.dec.sync.aligned.u32 240;", ""), [np.zeros(1, np.uint32)], block=384, **H100)


REMOTE_ACCESS = (
    """
  mov.u32 %r11, %cluster_ctarank;
  xor.b32 %r12, %r11, 1;
  mov.u32 %r13, smem;
  shl.b32 %r14, %t, 2;
  add.u32 %r13, %r13, %r14;
  mad.lo.u32 %r15, %r11, 100, %t;
"""
    + SYNC
    + """
  mapa.shared::cluster.u32 %r16, %r13, %r12;
  st.shared::cluster.u32 [%r16], %r15;
"""
    + SYNC
)
READS = {
    "own": "  ld.shared.u32 %r1, [%r13];\n  xor.b32 %r12, %r12, 0;\n",
    "remote": "  ld.shared::cluster.u32 %r1, [%r16];\n",
    "generic": "  cvt.u64.u32 %l1, %r16;\n  cvta.shared.u64 %l1, %l1;\n  ld.u32 %r1, [%l1];\n",
}


@pytest.mark.parametrize("read", READS)
def test_distributed_shared_memory(read: str) -> None:
    """Each CTA writes into the other's shared memory."""
    out = np.zeros((2, 32), np.uint32)
    run(hopper(REMOTE_ACCESS + READS[read] + SYNC + STORE), [out], grid=2, cluster=(2, 1, 1), **H100)
    lanes = np.arange(32)
    want = [lanes + 100, lanes] if read == "own" else [lanes, lanes + 100]
    assert (out == np.stack(want)).all()


def test_reading_the_shared_memory_of_a_cta_that_has_exited() -> None:
    """Without the last barrier.cluster one CTA may be gone."""
    late = "  mov.u32 %r30, 0;\nSPIN:\n  add.u32 %r30, %r30, 1;\n  setp.lt.u32 %p5, %r30, 5000;\n  @%p5 bra SPIN;\n"
    body = REMOTE_ACCESS + "  setp.eq.u32 %p4, %r11, 0;\n  @%p4 bra END;\n" + late + READS["remote"] + STORE + "END:\n"
    with pytest.raises(ptxsim.RaceError, match="has exited"):
        run(hopper(body), [np.zeros((2, 32), np.uint32)], grid=2, cluster=(2, 1, 1), **H100)
