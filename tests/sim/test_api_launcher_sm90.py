# SPDX-License-Identifier: Apache-2.0
"""Host side of the SM90 kernels against a stand-in for libcuda: tensor maps and their cache, grids, tile counters, and
what runs the SM80 family instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.sim.driver_stub import libcuda, run

__all__ = ["libcuda"]

H100 = 3
"""The stand-in's device of compute capability 9.0."""

SM90 = r"""
stub.stub_expect_sm90(1)

def sm90(block_m=128, block_n=128, dtype=DType.BF16, head_dim=128, head_dim_v=None, mask=Mask.FULL, **options):
    key = {name: options.pop(name) for name in ("v_is_col_major", "packs_gqa", "out_dtype") if name in options}
    return KernelSpec(
        key=ProblemKey(arch=Arch.SM90, dtype=dtype, head_dim=head_dim, head_dim_v=head_dim_v or head_dim, mask=mask,
                       **key),
        tile=TileConfig(block_m=block_m, block_n=block_n, num_warps=block_m // 16, num_stages=2, **options))

def register90(spec, ctas_per_sm=1):
    register(spec, "sm_90a", b"image-sm90", ctas_per_sm=ctas_per_sm)

def forward(**options):
    stream = options.pop("stream", 0)
    api.forward(args(**options), device_index=3, stream=stream)

def encodes():
    return [line.removeprefix("encode ") for line in log() if line.startswith("encode")]

def launches():
    return [dict(item.split("=") for item in line.split()[1:]) for line in log() if line.startswith("launch")]

def col_major(arguments):
    v = arguments.v
    rows = (v.seqlen + 15) // 16 * 16
    v.stride_row, v.stride_head_dim = 1, rows
    v.stride_head, v.stride_batch = v.head_dim * rows, v.nheads * v.head_dim * rows
    return arguments
"""


def run90(libcuda: Path, script: str) -> Any:
    return run(libcuda, SM90 + script)


def test_maps_have_the_documented_shapes(libcuda: Path) -> None:
    """size/box/stride of each dim, innermost first; strides in bytes."""
    lines = run90(
        libcuda,
        """
register90(sm90())
forward(d=104)
print(json.dumps(encodes()))
""",
    )
    tail = " steps=1 interleave=0 swizzle=3 l2=3 oob=0 context=103"
    q = "104/64/0 200/64/832 4/1/208 2/1/166400"
    k = "104/64/0 100/128/416 2/1/208 2/1/41600"
    assert lines == [
        f"type=9 at={at} {dims}{tail}" for at, dims in (("1000", q), ("2000", k), ("3000", k), ("4000", q))
    ]


def test_maps_of_packed_tiles_and_clusters(libcuda: Path) -> None:
    lines = run90(
        libcuda,
        """
register90(sm90(packs_gqa=True))
forward(h=6, hk=2, pack_gqa=1)
packed = encodes()
register90(sm90(dtype=DType.FP16, head_dim=96, block_m=192, cluster_size=2, scheduler=Scheduler.STATIC))
forward(d=96, dtype=1, out_dtype=1)
print(json.dumps([packed, encodes()]))
""",
    )
    packed, clusters = lines
    assert " 128/64/0 3/3/256 200/21/1536 2/1/768 2/1/307200 " in packed[0]
    assert packed[3].split(" steps")[0] == packed[0].split(" steps")[0].replace("at=1000", "at=4000")
    assert "type=6 at=2000 96/32/0 100/64/384 2/1/192 2/1/38400" in clusters[1] and "swizzle=2" in clusters[1]
    assert "96/32/0 200/64/768" in clusters[0]


