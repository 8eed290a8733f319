# SPDX-License-Identifier: Apache-2.0
"""atom and red of the simulator: every operation and type, global and shared, contended and not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from attnsmith.tools import ptxsim

from tests.sim.ptx.builder import aligned_zeros, entry, run, run_words

PAIR = ["u64 out", "u64 cell"]
MASK32, MASK64 = (1 << 32) - 1, (1 << 64) - 1


def signed(x: int, width: int) -> int:
    return x - (1 << width) if x >> (width - 1) else x


OPERATIONS: dict[str, Callable[[int, int, int], int]] = {
    "add.u32": lambda old, x, w: old + x,
    "add.s32": lambda old, x, w: old + x,
    "add.u64": lambda old, x, w: old + x,
    "and.b32": lambda old, x, w: old & x,
    "or.b32": lambda old, x, w: old | x,
    "xor.b32": lambda old, x, w: old ^ x,
    "and.b64": lambda old, x, w: old & x,
    "or.b64": lambda old, x, w: old | x,
    "xor.b64": lambda old, x, w: old ^ x,
    "min.u32": lambda old, x, w: min(old, x),
    "max.u32": lambda old, x, w: max(old, x),
    "min.s32": lambda old, x, w: min(old, x, key=lambda v: signed(v, w)),
    "max.s32": lambda old, x, w: max(old, x, key=lambda v: signed(v, w)),
    "min.u64": lambda old, x, w: min(old, x),
    "max.u64": lambda old, x, w: max(old, x),
    "min.s64": lambda old, x, w: min(old, x, key=lambda v: signed(v, w)),
    "max.s64": lambda old, x, w: max(old, x, key=lambda v: signed(v, w)),
    "exch.b32": lambda old, x, w: x,
    "exch.b64": lambda old, x, w: x,
    "inc.u32": lambda old, x, w: 0 if old >= x else old + 1,
    "dec.u32": lambda old, x, w: x if old == 0 or old > x else old - 1,
}
VALUES = {32: [0, 1, 5, 0x7FFFFFFF, 0x80000000, MASK32, 0x55AA55AA], 64: [0, 1, 1 << 63, MASK64, 0x55AA55AA55AA55AA]}


@pytest.mark.parametrize("space", ["global", "shared", "generic"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_atom_returns_the_old_value_and_stores_the_new(operation: str, space: str) -> None:
    width = int(operation[-2:])
    reg, dtype = ("r", np.uint32) if width == 32 else ("l", np.uint64)
    size = width // 8
    cases = [(old, x) for old in VALUES[width] for x in VALUES[width]]
    qualifier = {"global": ".global", "shared": ".shared", "generic": ""}[space]
    body = f"mul.wide.u32 %l0, %t, {2 * size}; add.u64 %l1, %cell, %l0; add.u64 %l2, %out, %l0;"
    body += f"ld.global.b{width} %{reg}10, [%l1]; ld.global.b{width} %{reg}11, [%l1+{size}];"
    if space == "shared":
        body += f"mul.lo.u32 %r20, %t, {size}; mov.u32 %r21, cells; add.u32 %r20, %r20, %r21;"
        body += f"st.shared.b{width} [%r20], %{reg}10;"
        address, load = "%r20", f"ld.shared.b{width}"
    else:
        address, load = "%l1", f"ld.global.b{width}"
    body += f"""
      atom{qualifier}.{operation} %{reg}12, [{address}], %{reg}11;
      {load} %{reg}13, [{address}]; st.global.b{width} [%l2], %{reg}12; st.global.b{width} [%l2+{size}], %{reg}13;"""
    ptx = entry(body, PAIR, globals_=".shared .align 8 .b8 cells[1024];")
    got = run_words(ptx, 2 * len(cases), np.array(cases, dtype).reshape(-1), dtype=dtype, block=len(cases))
    mask = (1 << width) - 1
    want = [v for old, x in cases for v in (old, OPERATIONS[operation](old, x, width) & mask)]
    assert got.tolist() == want


@pytest.mark.parametrize("width", [32, 64])
def test_compare_and_swap(width: int) -> None:
    reg, size = ("r", 4) if width == 32 else ("l", 8)
    body = f"""
      atom.global.cas.b{width} %{reg}10, [%out], 3, 9; atom.global.cas.b{width} %{reg}11, [%out+{size}], 3, 9;
      st.global.b{width} [%out+{2 * size}], %{reg}10; st.global.b{width} [%out+{3 * size}], %{reg}11;"""
    out = np.array([3, 4, 0, 0], np.uint32 if width == 32 else np.uint64)
    run(entry(body), [out], block=1)
    assert out.tolist() == [9, 4, 3, 4]


@pytest.mark.parametrize("instruction", ["atom", "red"])
@pytest.mark.parametrize("scope", ["", ".relaxed.cta", ".relaxed.gpu", ".acq_rel.gpu", ".release.sys"])
def test_every_thread_of_every_cta_counts_once(instruction: str, scope: str) -> None:
    if instruction == "red" and "acq" in scope:
        pytest.skip("red has no acquire")
    destination = "%r0, " if instruction == "atom" else ""
    out = np.zeros(1, np.uint32)
    run(entry(f"{instruction}{scope}.global.add.u32 {destination}[%out], 1;"), [out], grid=37, block=96, num_threads=2)
    assert out[0] == 37 * 96


def test_atomic_tickets_are_unique() -> None:
    body = """
      atom.shared.add.u32 %r0, [counter], 1; mul.wide.u32 %l0, %r0, 4; add.u64 %l1, %out, %l0;
      st.global.u32 [%l1], %t;"""
    init = "setp.eq.u32 %p0, %t, 0; @%p0 st.shared.u32 [counter], 0; bar.sync 0;"
    for schedule in ("round_robin", "random"):
        got = run_words(entry(init + body, globals_=".shared .u32 counter;"), 128, block=128, schedule=schedule, seed=3)
        assert sorted(got.tolist()) == list(range(128))


def test_red_f32_and_f64_add() -> None:
    body = """
      cvt.rn.f32.u32 %f0, %t; red.global.add.f32 [%out], %f0;
      cvt.rn.f64.u32 %d0, %t; red.global.add.f64 [%out+8], %d0;
      atom.global.add.f32 %f1, [%out+4], 0f3F800000;"""
    out = np.zeros(4, np.uint32)
    run(entry(body), [out], grid=2, block=64)
    assert out.view(np.float32)[:2].tolist() == [2 * sum(range(64)), 128]
    assert out[2:].view(np.float64)[0] == 2 * sum(range(64))


def test_packed_half_adds() -> None:
    body = """
      atom.global.add.noftz.f16x2 %r0, [%out], %r1; red.global.add.noftz.bf16x2 [%out+4], %r2;
      atom.global.add.noftz.f16 %h0, [%out+8], %h1;"""
    setup = "mov.b32 %r1, 0x40003C00; mov.b32 %r2, 0x40003F80; mov.b16 %h1, 0x3C00;"  # (1, 2), (1, 2), 1
    out = np.zeros(3, np.uint32)
    ptx = entry(setup + body, target="sm_90")
    run(ptx, [out], block=32, device="h100")
    assert out[:1].view(np.float16).tolist() == [32, 64]
    assert out[1:2].view(np.uint16).tolist() == [0x4200, 0x4280]  # bf16 32 and 64
    assert out[2:].view(np.float16)[0] == 32


def test_vector_reductions() -> None:
    setup = "mov.f32 %f0, 0f3F800000; mov.f32 %f1, 0f40000000; mov.f32 %f2, 0f40400000; mov.f32 %f3, 0f40800000;"
    body = "red.global.v4.f32.add [%out], {%f0, %f1, %f2, %f3}; red.global.v2.f32.add [%out+16], {%f3, %f0};"
    out = aligned_zeros(6, np.float32)
    run(entry(setup + body, target="sm_90"), [out], block=32, device="h100")
    assert out.tolist() == [32, 64, 96, 128, 128, 32]


def test_atomics_are_bounds_checked() -> None:
    with pytest.raises(ptxsim.MemoryAccessError):
        run(entry("atom.global.add.u32 %r0, [%out+4], 1;"), [np.zeros(1, np.uint32)], block=1)


def test_shared_atomic_on_uninitialized_memory() -> None:
    with pytest.raises(ptxsim.UninitializedRead):
        run(
            entry("atom.shared.add.u32 %r0, [cell], 1;", globals_=".shared .u32 cell;"),
            [np.zeros(1, np.uint32)],
            block=1,
        )
