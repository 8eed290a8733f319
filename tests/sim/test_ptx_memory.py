# SPDX-License-Identifier: Apache-2.0
"""Loads, stores and memory errors of the simulator: every width and vector, every space, every way to go wrong."""

from __future__ import annotations

import numpy as np
import pytest
from attnsmith.tools import ptxsim

from tests.sim.ptx.builder import aligned_zeros, entry, line_of, load, run, run_words

SHARED = ".shared .align 16 .b8 smem[1024];"


@pytest.mark.parametrize(
    "type_", ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "b8", "b16", "b32", "b64", "f32", "f64"]
)
def test_scalar_load_extends_to_the_register(type_: str) -> None:
    width = int(type_[1:])
    data = np.array([0x80F1F2F3F4F5F6F7], np.uint64)
    register = {"f32": "%f0", "f64": "%d0"}.get(type_, "%l0")
    store = "st.global.b32 [%out], %f0;" if type_ == "f32" else f"st.global.b64 [%out], {register};"
    got = int(
        run_words(
            entry(f"ld.global.{type_} {register}, [%in]; {store}", ["u64 out", "u64 in"]),
            1,
            data,
            dtype=np.uint64,
            block=1,
        )[0]
    )
    value = int(data[0]) & ((1 << width) - 1)
    if type_[0] == "s" and value >> (width - 1):
        value |= (1 << 64) - (1 << width)
    assert got == value


@pytest.mark.parametrize(
    "type_, count", [("u8", 2), ("u8", 4), ("u16", 2), ("u16", 4), ("b32", 2), ("b32", 4), ("f32", 4), ("b64", 2)]
)
def test_vector_load_and_store(type_: str, count: int) -> None:
    width = int(type_[1:]) // 8
    prefix = {1: "h", 2: "h", 4: "f" if type_ == "f32" else "r", 8: "l"}[width]
    first = 4 if prefix == "l" else 0  # %l0 to %l3 hold addresses
    names = [f"%{prefix}{first + i}" for i in range(count)]
    registers, backward = ", ".join(names), ", ".join(reversed(names))
    size = width * count
    body = f"""
      mul.wide.u32 %l0, %t, {size}; add.u64 %l1, %in, %l0; add.u64 %l2, %out, %l0;
      ld.global.v{count}.{type_} {{{registers}}}, [%l1];
      st.global.v{count}.{type_} [%l2], {{{backward}}};"""
    data = np.random.default_rng(0).integers(0, 256, 32 * size, dtype=np.uint8)
    got = run_words(entry(body, ["u64 out", "u64 in"]), 32 * size, data, dtype=np.uint8)
    want = data.reshape(32, count, width)[:, ::-1].reshape(-1)
    assert np.array_equal(got, want)


@pytest.mark.parametrize(
    "modifiers",
    [".nc", ".ca", ".cg", ".cs", ".lu", ".cv", ".volatile", ".relaxed.gpu", ".acquire.cta", ".nc.L1::no_allocate",
     ".L1::evict_last", ".nc.L2::128B", ".L1::no_allocate.L2::256B", ".nc.L1::no_allocate.L2::128B"],
)  # fmt: skip
def test_cache_hints_do_not_change_the_value(modifiers: str) -> None:
    prefix = f"ld{modifiers}.global" if modifiers[1] in "var" else f"ld.global{modifiers}"
    body = f"{prefix}.u32 %r0, [%in+4]; st.global.u32 [%out], %r0;"
    assert run_words(entry(body, ["u64 out", "u64 in"]), 1, np.array([1, 9], np.uint32), block=1)[0] == 9


@pytest.mark.parametrize(
    "modifiers", [".wb", ".cg", ".cs", ".wt", ".volatile", ".relaxed.gpu", ".release.sys", ".L1::no_allocate"]
)
def test_store_hints(modifiers: str) -> None:
    prefix = (
        f"st{modifiers}.global"
        if modifiers in (".volatile", ".relaxed.gpu", ".release.sys")
        else f"st.global{modifiers}"
    )
    assert run_words(entry(f"{prefix}.u32 [%out], 6;"), 1, block=1)[0] == 6


def test_cache_policy_operand_is_accepted() -> None:
    body = """
      createpolicy.fractional.L2::evict_first.b64 %l0, 1.0;
      ld.global.L2::cache_hint.u32 %r0, [%in], %l0; st.global.L2::cache_hint.u32 [%out], %r0, %l0;
      prefetch.global.L2 [%in]; discard.global.L2 [%in], 128;"""
    data = np.zeros(64, np.uint32)
    data[0] = 4
    ptx = entry(body.replace("discard.global.L2 [%in], 128;", ""), ["u64 out", "u64 in"])
    assert run_words(ptx, 1, data, block=1)[0] == 4