def test_maps_of_8_bit_types(libcuda: Path) -> None:
    found = run90(
        libcuda,
        """
register90(sm90(dtype=DType.E4M3, v_is_col_major=True, out_dtype=DType.FP16))
api.forward(col_major(args(dtype=3, out_dtype=1)), device_index=3)
print(json.dumps([encodes(), error(lambda: api.forward(args(dtype=3, out_dtype=3), device_index=3)),
                  error(lambda: api.forward(col_major(args()), device_index=3)),
                  error(lambda: api.forward(args(dtype=3, d=120), device_index=3))]))
""",
    )
    (q, k, v, out), *refused = found
    assert q.startswith("type=0 at=1000 128/128/0 200/64/512 ") and k.startswith(
        "type=0 at=2000 128/128/0 100/128/256 "
    )
    assert v.startswith("type=0 at=3000 100/128/0 128/128/112 2/1/14336 2/1/28672 ")
    assert out.startswith("type=6 at=4000 128/64/0 200/64/1024 ")
    for text, word in zip(refused, ("out_dtype", "stride_head_dim", "aligned"), strict=True):
        assert word in text and "allowed: " in text


def test_a_dim_of_one_element_may_have_any_stride(libcuda: Path) -> None:
    lines = run90(
        libcuda,
        """
register90(sm90())
arguments = args(b=1, sq=1, sk=1, h=1, hk=1)
for x in (arguments.q, arguments.k):
    x.stride_batch = x.stride_row = x.stride_head = 0
api.forward(arguments, device_index=3)
print(json.dumps(encodes()))
""",
    )
    assert all(" 1/64/16 1/1/16 1/1/16 " in lines[index] for index in (0, 3)) and " 1/128/16 1/1/16" in lines[1]


def test_a_repeated_call_only_launches(libcuda: Path) -> None:
    found = run90(
        libcuda,
        """
register90(sm90(scheduler=Scheduler.DYNAMIC))
stub.stub_set_current(103)
forward(); forward(sq=100)
log()
counts = [api.num_encoded_tensor_maps()]
forward(); forward(sq=100); forward()
calls = [line.split()[0] for line in log()]
counts.append(api.num_encoded_tensor_maps())
forward(q=0x8000)
counts.append(api.num_encoded_tensor_maps())
print(json.dumps([calls, counts]))
""",
    )
    calls, counts = found
    assert calls == ["launch"] * 3
    assert counts == [6, 6, 7]  # q and out of two lengths, k and v once; then another q


def test_the_cache_is_bounded_and_stays_right(libcuda: Path) -> None:
    found = run90(
        libcuda,
        """
register90(sm90())
wrong = []
for _ in range(2):
    for i in range(3000):
        forward(q=0x10000 + 16 * i)
        maps = launches()[0]["maps"]
        if maps != f"{0x10000 + 16 * i:x},2000,3000,4000":
            wrong.append(maps)
print(json.dumps([wrong, api.num_encoded_tensor_maps()]))
""",
    )
    wrong, count = found
    assert wrong == [] and 3003 < count < 2 * 3003 + 100  # the second round finds its q evicted, k, v and out rarely


def test_grids(libcuda: Path) -> None:
    found = run90(
        libcuda,
        """
results = []
for options, ctas in (({}, 1), ({"scheduler": Scheduler.STATIC}, 1), ({"scheduler": Scheduler.STATIC}, 2),
                      ({"scheduler": Scheduler.STATIC, "cluster_size": 2}, 1)):
    for b, sq in ((2, 200), (100, 300)):
        api.clear_kernels()
        register90(sm90(**options), ctas)
        forward(b=b, sq=sq)
        (row,) = launches()
        results.append([int(row[name]) for name in ("grid", "tiles", "m_blocks", "block")])
print(json.dumps(results))
""",
    )
    assert [row[:3] for row in found] == [
        [16, 16, 2], [1200, 1200, 3], [16, 16, 2], [132, 1200, 3], [16, 16, 2], [264, 1200, 3], [16, 16, 2],
        [132, 1600, 4],
    ]  # fmt: skip
    assert {row[3] for row in found} == {384}


