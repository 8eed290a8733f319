# SPDX-License-Identifier: Apache-2.0
"""Tensor maps on the simulator: 1 to 5 dimensions, boxes that hang over every edge, each swizzle, stores, reductions,
and the maps that the driver refuses."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from attnsmith.tools import ptxsim

from tests.sim.ptx.builder import aligned_zeros, load, module

SMEM_BYTES = 16384


def swizzled(address: int, span: int) -> int:
    return address ^ (address // 128 % max(1, span // 16) * 16)


def kernel(body: str) -> str:
    text = f"""
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(.param .align 64 .b8 p_map[128], .param .u64 p_coords, .param .u64 p_io, .param .u32 p_bytes)
{{
  .reg .pred %p<8>;
  .reg .b32 %r<32>, %c<5>;
  .reg .b64 %l<16>;
  mov.u32 %r1, %tid.x;
  ld.param.u64 %l1, [p_coords];
  ld.param.u64 %l2, [p_io];
  ld.param.u32 %r2, [p_bytes];
  mov.b64 %l3, p_map;
  cvta.param.u64 %l4, %l3;
  mov.u32 %r3, smem;
  setp.ne.u32 %p1, %r1, 0;
  {"".join(f"ld.global.u32 %c{i}, [%l1+{4 * i}];" for i in range(5))}
{body}
  ret;
}}
"""
    return module(text, target="sm_90a")


def coordinates(rank: int) -> str:
    return "{" + ", ".join(f"%c{i}" for i in range(rank)) + "}"


def load_kernel(rank: int) -> str:
    """The box lands at smem + 1024; the mbarrier is at smem. All bytes are copied out."""
    return kernel(f"""
  @%p1 bra WAIT;
  mbarrier.init.shared::cta.b64 [smem], 1;
  fence.mbarrier_init.release.cluster;
  prefetch.tensormap [%l4];
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], %r2;
  add.u32 %r4, %r3, 1024;
  cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
      [%r4], [%l4, {coordinates(rank)}], [smem];
WAIT:
  bar.sync 0;
LOOP:
  mbarrier.try_wait.parity.shared::cta.b64 %p2, [smem], 0;
  @!%p2 bra LOOP;
  shl.b32 %r5, %r1, 2;
OUT:
  setp.ge.u32 %p3, %r5, %r2;
  @%p3 bra END;
  add.u32 %r6, %r3, %r5;
  ld.shared.u32 %r7, [%r6+1024];
  cvt.u64.u32 %l5, %r5;
  add.s64 %l5, %l2, %l5;
  st.global.u32 [%l5], %r7;
  add.u32 %r5, %r5, 128;
  bra OUT;
END:
""")


def store_kernel(rank: int, opcode: str = "cp.async.bulk.tensor", operation: str = "") -> str:
    return kernel(f"""
  shl.b32 %r5, %r1, 2;
IN:
  setp.ge.u32 %p3, %r5, %r2;
  @%p3 bra LOADED;
  cvt.u64.u32 %l5, %r5;
  add.s64 %l5, %l2, %l5;
  ld.global.u32 %r7, [%l5];
  add.u32 %r6, %r3, %r5;
  st.shared.u32 [%r6], %r7;
  add.u32 %r5, %r5, 128;
  bra IN;
