# SPDX-License-Identifier: Apache-2.0
"""mma.sync and ldmatrix of the simulator: fragment layouts from the ISA's formulas, products against numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from attnsmith.tools import ptxsim

from tests.sim.ptx.builder import aligned_zeros, entry, load, run_words

# Fragment layouts: (lane, element index) -> (row, column), as the ISA's formulas say (groupID = lane >> 2,
# threadID_in_group = lane % 4). Element i of a lane lies in register i * element_bits // 32, low bits first.
Layout = Callable[[int, int], tuple[int, int]]


def a_16x8_16bit(lane: int, i: int) -> tuple[int, int]:
    return (lane >> 2) + (8 if i >= 2 else 0), (lane % 4) * 2 + (i & 1)


def a_16x16_16bit(lane: int, i: int) -> tuple[int, int]:
    row = lane >> 2 if 0 <= i < 2 or 4 <= i < 6 else (lane >> 2) + 8
    return row, (lane % 4) * 2 + (i & 1) + (8 if i >= 4 else 0)


def b_16bit(lane: int, i: int) -> tuple[int, int]:
    return (lane % 4) * 2 + (i & 1) + (8 if i >= 2 else 0), lane >> 2


def a_16x4_32bit(lane: int, i: int) -> tuple[int, int]:
    return (lane >> 2) + 8 * (i & 1), lane % 4


def a_16x8_32bit(lane: int, i: int) -> tuple[int, int]:
    return (lane >> 2) + 8 * (i & 1), lane % 4 + (4 if i >= 2 else 0)


def b_32bit(lane: int, i: int) -> tuple[int, int]:
    return lane % 4 + 4 * i, lane >> 2


def a_16x32_8bit(lane: int, i: int) -> tuple[int, int]:
    row = lane >> 2 if 0 <= i < 4 or 8 <= i < 12 else (lane >> 2) + 8
    return row, (lane % 4) * 4 + (i & 3) + (16 if i >= 8 else 0)


def a_16x16_8bit(lane: int, i: int) -> tuple[int, int]:
    return (lane >> 2) + (8 if i >= 4 else 0), (lane % 4) * 4 + (i & 3)


def b_8bit(lane: int, i: int) -> tuple[int, int]:
    return (lane % 4) * 4 + (i & 3) + (16 if i >= 4 else 0), lane >> 2


def c_16x8(lane: int, i: int) -> tuple[int, int]:
    return (lane >> 2) + (8 if i >= 2 else 0), (lane % 4) * 2 + (i & 1)


BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "s32": 32}
TORCH = {"f16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32, "f32": torch.float32,
         "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "s8": torch.int8, "u8": torch.uint8,
         "s32": torch.int32}  # fmt: skip


class Shape:
    """One mma shape and its types."""

    def __init__(
        self, k: int, a: str, b: str, cd: str, a_layout: Layout, b_layout: Layout, target: str = "sm_80"
    ) -> None:
        self.k, self.a, self.b, self.cd = k, a, b, cd
        self.a_layout, self.b_layout, self.target = a_layout, b_layout, target

    def __repr__(self) -> str:
        return f"m16n8k{self.k}_{self.cd}_{self.a}_{self.b}"

    @property
    def instruction(self) -> str:
        return f"mma.sync.aligned.m16n8k{self.k}.row.col.{self.cd}.{self.a}.{self.b}.{self.cd}"


SHAPES = [
    Shape(16, "f16", "f16", "f32", a_16x16_16bit, b_16bit),
    Shape(16, "f16", "f16", "f16", a_16x16_16bit, b_16bit),
    Shape(16, "bf16", "bf16", "f32", a_16x16_16bit, b_16bit),
    Shape(8, "f16", "f16", "f32", a_16x8_16bit, b_16bit),
    Shape(8, "f16", "f16", "f16", a_16x8_16bit, b_16bit),
    Shape(8, "bf16", "bf16", "f32", a_16x8_16bit, b_16bit),
    Shape(4, "tf32", "tf32", "f32", a_16x4_32bit, b_32bit),
    Shape(8, "tf32", "tf32", "f32", a_16x8_32bit, b_32bit),
    Shape(32, "e4m3", "e4m3", "f32", a_16x32_8bit, b_8bit, "sm_89"),
    Shape(32, "e5m2", "e4m3", "f32", a_16x32_8bit, b_8bit, "sm_89"),
    Shape(32, "s8", "s8", "s32", a_16x32_8bit, b_8bit),
    Shape(32, "u8", "s8", "s32", a_16x32_8bit, b_8bit),
    Shape(16, "s8", "u8", "s32", a_16x16_8bit, b_8bit),
]
OPTIONAL = {"s8", "u8"}  # integer tensor cores: no kernel here needs them; refusing by name is enough


def matrix(rng: np.random.Generator, rows: int, cols: int, dtype: str) -> torch.Tensor:
    if dtype in ("s8", "u8", "s32"):
        low, high = {"s8": (-128, 128), "u8": (0, 256), "s32": (-(1 << 20), 1 << 20)}[dtype]
        return torch.from_numpy(rng.integers(low, high, (rows, cols))).to(TORCH[dtype])
    values = torch.from_numpy(rng.standard_normal((rows, cols))).float()
    return truncate_tf32(values) if dtype == "tf32" else values.to(TORCH[dtype])


def truncate_tf32(x: torch.Tensor) -> torch.Tensor:
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


def fragments(x: torch.Tensor, layout: Layout, bits: int) -> np.ndarray:
    """32 lanes x registers of 32 bits."""
    rows, cols = x.shape
    raw = np.ascontiguousarray(x.contiguous().view(torch.uint8).numpy()).view(f"u{bits // 8}").reshape(rows, cols)
    per_lane = rows * cols // 32
    lanes = np.zeros((32, per_lane), raw.dtype)
    for lane in range(32):
        for i in range(per_lane):
            lanes[lane, i] = raw[layout(lane, i)]
    return lanes.view(np.uint32)


def unfragment(lanes: np.ndarray, rows: int, cols: int, layout: Layout, dtype: str) -> torch.Tensor:
    bits = BITS[dtype]
    raw = np.zeros((rows, cols), f"u{bits // 8}")
    values = np.ascontiguousarray(lanes).view(raw.dtype)
    for lane in range(32):
        for i in range(values.shape[1]):
            raw[layout(lane, i)] = values[lane, i]
    return torch.from_numpy(raw.view(f"i{bits // 8}")).view(TORCH[dtype])


def run_mma(shape: Shape, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    parts = [fragments(a, shape.a_layout, BITS[shape.a]), fragments(b, shape.b_layout, BITS[shape.b])]
    parts.append(fragments(c, c_16x8, BITS[shape.cd]))
    counts = [part.shape[1] for part in parts]
    total = sum(counts)
    packed = np.concatenate(parts, axis=1)
    names = [f"%r{i}" for i in range(total)]
    groups, start = [], 0
    for count in counts:
        groups.append("{" + ", ".join(names[start : start + count]) + "}")
        start += count
    outs = [f"%r{40 + i}" for i in range(counts[2])]
    body = [f"mul.wide.u32 %l0, %t, {4 * total}; add.u64 %l1, %in, %l0;"]
    body += [f"ld.global.u32 {name}, [%l1+{4 * i}];" for i, name in enumerate(names)]
    body.append(f"{shape.instruction} {{{', '.join(outs)}}}, {', '.join(groups)};")
    body.append(f"mul.wide.u32 %l2, %t, {4 * counts[2]}; add.u64 %l3, %out, %l2;")
    body += [f"st.global.u32 [%l3+{4 * i}], {name};" for i, name in enumerate(outs)]
    ptx = entry("\n".join(body), ["u64 out", "u64 in"], target=shape.target)
    device = {"sm_80": "a100", "sm_89": "rtx4090"}[shape.target]
    got = run_words(ptx, 32 * counts[2], packed.reshape(-1), device=device).reshape(32, counts[2])
    return unfragment(got, 16, 8, c_16x8, shape.cd)


@pytest.mark.parametrize("shape", SHAPES, ids=repr)
def test_layout_by_unit_matrices(shape: Shape) -> None:
    """Small distinct integers: one misplaced element of A, B, C or D changes an exact result."""
    rng = np.random.default_rng(0)
    if shape.cd == "s32" or BITS[shape.a] == 8:
        a = torch.from_numpy(rng.integers(0, 4, (16, shape.k))).float()
        b = torch.from_numpy(rng.integers(0, 4, (shape.k, 8))).float()
    else:
        a = torch.from_numpy(rng.integers(-8, 9, (16, shape.k))).float()
        b = torch.from_numpy(rng.integers(-8, 9, (shape.k, 8))).float()
    c = torch.arange(128.0).reshape(16, 8) - 64
    try:
        got = run_mma(shape, a.to(TORCH[shape.a]), b.to(TORCH[shape.b]), c.to(TORCH[shape.cd]))
    except ptxsim.UnsupportedInstruction as error:
        assert shape.a in OPTIONAL and error.line
        return
    want = a @ b + c
    assert torch.equal(got.to(torch.float64), want.to(torch.float64))


@pytest.mark.parametrize("shape", SHAPES, ids=repr)
def test_product_of_random_matrices(shape: Shape) -> None:
    rng = np.random.default_rng(1)
    a, b = matrix(rng, 16, shape.k, shape.a), matrix(rng, shape.k, 8, shape.b)
    c = matrix(rng, 16, 8, shape.cd)
    try:
        got = run_mma(shape, a, b, c).to(torch.float64)
    except ptxsim.UnsupportedInstruction as error:
        assert shape.a in OPTIONAL and error.line
        return
    want = a.to(torch.float64) @ b.to(torch.float64) + c.to(torch.float64)
    bound = a.to(torch.float64).abs() @ b.to(torch.float64).abs() + c.to(torch.float64).abs()
    relative = {"f32": 2.0**-21, "f16": 2.0**-10, "s32": 0.0}[shape.cd]  # hardware truncates: a few ulp of the sum
    assert ((got - want).abs() <= relative * bound).all(), float(((got - want).abs() / bound).max())


def test_tf32_ignores_the_low_13_bits() -> None:
    shape = SHAPES[7]
    rng = np.random.default_rng(2)
    a, b, c = matrix(rng, 16, 8, "tf32"), matrix(rng, 8, 8, "tf32"), matrix(rng, 16, 8, "f32")
    dirty = (a.view(torch.int32) | 0x1FFF).view(torch.float32)
    assert torch.equal(run_mma(shape, a, b, c), run_mma(shape, dirty, b, c))


def test_infinities_and_nans_propagate() -> None:
    a = torch.zeros(16, 16, dtype=torch.float16)
    b = torch.zeros(16, 8, dtype=torch.float16)
    a[0, 0], b[0, :] = float("inf"), 1.0
    a[1, 1], b[1, :] = float("inf"), 0.0
    a[2, 2], b[2, :] = float("nan"), 1.0
    a[3, :], b[0, 0] = 65504.0, 1.0
    got = run_mma(SHAPES[0], a, b, torch.zeros(16, 8))
    assert torch.isposinf(got[0]).all()
    assert torch.isnan(got[1]).all()
    assert torch.isnan(got[2]).all()
    assert (got[3] == 65504.0 * 2).all()


def test_f16_accumulation_overflows_to_infinity() -> None:
    a, b = torch.full((16, 16), 200.0, dtype=torch.float16), torch.full((16, 8), 200.0, dtype=torch.float16)
    got = run_mma(SHAPES[1], a, b, torch.zeros(16, 8, dtype=torch.float16))
    assert torch.isposinf(got).all()


def test_products_are_exact_and_subnormal_inputs_count() -> None:
    """fp16 subnormals are not flushed: 2**-24 * 2**10 = 2**-14."""
    a, b = torch.zeros(16, 16, dtype=torch.float16), torch.zeros(16, 8, dtype=torch.float16)
    a[:, 0], b[0, :] = 2.0**-24, 1024.0
    assert (run_mma(SHAPES[0], a, b, torch.zeros(16, 8)) == 2.0**-14).all()


def test_accumulator_may_be_the_destination() -> None:
    """D and C in the same registers, twice: the usual main loop."""
    body = """
      mov.b32 %r0, 0x3C003C00; mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
      mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
        {%f0, %f1, %f2, %f3}, {%r0, %r0, %r0, %r0}, {%r0, %r0}, {%f0, %f1, %f2, %f3};
      mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
        {%f0, %f1, %f2, %f3}, {%r0, %r0, %r0, %r0}, {%r0, %r0}, {%f0, %f1, %f2, %f3};
      mul.wide.u32 %l0, %t, 4; add.u64 %l1, %out, %l0; add.f32 %f0, %f0, %f3; st.global.f32 [%l1], %f0;"""
    assert run_words(entry(body), 32, dtype=np.float32).tolist() == [64.0] * 32


def test_mma_in_a_diverged_warp_is_an_error() -> None:
    body = """
      mov.b32 %r0, 0; mov.f32 %f0, 0f00000000; setp.lt.u32 %p0, %t, 16; @!%p0 bra SKIP;
      mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
        {%f1, %f2, %f3, %f4}, {%r0, %r0, %r0, %r0}, {%r0, %r0}, {%f0, %f0, %f0, %f0};
    SKIP: st.global.f32 [%out], %f1;"""
    loaded = load(entry(body))
    with pytest.raises(ptxsim.PtxSimError):
        loaded.launch("k", 1, 32, [np.zeros(1, np.float32)])


# ldmatrix ----------------------------------------------------------------------------------------------------------

SHARED = ".shared .align 128 .b8 smem[8192];"


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(count: int, trans: str) -> None:
    """Rows come from the addresses of lanes 8 i to 8 i + 7; lane t gets row t // 4, elements 2 (t % 4) and the next."""
    registers = ", ".join(f"%r{10 + i}" for i in range(count))
    # Rows lie scattered: row r of the warp's 32 at 16 * ((r * 5 + 3) % 32).
    body = f"""
      mov.u32 %r0, smem; shl.b32 %r1, %t, 4; add.u32 %r2, %r0, %r1;
      mul.wide.u32 %l0, %t, 16; add.u64 %l1, %in, %l0;
      ld.global.v4.u32 {{%r3, %r4, %r5, %r6}}, [%l1]; st.shared.v4.u32 [%r2], {{%r3, %r4, %r5, %r6}}; bar.sync 0;
      mad.lo.u32 %r7, %t, 5, 3; and.b32 %r7, %r7, 31; shl.b32 %r7, %r7, 4; add.u32 %r8, %r0, %r7;
      ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{registers}}}, [%r8];
      mul.wide.u32 %l2, %t, {4 * count}; add.u64 %l3, %out, %l2;"""
    body += "".join(f"st.global.u32 [%l3+{4 * i}], %r{10 + i};" for i in range(count))
    data = np.arange(256, dtype=np.uint16).reshape(32, 8)
    aligned = aligned_zeros(256, np.uint16)
    aligned[:] = data.reshape(-1)
    got = run_words(entry(body, ["u64 out", "u64 in"], globals_=SHARED), 32 * count, aligned).view(np.uint16)
    got = got.reshape(32, count, 2)
    for matrix_index in range(count):
        rows = np.stack([data[((8 * matrix_index + r) * 5 + 3) % 32] for r in range(8)])
        rows = rows.T if trans else rows
        for t in range(32):
            assert got[t, matrix_index].tolist() == rows[t // 4, 2 * (t % 4) : 2 * (t % 4) + 2].tolist()


def test_ldmatrix_uses_only_the_addresses_that_it_needs() -> None:
    body = """
      mov.u32 %r0, smem; shl.b32 %r1, %t, 2; add.u32 %r2, %r0, %r1; st.shared.u32 [%r2], %t; bar.sync 0;
      mov.u32 %r3, 0xFFFFFFF0; shl.b32 %r4, %t, 4; add.u32 %r4, %r4, %r0; setp.lt.u32 %p0, %t, 8;
      selp.u32 %r5, %r4, %r3, %p0; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r6}, [%r5];
      mul.wide.u32 %l0, %t, 4; add.u64 %l1, %out, %l0; st.global.u32 [%l1], %r6;"""
    assert run_words(entry(body, globals_=SHARED), 32).tolist() == list(range(32))


@pytest.mark.parametrize(
    "offset, error",
    [(8, ptxsim.MisalignedAccess), (4096, ptxsim.UninitializedRead), (8192, ptxsim.MemoryAccessError)],
    ids=["misaligned", "uninitialized", "out of bounds"],
)
def test_ldmatrix_errors(offset: int, error: type[ptxsim.PtxSimError]) -> None:
    body = f"""
      mov.u32 %r0, smem; shl.b32 %r1, %t, 2; add.u32 %r2, %r0, %r1; st.shared.u32 [%r2], %t; bar.sync 0;
      and.b32 %r3, %t, 7; shl.b32 %r3, %r3, 4; add.u32 %r3, %r3, %r0; add.u32 %r3, %r3, {offset};
      ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%r6}}, [%r3]; st.global.u32 [%out], %r6;"""
    with pytest.raises(error):
        run_words(entry(body, globals_=SHARED), 1)


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_stmatrix_mirrors_ldmatrix(trans: str) -> None:
    body = f"""
      mov.u32 %r0, smem; and.b32 %r1, %t, 15; shl.b32 %r1, %r1, 4; add.u32 %r2, %r0, %r1;
      mul.lo.u32 %r3, %t, 0x00020002; add.u32 %r3, %r3, 0x00010000; add.u32 %r4, %r3, 0x01000100;
      stmatrix.sync.aligned.m8n8.x2{trans}.shared.b16 [%r2], {{%r3, %r4}}; bar.sync 0;
      shl.b32 %r5, %t, 3; add.u32 %r5, %r5, %r0; ld.shared.v2.u32 {{%r6, %r7}}, [%r5];
      mul.wide.u32 %l0, %t, 8; add.u64 %l1, %out, %l0; st.global.v2.u32 [%l1], {{%r6, %r7}};"""
    got = run_words(entry(body, globals_=SHARED, target="sm_90"), 64, device="h100").view(np.uint16).reshape(2, 8, 8)
    first = np.arange(64).reshape(8, 8)
    first = first.T if trans else first
    assert np.array_equal(got, np.stack([first, first + 256]))