def test_tile_counters(libcuda: Path) -> None:
    """One per stream, a fresh one for every captured launch; memory is zeroed once, during a capture too."""
    found = run90(
        libcuda,
        """
register90(sm90(scheduler=Scheduler.DYNAMIC))
stub.stub_set_capturing(1)
forward(stream=99); forward(stream=99)
first = log()
captured = [line.split("counter=")[1].split()[0] for line in first if line.startswith("launch")]
stub.stub_set_capturing(0)
for stream in (0, 7, 99, 0, 7, 99):
    forward(stream=stream)
print(json.dumps([[line.split()[0] for line in first], captured, [row["counter"] for row in launches()]]))
""",
    )
    calls, captured, streams = found
    assert calls.count("alloc") == calls.count("memset") == 1 and calls.index("memset") < calls.index("synchronize")
    assert "bad" not in calls and calls.index("synchronize") < calls.index("launch")
    assert streams[:3] == streams[3:] and len({*captured, *streams}) == 5 and "0" not in streams


def test_heads_that_share_the_l2_cache(libcuda: Path) -> None:
    found = run90(
        libcuda,
        """
results = []
for sk in (100, 16384, 1 << 20):
    register90(sm90()); register90(sm90(packs_gqa=True))
    for pack_gqa in (0, 1):
        forward(b=4, sk=sk, h=16, hk=4, pack_gqa=pack_gqa)
        results.append(int(launches()[0]["per_l2"]))
print(json.dumps(results))
""",
    )
    assert found == [64, 16, 16, 4, 4, 1]  # K and V of 16384 keys are 8 MiB per key head; at least one


def test_packing_is_chosen_where_it_saves_tiles(libcuda: Path) -> None:
    found = run90(
        libcuda,
        """
register90(sm90()); register90(sm90(packs_gqa=True))
results = []
for sq, h, hk, pack in ((1, 8, 1, -1), (1, 8, 1, 0), (4096, 8, 1, -1), (4096, 8, 1, 1), (1, 2, 2, 1), (1, 65, 1, 1),
                        (40, 8, 2, -1), (1, 64, 1, -1)):
    forward(b=1, sq=sq, h=h, hk=hk, pack_gqa=pack)
    row = launches()[0]
    results.append(["packgqa" in api.last_launch()["kernel"], int(row["tiles"])])
print(json.dumps(results))
""",
    )
    assert found == [
        [True, 1], [False, 8], [False, 256], [True, 256], [False, 2], [False, 65], [True, 4], [True, 1],
    ]  # fmt: skip


def test_what_tma_cannot_address_runs_the_sm80_family(libcuda: Path) -> None:
    found = run90(
        libcuda,
        """
stub.stub_expect_sm90(0)
register90(sm90())
register(spec(), "sm_90", b"image-sm80")
def kernel(change):
    arguments = args()
    change(arguments)
    api.forward(arguments, device_index=3)
    return api.last_launch()["kernel"]
def far(x): x.k.stride_batch = 1 << 39
def broadcast(x): x.v.stride_head = 0
results = [kernel(lambda x: None), kernel(far), kernel(broadcast)]
api.clear_kernels()
register90(sm90())
results.append(error(lambda: kernel(far)))
print(json.dumps([results, encodes()]))
""",
    )
    (usual, far, broadcast, refused), encoded = found
    assert "_sm90_" in usual and "_sm80_" in far and far == broadcast and len(encoded) == 4
    assert "fwd_sm80_bf16" in refused and "sm_90 " in refused and "attnsmith build" in refused


def test_no_keys_still_make_a_legal_map(libcuda: Path) -> None:
    lines = run90(
        libcuda,
        """
register90(sm90())
arguments = args(sk=0)
arguments.k.ptr = arguments.v.ptr = None
api.forward(arguments, device_index=3)
print(json.dumps(encodes()))
""",
    )
    assert lines[1].startswith("type=9 at=1000 16/64/0 1/128/16 1/1/16 1/1/16 ")


def test_8_bit_types_need_sm90_and_tma(libcuda: Path) -> None:
    on_a100, broadcast = run(
        libcuda,
        """
arguments = args(dtype=3)
arguments.k.stride_head = 0
print(json.dumps([error(lambda: api.forward(args(dtype=3), device_index=0)),
                  error(lambda: api.forward(arguments, device_index=3))]))
""",
    )
    assert "e4m3" in on_a100 and "allowed" in on_a100
    assert "TMA cannot address" in broadcast and "Copy the tensor" in broadcast