def test_shared_memory_moves_data_between_threads() -> None:
    body = """
      shl.b32 %r0, %t, 2; mov.u32 %r1, smem; add.u32 %r2, %r1, %r0; mul.lo.u32 %r3, %t, %t;
      st.shared.u32 [%r2], %r3; bar.sync 0;
      xor.b32 %r4, %r0, 252; add.u32 %r5, %r1, %r4; ld.shared.u32 %r6, [%r5];
      mul.wide.u32 %l0, %t, 4; add.u64 %l1, %out, %l0; st.global.u32 [%l1], %r6;"""
    got = run_words(entry(body, globals_=SHARED), 64, block=64)
    assert got.tolist() == [(t ^ 63) ** 2 for t in range(64)]


def test_shared_vectors_and_generic_access() -> None:
    body = """
      mov.u64 %l0, smem; shl.b32 %r0, %t, 4; cvt.u64.u32 %l1, %r0; add.u64 %l0, %l0, %l1; cvta.shared.u64 %l2, %l0;
      add.u32 %r1, %t, 100; add.u32 %r2, %t, 200; add.u32 %r3, %t, 300;
      st.shared.v4.u32 [%l0], {%t, %r1, %r2, %r3};
      ld.v2.u32 {%r4, %r5}, [%l2+8]; st.u32 [%l2], %r5; ld.shared.u32 %r6, [%l0];
      mul.wide.u32 %l3, %t, 8; add.u64 %l4, %out, %l3; st.global.v2.u32 [%l4], {%r4, %r6};"""
    got = run_words(entry(body, globals_=SHARED), 64)
    assert got.reshape(32, 2).tolist() == [[t + 200, t + 300] for t in range(32)]


def test_dynamic_shared_memory_starts_after_static() -> None:
    globals_ = ".shared .align 4 .b8 fixed[12];\n.extern .shared .align 16 .b8 dynamic[];"
    body = """
      mov.u32 %r0, fixed; mov.u32 %r1, dynamic;
      st.shared.u32 [fixed+8], 5; st.shared.v4.u32 [dynamic+16], {1, 2, 3, 4};
      ld.shared.u32 %r2, [fixed+8]; ld.shared.u32 %r3, [dynamic+28]; and.b32 %r4, %r1, 15;
      st.global.v2.u32 [%out], {%r2, %r3}; st.global.u32 [%out+8], %r4;"""
    got = run_words(entry(body, globals_=globals_), 3, block=1, shared_bytes=32)
    assert got.tolist() == [5, 4, 0]


def test_local_memory_is_private_to_the_thread() -> None:
    body = """
      .local .align 8 .b8 stack[16];
      mov.u64 %l0, stack; st.local.u32 [stack+4], %t; mul.lo.u32 %r0, %t, 3; st.local.u32 [%l0+8], %r0;
      cvta.local.u64 %l1, %l0; ld.u32 %r1, [%l1+4]; ld.local.u32 %r2, [stack+8];
      mul.wide.u32 %l2, %t, 8; add.u64 %l3, %out, %l2; st.global.v2.u32 [%l3], {%r1, %r2};"""
    got = run_words(entry(body), 128, block=64)
    assert got.reshape(64, 2).tolist() == [[t, 3 * t] for t in range(64)]


def test_each_cta_has_its_own_shared_memory() -> None:
    body = """
      mov.u32 %r0, %ctaid.x; st.shared.u32 [smem], %r0; bar.sync 0; ld.shared.u32 %r1, [smem];
      mul.wide.u32 %l0, %r0, 4; add.u64 %l1, %out, %l0; st.global.u32 [%l1], %r1;"""
    assert run_words(entry(body, globals_=SHARED), 20, grid=20, num_threads=2).tolist() == list(range(20))


# Errors ------------------------------------------------------------------------------------------------------------

PAIR = ["u64 out", "u64 in"]


def test_read_out_of_bounds_names_line_thread_and_nearest_tensor() -> None:
    body = """
      mul.wide.u32 %l0, %t, 4; add.u64 %l1, %in, %l0;
      ld.global.u32 %r0, [%l1];
      st.global.u32 [%out], %r0;"""
    ptx = entry(body, PAIR)
    data = np.zeros(10, np.float32)
    with pytest.raises(ptxsim.MemoryAccessError) as caught:
        run(ptx, [np.zeros(4096, np.uint32), data], grid=(1, 1))
    error = caught.value
    assert error.line == line_of(ptx, "ld.global.u32 %r0, [%l1]")
    assert error.thread == 10
    assert error.cta == (0, 0, 0)
    assert error.address == data.ctypes.data + 40
    assert error.nearest and "p_in" in f"{error.nearest} {error}"
    assert "float32[10]" in f"{error.nearest} {error}"


@pytest.mark.parametrize("offset", [-4, 40, 1 << 40])
def test_write_out_of_bounds(offset: int) -> None:
    out = np.zeros(10, np.uint32)
    with pytest.raises(ptxsim.MemoryAccessError):
        run(entry(f"add.s64 %l0, %out, {offset}; st.global.u32 [%l0], 1;"), [out], block=1)
    assert not out.any()


def test_vector_that_straddles_the_end() -> None:
    body = "ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%in+16]; st.global.u32 [%out], %r3;"
    with pytest.raises(ptxsim.MemoryAccessError):
        run(entry(body, PAIR), [np.zeros(1, np.uint32), np.zeros(8, np.uint32)[:7]], block=1)


