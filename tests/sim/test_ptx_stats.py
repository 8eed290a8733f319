# SPDX-License-Identifier: Apache-2.0
"""Statistics of the simulator: exact counts for patterns whose answer is known on paper."""

from __future__ import annotations

import json

import numpy as np
import pytest
from attnsmith.tools import ptxsim

from tests.sim.ptx.builder import aligned_zeros, entry, run

SHARED = ".shared .align 128 .b8 smem[16384];"
FILL = """
  mov.u32 %r0, smem; mov.u32 %r1, 0;
FILL: shl.b32 %r2, %t, 2; shl.b32 %r3, %r1, 7; add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r0; st.shared.u32 [%r2], %t;
  add.u32 %r1, %r1, 1; setp.lt.u32 %p0, %r1, 128; @%p0 bra FILL; bar.sync 0;"""


def stats_of(body: str, out_words: int = 1, **launch: object) -> ptxsim.Stats:
    return run(entry(body, globals_=SHARED), [aligned_zeros(max(out_words, 64), np.uint32)], **launch)


# (stride between lanes in bytes, access, wavefronts, conflicts); a bank is 4 bytes wide, 32 banks.
LOADS = [
    pytest.param(4, "ld.shared.u32 %r10, [%r9];", 1, 0, id="32 bit stride 1"),
    pytest.param(0, "ld.shared.u32 %r10, [%r9];", 1, 0, id="32 bit broadcast"),
    pytest.param(8, "ld.shared.u32 %r10, [%r9];", 2, 1, id="32 bit stride 2"),
    pytest.param(12, "ld.shared.u32 %r10, [%r9];", 1, 0, id="32 bit stride 3"),
    pytest.param(16, "ld.shared.u32 %r10, [%r9];", 4, 3, id="32 bit stride 4"),
    pytest.param(128, "ld.shared.u32 %r10, [%r9];", 32, 31, id="32 bit stride 32"),
    pytest.param(132, "ld.shared.u32 %r10, [%r9];", 1, 0, id="32 bit stride 33"),
    pytest.param(2, "ld.shared.u16 %h10, [%r9];", 1, 0, id="16 bit stride 1"),
    pytest.param(1, "ld.shared.u8 %h10, [%r9];", 1, 0, id="8 bit stride 1"),
    pytest.param(8, "ld.shared.v2.u32 {%r10, %r11}, [%r9];", 2, 0, id="64 bit stride 1"),
    pytest.param(16, "ld.shared.v2.u32 {%r10, %r11}, [%r9];", 4, 2, id="64 bit stride 2"),
    pytest.param(16, "ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r9];", 4, 0, id="128 bit stride 1"),
    pytest.param(128, "ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r9];", 32, 28, id="128 bit stride 8"),
    pytest.param(144, "ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r9];", 4, 0, id="128 bit stride 9"),
    pytest.param(0, "ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r9];", 1, 0, id="128 bit broadcast"),
]


@pytest.mark.parametrize("stride, access, wavefronts, conflicts", LOADS)
def test_shared_load_conflicts(stride: int, access: str, wavefronts: int, conflicts: int) -> None:
    stats = stats_of(f"{FILL} mul.lo.u32 %r9, %t, {stride}; add.u32 %r9, %r9, %r0; {access}")
    if "broadcast" in access or (stride == 0 and "v4" in access):
        wavefronts = stats.shared_wavefronts["ld"]  # how few passes a wide broadcast takes is not documented
    assert stats.shared_wavefronts["ld"] == wavefronts
    assert stats.shared_conflicts.get("ld", 0) == conflicts
    assert stats.by_class["ld_shared"] == 1


@pytest.mark.parametrize(
    "stride, wavefronts, conflicts", [(4, 1, 0), (8, 2, 1), (128, 32, 31)], ids=["stride 1", "stride 2", "stride 32"]
)
def test_shared_store_conflicts(stride: int, wavefronts: int, conflicts: int) -> None:
    stats = stats_of(
        f"mov.u32 %r0, smem; mul.lo.u32 %r9, %t, {stride}; add.u32 %r9, %r9, %r0; st.shared.u32 [%r9], %t;"
    )
    assert stats.shared_wavefronts["st"] == wavefronts
    assert stats.shared_conflicts.get("st", 0) == conflicts
    assert stats.by_class["st_shared"] == 1