LOADED:
  fence.proxy.async.shared::cta;
  bar.sync 0;
  @%p1 bra END;
  {opcode}.{rank}d.global.shared::cta{operation}.tile.bulk_group [%l4, {coordinates(rank)}], [%r3];
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
END:
""")


def tensor(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Distinct values, rows padded to multiples of 16 bytes; shape is outermost first."""
    size = np.dtype(dtype).itemsize
    pitch = -(-shape[-1] * size // 16) * 16 // size
    storage = aligned_zeros(int(np.prod(shape[:-1], dtype=int)) * pitch, dtype)
    view = storage.reshape(*shape[:-1], pitch)[..., : shape[-1]]
    view[...] = (np.arange(view.size) % 250 + 1).reshape(shape).astype(dtype)
    return view


def encode(array: np.ndarray, data_type: str, box: tuple[int, ...], **options: Any) -> bytes:
    """`box` is outermost first, as the array's shape."""
    strides = [int(s) for s in array.strides[::-1][1:]]
    return ptxsim.encode_tensor_map(array.ctypes.data, data_type, array.shape[::-1], strides, box[::-1], **options)


def allocation(array: np.ndarray, is_writable: bool) -> ptxsim.Allocation:
    nbytes = array.strides[0] * (array.shape[0] - 1) + array[0].nbytes * 2
    return ptxsim.Allocation(array.ctypes.data, nbytes, "tensor", is_writable)


def window(
    array: np.ndarray, start: tuple[int, ...], box: tuple[int, ...], steps: tuple[int, ...], fill: Any
) -> np.ndarray:
    """The box at `start`, computed element by element."""
    counts = [-(-b // s) for b, s in zip(box, steps, strict=True)]
    out = np.full(counts, fill, array.dtype)
    for index in itertools.product(*map(range, counts)):
        at = tuple(s + i * step for s, i, step in zip(start, index, steps, strict=True))
        if all(0 <= x < n for x, n in zip(at, array.shape, strict=True)):
            out[index] = array[at]
    return out


def load_box(
    array: np.ndarray,
    data_type: str,
    start: tuple[int, ...],
    box: tuple[int, ...],
    *,
    swizzle: int = 0,
    expect: int | None = None,
    steps: tuple[int, ...] | None = None,
    **options: Any,
) -> tuple[np.ndarray, ptxsim.Stats]:
    """What one bulk tensor load brings, unswizzled."""
    rank = array.ndim
    steps = steps or (1,) * rank
    counts = [-(-b // s) for b, s in zip(box, steps, strict=True)]
    nbytes = int(np.prod(counts)) * array.itemsize
    encoded = encode(array, data_type, box, swizzle=swizzle, element_strides=steps[::-1], **options)
    raw = np.zeros(nbytes, np.uint8)
    coords = np.array([*start[::-1], *[0] * (5 - rank)], np.int32)
    args = [encoded, coords, raw, expect or nbytes]
    options = {"shared_bytes": SMEM_BYTES, "device": "h100", "allocations": [allocation(array, False)]}
    stats = load(load_kernel(rank)).launch("k", 1, 32, args, **options)
    plain = raw.copy()
    for at in range(0, nbytes, 16):
        plain[at : at + 16] = raw[swizzled(1024 + at, swizzle) - 1024 :][:16]
    return plain.view(array.dtype).reshape(counts), stats


SHAPES: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {
    1: ((50,), (32,)),
    2: ((11, 40), (8, 32)),
    3: ((3, 7, 24), (2, 4, 16)),
    4: ((2, 3, 5, 24), (2, 2, 3, 16)),
    5: ((2, 2, 3, 3, 16), (1, 2, 2, 2, 8)),
}


@pytest.mark.parametrize("rank", SHAPES)
@pytest.mark.parametrize("where", ["inside", "over the low edge", "over the high edge", "outside"])
def test_boxes(rank: int, where: str) -> None:
    shape, box = SHAPES[rank]
    start = {
        "inside": (0,) * (rank - 1) + (3,),
        "over the low edge": tuple(-1 - i for i in range(rank)),
        "over the high edge": tuple(n - 1 - (b > 2) for n, b in zip(shape, box, strict=True)),
        "outside": tuple(n + 5 for n in shape),
    }[where]
    array = tensor(shape, np.float16)
    got, stats = load_box(array, "float16", start, box)
    want = window(array, start, box, (1,) * rank, 0)
    assert np.array_equal(got, want)
    assert stats.tma_bytes_read == 2 * np.count_nonzero(want)


@pytest.mark.parametrize("swizzle, columns", [(32, 16), (64, 32), (128, 64)])
@pytest.mark.parametrize("start", [(0, 0), (-3, 5), (9, 37)])
def test_swizzles(swizzle: int, columns: int, start: tuple[int, int]) -> None:
    array = tensor((20, 100), np.float16)
    got, _ = load_box(array, "float16", start, (16, columns), swizzle=swizzle)
    assert np.array_equal(got, window(array, start, (16, columns), (1, 1), 0))


@pytest.mark.parametrize("data_type, dtype", [("uint8", np.uint8), ("float32", np.float32), ("int64", np.int64)])
def test_other_types(data_type: str, dtype: Any) -> None:
    array = tensor((9, 48), dtype)
    got, _ = load_box(array, data_type, (4, -2), (8, 32))
    assert np.array_equal(got, window(array, (4, -2), (8, 32), (1, 1), 0))


def test_nan_fill() -> None:
    array = tensor((4, 16), np.float16)
    got, _ = load_box(array, "float16", (2, 8), (4, 16), nan_fill=True)
    assert np.array_equal(got, window(array, (2, 8), (4, 16), (1, 1), np.nan), equal_nan=True)


def test_element_strides() -> None:
    array = tensor((20, 32), np.float16)
    got, _ = load_box(array, "float16", (1, 0), (9, 16), steps=(2, 1))
    assert np.array_equal(got, window(array, (1, 0), (9, 16), (2, 1), 0))


@pytest.mark.parametrize("difference, says", [(-16, "tx-count -16"), (16, "tx-count 16")])
def test_wrong_expect_tx(difference: int, says: str) -> None:
    array = tensor((8, 32), np.float16)
    with pytest.raises(ptxsim.Deadlock, match=says):
        load_box(array, "float16", (0, 0), (8, 32), expect=512 + difference)


def test_out_of_bounds_bytes_count_for_expect_tx() -> None:
    array = tensor((8, 32), np.float16)
    _, stats = load_box(array, "float16", (4, 0), (8, 32))
    assert stats.tma_bytes_read == 256


def store_box(
    ptx: str, array: np.ndarray, data_type: str, start: tuple[int, ...], values: np.ndarray, swizzle: int = 0
) -> ptxsim.Stats:
    raw = values.reshape(-1).view(np.uint8)
    image = raw.copy()
    for at in range(0, len(raw), 16):
        image[swizzled(at, swizzle) :][:16] = raw[at : at + 16]
    coords = np.array([*start[::-1], *[0] * (5 - array.ndim)], np.int32)
    encoded = encode(array, data_type, values.shape, swizzle=swizzle)
    options: dict[str, Any] = {"shared_bytes": SMEM_BYTES, "device": "h100", "allocations": [allocation(array, True)]}
    return load(ptx).launch("k", 1, 32, [encoded, coords, image, len(raw)], **options)


def stored(array: np.ndarray, start: tuple[int, ...], values: np.ndarray, add: bool = False) -> np.ndarray:
    want = array.copy()
    for index in np.ndindex(values.shape):
        at = tuple(s + i for s, i in zip(start, index, strict=True))
        if all(0 <= x < n for x, n in zip(at, array.shape, strict=True)):
            want[at] = values[index] + (want[at] if add else 0)
    return want


@pytest.mark.parametrize("rank", SHAPES)
@pytest.mark.parametrize("low", [True, False])
def test_stores_are_clipped(rank: int, low: bool) -> None:
    shape, box = SHAPES[rank]
    start = tuple(-1 if low else n - max(1, b // 2) for n, b in zip(shape, box, strict=True))
    array = tensor(shape, np.float16)
    values = (np.arange(int(np.prod(box))) % 100 + 300).reshape(box).astype(np.float16)
    want = stored(array, start, values)
    stats = store_box(store_kernel(rank), array, "float16", start, values)
    assert np.array_equal(array, want)
    assert stats.tma_bytes_written == 2 * np.count_nonzero(want >= 300)


@pytest.mark.parametrize("swizzle, columns", [(32, 16), (64, 32), (128, 64)])
def test_swizzled_stores(swizzle: int, columns: int) -> None:
    array = tensor((20, 100), np.float16)
    values = np.arange(16 * columns).reshape(16, columns).astype(np.float16)
    want = stored(array, (3, 50), values)
    store_box(store_kernel(2), array, "float16", (3, 50), values, swizzle)
    assert np.array_equal(array, want)


@pytest.mark.parametrize("data_type, dtype", [("float32", np.float32), ("float16", np.float16), ("int32", np.int32)])
def test_reductions(data_type: str, dtype: Any) -> None:
    array = tensor((10, 24), dtype)
    values = np.arange(8 * 16).reshape(8, 16).astype(dtype)
    want = stored(array, (5, -4), values, add=True)
    store_box(store_kernel(2, "cp.reduce.async.bulk.tensor", ".add"), array, data_type, (5, -4), values)
    assert np.array_equal(array, want)


GOOD: dict[str, Any] = {"address": 4096, "data_type": "float16", "shape": [64, 8], "strides": [128], "box": [64, 8]}


@pytest.mark.parametrize(
    "change, says",
    [
        ({"address": 4104}, "multiple of 16"),
        ({"strides": [120]}, "multiple of 16"),
        ({"strides": [1 << 40]}, "below 2\\^40"),
        ({"shape": [0, 8]}, "1 to 2\\^32"),
        ({"box": [512, 8]}, "1 to 256"),
        ({"box": [64, 0]}, "1 to 256"),
        ({"box": [4, 8]}, "multiple of 16 B"),
        ({"box": [128, 8], "swizzle": 128}, "exceeds the swizzle span"),
        ({"element_strides": [1, 9]}, "1 to 8"),
        ({"data_type": "int32", "box": [16, 8], "nan_fill": True}, "floating-point"),
        ({"shape": [8] * 6, "strides": [128] * 5, "box": [8] * 6}, "rank 6"),
        ({"swizzle": 16}, "swizzles"),
        ({"box": [64]}, "box extents"),
    ],
    ids=str,
)
def test_maps_that_are_refused(change: dict[str, Any], says: str) -> None:
    ptxsim.encode_tensor_map(**GOOD)
    with pytest.raises(ptxsim.LaunchError, match=says):
        ptxsim.encode_tensor_map(**{**GOOD, **change})


def test_anything_else_is_no_tensor_map() -> None:
    args = [bytes(128), np.zeros(5, np.int32), np.zeros(512, np.uint8), 512]
    with pytest.raises(ptxsim.MemoryAccessError, match="no tensor map"):
        load(load_kernel(2)).launch("k", 1, 32, args, shared_bytes=SMEM_BYTES, device="h100")


def test_a_tensor_outside_every_allocation() -> None:
    array = tensor((8, 32), np.float16)
    args = [encode(array, "float16", (8, 32)), np.zeros(5, np.int32), np.zeros(512, np.uint8), 512]
    with pytest.raises(ptxsim.MemoryAccessError, match="outside every allocation"):
        load(load_kernel(2)).launch("k", 1, 32, args, shared_bytes=SMEM_BYTES, device="h100")