def test_null_pointer() -> None:
    with pytest.raises(ptxsim.MemoryAccessError):
        run(
            entry("ld.global.u32 %r0, [%in]; st.global.u32 [%out], %r0;", PAIR), [np.zeros(1, np.uint32), None], block=1
        )


def test_read_only_allocation_refuses_a_store() -> None:
    data = np.zeros(4, np.uint32)
    frozen = np.zeros(4, np.uint32)
    frozen.flags.writeable = False
    for argument in (ptxsim.ReadOnly(data), frozen):
        with pytest.raises(ptxsim.MemoryAccessError, match=r"(?i)read.only"):
            run(entry("st.global.u32 [%out], 1;"), [argument], block=1)
    assert not data.any()


def test_predicated_off_lanes_do_not_touch_memory() -> None:
    body = """
      setp.lt.u32 %p0, %t, 4; mul.wide.u32 %l0, %t, 4; add.u64 %l1, %out, %l0; @%p0 st.global.u32 [%l1], %t;"""
    assert run_words(entry(body), 4).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "access",
    ["ld.global.u32 %r0, [%in+2];", "ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%in+8];", "st.global.u16 [%in+1], 3;",
     "ld.global.v2.u64 {%l4, %l5}, [%in+8];", "atom.global.add.u32 %r0, [%in+1], 1;", "ld.shared.u64 %l4, [smem+4];"],
)  # fmt: skip
def test_misaligned(access: str) -> None:
    ptx = entry(
        f"st.shared.v4.u32 [smem], {{1, 2, 3, 4}};\n{access}\nst.global.u32 [%out], %r0;", PAIR, globals_=SHARED
    )
    base = aligned_zeros(64, np.uint64)
    with pytest.raises(ptxsim.MisalignedAccess) as caught:
        run(ptx, [np.zeros(1, np.uint32), base], block=1)
    assert caught.value.line == line_of(ptx, access)


def test_uninitialized_shared_read_names_the_thread() -> None:
    body = """
      shl.b32 %r0, %t, 2; mov.u32 %r1, smem; add.u32 %r2, %r1, %r0; setp.ne.u32 %p0, %t, 5;
      @%p0 st.shared.u32 [%r2], %t; bar.sync 0;
      ld.shared.u32 %r3, [%r2];
      mul.wide.u32 %l0, %t, 4; add.u64 %l1, %out, %l0; st.global.u32 [%l1], %r3;"""
    ptx = entry(body, globals_=SHARED)
    out = np.zeros(32, np.uint32)
    with pytest.raises(ptxsim.UninitializedRead) as caught:
        run(ptx, [out])
    assert caught.value.thread == 5
    assert caught.value.line == line_of(ptx, "ld.shared.u32 %r3, [%r2]")
    run(ptx, [out], check_initialized=False)
    assert [x for t, x in enumerate(out) if t != 5] == [t for t in range(32) if t != 5]


def test_uninitialized_bits_are_per_byte() -> None:
    body = """
      st.shared.u16 [smem], 1; st.shared.u8 [smem+3], 1; ld.shared.u16 %h0, [smem];
      ld.shared.u32 %r0, [smem]; st.global.u32 [%out], %r0;"""
    with pytest.raises(ptxsim.UninitializedRead):
        run(entry(body, globals_=SHARED), [np.zeros(1, np.uint32)], block=1)


@pytest.mark.parametrize("access", ["ld.shared.u32 %r0, [%r9];", "st.shared.u32 [%r9], 1;"])
def test_shared_out_of_bounds(access: str) -> None:
    ptx = entry(f"mov.u32 %r9, smem; add.u32 %r9, %r9, 1024;\n{access}\nst.global.u32 [%out], %r0;", globals_=SHARED)
    with pytest.raises(ptxsim.MemoryAccessError) as caught:
        run(ptx, [np.zeros(1, np.uint32)], block=1)
    assert caught.value.line == line_of(ptx, access)


def test_store_to_constant_memory_is_refused() -> None:
    body = "mov.u64 %l0, table; cvta.const.u64 %l0, %l0; st.u32 [%l0], 1;"
    with pytest.raises(ptxsim.MemoryAccessError):
        run(entry(body, globals_=".const .align 4 .b32 table[2] = {1, 2};"), [np.zeros(1, np.uint32)], block=1)


def test_extra_allocations_are_reachable_through_raw_parameters() -> None:
    data, out = np.array([5, 6], np.uint32), np.zeros(1, np.uint32)
    ptx = entry("ld.global.u32 %r0, [%in+4]; st.global.u32 [%out], %r0;", PAIR)
    block = out.ctypes.data.to_bytes(8, "little") + data.ctypes.data.to_bytes(8, "little")
    loaded = load(ptx)
    rows = [(out.ctypes.data, 4, "result", True), (data.ctypes.data, 8, "source", False)]
    loaded.launch("k", 1, 1, block, allocations=rows)
    assert out[0] == 6
    with pytest.raises(ptxsim.MemoryAccessError, match="result"):
        loaded.launch("k", 1, 1, block, allocations=rows[:1])