def test_sixteen_byte_store_conflicts() -> None:
    for stride, wavefronts, conflicts in ((16, 4, 0), (128, 32, 28)):
        body = f"mov.u32 %r0, smem; mad.lo.u32 %r9, %t, {stride}, %r0; st.shared.v4.u32 [%r9], {{%t, %t, %t, %t}};"
        stats = stats_of(body)
        assert (stats.shared_wavefronts["st"], stats.shared_conflicts.get("st", 0)) == (wavefronts, conflicts)


# Row r of a 128-byte-pitch tile; the 16-byte chunk that the row's address selects.
LDMATRIX = [
    pytest.param("mov.u32 %r8, 0;", 32, 28, id="unswizzled column"),
    pytest.param("and.b32 %r8, %t, 7; shl.b32 %r8, %r8, 4;", 4, 0, id="xor swizzle"),
    pytest.param("and.b32 %r8, %t, 3; shl.b32 %r8, %r8, 4;", 8, 4, id="two-way swizzle"),
]


@pytest.mark.parametrize("chunk, wavefronts, conflicts", LDMATRIX)
def test_ldmatrix_conflicts(chunk: str, wavefronts: int, conflicts: int) -> None:
    body = f"""{FILL} {chunk} shl.b32 %r9, %t, 7; add.u32 %r9, %r9, %r8; add.u32 %r9, %r9, %r0;
      ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r10, %r11, %r12, %r13}}, [%r9];"""
    stats = stats_of(body)
    assert stats.shared_wavefronts["ldmatrix"] == wavefronts
    assert stats.shared_conflicts.get("ldmatrix", 0) == conflicts
    assert stats.by_class["ldmatrix"] == 1


@pytest.mark.parametrize("count, wavefronts", [(1, 1), (2, 2), (4, 4)])
def test_ldmatrix_takes_one_pass_per_matrix(count: int, wavefronts: int) -> None:
    registers = ", ".join(f"%r{10 + i}" for i in range(count))
    body = f"""{FILL} shl.b32 %r9, %t, 4; add.u32 %r9, %r9, %r0;
      ldmatrix.sync.aligned.m8n8.x{count}.trans.shared.b16 {{{registers}}}, [%r9];"""
    assert stats_of(body).shared_wavefronts["ldmatrix"] == wavefronts


GLOBAL = [
    pytest.param(4, 0, 128, 4, id="coalesced"),
    pytest.param(4, 4, 128, 5, id="coalesced, off by one word"),
    pytest.param(8, 0, 128, 8, id="stride 2"),
    pytest.param(32, 0, 128, 32, id="one sector each"),
    pytest.param(0, 0, 128, 1, id="broadcast"),
]


@pytest.mark.parametrize("stride, offset, requested, sectors", GLOBAL)
def test_global_bytes_and_sectors(stride: int, offset: int, requested: int, sectors: int) -> None:
    address = f"mul.wide.u32 %l0, %t, {stride}; add.u64 %l1, %in, %l0; add.u64 %l1, %l1, {offset};"
    load = entry(f"{address} ld.global.u32 %r10, [%l1];", ["u64 out", "u64 in"])
    stats = run(load, [aligned_zeros(1, np.uint32), aligned_zeros(512, np.uint32)])
    assert (stats.global_bytes_read, stats.global_sectors_read) == (requested, sectors)
    assert (stats.global_bytes_written, stats.global_sectors_written) == (0, 0)
    store = entry(f"{address.replace('%in', '%out')} st.global.u32 [%l1], %t;")
    stats = run(store, [aligned_zeros(512, np.uint32)])
    assert (stats.global_bytes_written, stats.global_sectors_written) == (requested, sectors)
    assert (stats.global_bytes_read, stats.global_sectors_read) == (0, 0)


def test_only_active_lanes_are_counted() -> None:
    body = """
      setp.lt.u32 %p0, %t, 5; mul.wide.u32 %l0, %t, 16; add.u64 %l1, %out, %l0;
      @%p0 ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%l1]; @!%p0 bra DONE; st.global.u32 [%l1], %t;
    DONE:"""
    stats = stats_of(body, 64)
    assert (stats.global_bytes_read, stats.global_sectors_read) == (80, 3)
    assert (stats.global_bytes_written, stats.global_sectors_written) == (20, 3)
    assert stats.by_class["ld_global"] == 1
    assert stats.by_class["st_global"] == 1


def test_cp_async_counts_the_bytes_that_it_reads() -> None:
    body = """
      mov.u32 %r0, smem; mad.lo.u32 %r1, %t, 16, %r0; mul.wide.u32 %l0, %t, 16; add.u64 %l1, %in, %l0;
      setp.lt.u32 %p0, %t, 20; selp.u32 %r2, 16, 0, %p0;
      cp.async.cg.shared.global [%r1], [%l1], 16, %r2; cp.async.wait_all;"""
    stats = run(
        entry(body, ["u64 out", "u64 in"], globals_=SHARED), [aligned_zeros(1, np.uint32), aligned_zeros(80, np.uint32)]
    )
    assert (stats.global_bytes_read, stats.global_sectors_read) == (320, 10)
    assert stats.shared_wavefronts["cp_async"] == 4
    assert stats.shared_conflicts.get("cp_async", 0) == 0
    assert stats.by_class["cp_async"] >= 1


def test_instruction_counts_of_a_loop() -> None:
    ptx = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k() {
  .reg .b32 %r<4>; .reg .f32 %f<4>; .reg .pred %p;
  mov.u32 %r0, 0;
  mov.f32 %f0, 0f3F800000;
LOOP:
  fma.rn.f32 %f0, %f0, %f0, %f0;
  ex2.approx.f32 %f1, %f0;
  add.u32 %r0, %r0, 1;
  setp.lt.u32 %p, %r0, 10;
  @%p bra LOOP;
  bar.sync 0;
  ret;
}"""
    stats = run(ptx, [], grid=3, block=48)
    warps = 3 * 2
    assert stats.ctas == 3
    assert stats.warp_instructions == warps * (2 + 10 * 5 + 2)
    assert stats.thread_instructions == 3 * 48 * (2 + 10 * 5 - 1 + 2)  # the last bra is predicated off
    assert stats.mufu_ops == 3 * 48 * 10
    assert stats.by_class["mufu"] == warps * 10
    assert stats.by_class["fp"] == warps * 10
    assert stats.by_class["barrier"] == warps
    assert stats.by_class["branch"] >= warps * 10
    assert stats.divergent_branches == 0
    assert sum(stats.by_class.values()) == stats.warp_instructions


def test_tensor_flops() -> None:
    body = """
      mov.b32 %r0, 0; mov.f32 %f0, 0f00000000;
      mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r0, %r0, %r0, %r0}, {%r0, %r0},
        {%f0, %f0, %f0, %f0};
      mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f1, %f2, %f3, %f4}, {%r0, %r0, %r0, %r0}, {%r0, %r0},
        {%f0, %f0, %f0, %f0};"""
    stats = stats_of(body, grid=2, block=64)
    assert stats.tensor_flops == 4 * (2 * 16 * 8 * 16 + 2 * 16 * 8 * 8)
    assert stats.by_class["mma"] == 8


def test_barrier_waits() -> None:
    stats = stats_of("bar.sync 0; bar.sync 0;", block=128)
    assert stats.by_class["barrier"] == 8
    assert 0 < stats.barrier_waits <= 8


def test_counts_do_not_depend_on_host_threads_or_schedule() -> None:
    body = f"{FILL} mad.lo.u32 %r9, %t, 8, %r0; ld.shared.u32 %r10, [%r9]; st.global.u32 [%out], 1;"
    values = []
    for launch in ({"num_threads": 1}, {"num_threads": 2}, {"schedule": "random", "seed": 5}):
        facts = stats_of(body, grid=5, block=32, **launch).to_dict()
        facts.pop("seconds")
        values.append(facts)
    assert values[0] == values[1] == values[2]


def test_stats_to_json_table_and_sum() -> None:
    stats = stats_of("ex2.approx.f32 %f0, %f1; st.global.u32 [%out], 1;")
    restored = ptxsim.Stats.from_dict(json.loads(json.dumps(stats.to_dict())))
    assert restored == stats
    assert "warp_instructions" in stats.table()
    double = stats + stats
    assert double.warp_instructions == 2 * stats.warp_instructions
    assert double.by_class["mufu"] == 2 * stats.by_class["mufu"]


def test_stats_can_be_switched_off() -> None:
    assert stats_of("st.global.u32 [%out], 1;", collect_stats=False).warp_instructions == 0
