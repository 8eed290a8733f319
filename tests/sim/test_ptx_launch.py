# SPDX-License-Identifier: Apache-2.0
"""Launch validation of the simulator, the typing of arguments, and the Python interface around a module."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from attnsmith.tools import ptxsim
from attnsmith.tools.ptxsim import arguments, devices

from tests.sim.ptx.builder import entry, load, module, run, run_words

NOTHING = "st.global.u32 [%out], 1;"
ONE = ["u64 out"]


def launch(ptx: str = entry(NOTHING), grid: object = 1, block: object = 32, **options: object) -> np.ndarray:
    out = np.zeros(4, np.uint32)
    load(ptx).launch("k", grid, block, [out], **options)
    return out


LIMITS = {"a100": 166912, "rtx3090": 101376, "rtx4090": 101376, "h100": 232448, "h200": 232448}
DYNAMIC = entry("st.shared.u32 [dyn], 3; ld.shared.u32 %r0, [dyn]; st.global.u32 [%out], %r0;",
                globals_=".extern .shared .align 16 .b8 dyn[];")  # fmt: skip


@pytest.mark.parametrize("device", LIMITS)
def test_shared_memory_limit_per_device(device: str) -> None:
    assert launch(DYNAMIC, shared_bytes=LIMITS[device], device=device)[0] == 3
    with pytest.raises(ptxsim.LaunchError, match=str(LIMITS[device])):
        launch(DYNAMIC, shared_bytes=LIMITS[device] + 16, device=device)


def test_static_shared_memory_counts_towards_the_limit() -> None:
    ptx = entry("st.shared.u32 [fixed], 3; st.global.u32 [%out], 1;", globals_=".shared .align 16 .b8 fixed[1024];\n"
                ".extern .shared .align 16 .b8 dyn[];")  # fmt: skip
    launch(ptx, shared_bytes=LIMITS["a100"] - 1024)
    with pytest.raises(ptxsim.LaunchError):
        launch(ptx, shared_bytes=LIMITS["a100"] - 1008)


@pytest.mark.parametrize("block", [1025, (32, 33), (1, 1, 65), (1024, 2)])
def test_too_many_threads(block: object) -> None:
    with pytest.raises(ptxsim.LaunchError):
        launch(block=block)


@pytest.mark.parametrize("grid", [(1, 65536), (1, 1, 65536)])
def test_too_large_grid(grid: object) -> None:
    with pytest.raises(ptxsim.LaunchError):
        launch(grid=grid)


@pytest.mark.parametrize("bad", [0, (1, 0), (1, 1, 1, 1), (), -1, "32"])
def test_extents_that_are_none(bad: object) -> None:
    with pytest.raises(ptxsim.LaunchError):
        launch(grid=bad)
    with pytest.raises(ptxsim.LaunchError):
        launch(block=bad)


def test_launch_bounds() -> None:
    required = entry(NOTHING, directives=".reqntid 64, 1, 1")
    assert launch(required, block=64)[0] == 1
    with pytest.raises(ptxsim.LaunchError):
        launch(required, block=32)
    at_most = entry(NOTHING, directives=".maxntid 64, 1, 1 .minnctapersm 1")
    assert launch(at_most, block=32)[0] == 1
    with pytest.raises(ptxsim.LaunchError):
        launch(at_most, block=96)


def test_unknown_kernel_names_those_that_exist() -> None:
    with pytest.raises(ptxsim.LaunchError, match="known_kernel"):
        load(entry(NOTHING, name="known_kernel")).launch("other", 1, 1, [np.zeros(1, np.uint32)])


def test_unknown_device_names_those_that_exist() -> None:
    with pytest.raises(ptxsim.LaunchError, match="a100"):
        launch(device="a1000")
    with pytest.raises(ptxsim.LaunchError, match="rtx4090"):
        devices.device("tpu")


@pytest.mark.parametrize(
    "target, device", [("sm_90", "a100"), ("sm_86", "a100"), ("sm_90", "rtx4090"), ("sm_90a", "a100")]
)
def test_code_for_a_newer_architecture_does_not_run(target: str, device: str) -> None:
    with pytest.raises(ptxsim.LaunchError):
        launch(entry(NOTHING, target=target), device=device)


@pytest.mark.parametrize(
    "target, device", [("sm_80", "h100"), ("sm_80", "rtx4090"), ("sm_86", "rtx3090"), ("sm_90a", "h200")]
)
def test_code_for_an_older_architecture_runs(target: str, device: str) -> None:
    assert launch(entry(NOTHING, target=target), device=device)[0] == 1


def test_clusters_need_sm_90() -> None:
    with pytest.raises(ptxsim.LaunchError):
        launch(grid=2, cluster=(2, 1, 1), device="a100")


@pytest.mark.parametrize("options", [{"schedule": "fair"}, {"async_mode": "early"}, {"shared_bytes": -1}, {"seed": -1}])
def test_bad_options(options: dict[str, object]) -> None:
    with pytest.raises(ptxsim.LaunchError, match=next(iter(options))):
        launch(**options)


# Arguments ---------------------------------------------------------------------------------------------------------

TYPES = entry("st.global.u32 [%out], %n; st.global.f32 [%out+4], %x;", ["u64 out", "u32 n", "f32 x"])


def test_scalars_take_the_type_of_their_parameter() -> None:
    for args in (
        [7, 1.5],
        [ctypes.c_int32(7), ctypes.c_float(1.5)],
        [np.int64(7), np.float32(1.5)],
        [b"\7\0\0\0", 1.5],
    ):
        got = run_words(TYPES, 2, *args, block=1)
        assert (got[0], got[1:].view(np.float32)[0]) == (7, 1.5)


@pytest.mark.parametrize(
    "args",
    [[1 << 32, 1.0], [-(1 << 31) - 1, 1.0], [1], [1, 1.0, 1], ["7", 1.0], [b"12345", 1.0], [ctypes.c_int64(1), 1.0]],
    ids=["too large", "too small", "too few", "too many", "a string", "wrong bytes", "wrong ctypes"],
)
def test_arguments_that_do_not_fit(args: list[object]) -> None:
    with pytest.raises(ptxsim.LaunchError):
        run_words(TYPES, 2, *args, block=1)


def test_raw_block_of_the_wrong_size() -> None:
    with pytest.raises(ptxsim.LaunchError, match="16 bytes"):
        load(TYPES).launch("k", 1, 1, bytes(12))


def test_torch_tensors_and_views() -> None:
    ptx = entry("mul.wide.u32 %l0, %t, 4; add.u64 %l1, %out, %l0; st.global.f32 [%l1], 0f3F800000;")
    base = torch.zeros(4, 8)
    run(ptx, [base[1]], block=8)
    assert base.sum(1).tolist() == [0, 8, 0, 0]
    with pytest.raises(ptxsim.MemoryAccessError):  # the view's own extent counts, not its storage's
        run(ptx, [base[1]], block=9)


def test_overlapping_views_are_one_allocation() -> None:
    x = torch.arange(8, dtype=torch.int32)
    rows = arguments.merge(arguments.pack("k", [{"name": n, "size": 8, "align": 8} for n in "ab"], [x[:5], x[3:]])[1])
    assert [(row.address - x.data_ptr(), row.nbytes) for row in rows] == [(0, 32)]


def test_float16_scalars_are_refused_because_the_type_is_not_known() -> None:
    with pytest.raises(ptxsim.LaunchError, match="2 bytes"):
        arguments.pack("k", [{"name": "h", "size": 2, "align": 2}], [1.0])


def test_importing_the_simulator_does_not_import_torch() -> None:
    code = "import sys, attnsmith.tools.ptxsim as p; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# Modules -----------------------------------------------------------------------------------------------------------


def test_describe() -> None:
    ptx = module(
        ".visible .entry one(.param .u64 p, .param .align 16 .b8 s[48]) .reqntid 128\n"
        "{ .reg .b32 %r<5>; .reg .f32 %f<3>; .shared .align 16 .b8 buf[2048]; mov.u32 %r1, buf; ret; }\n"
        ".visible .entry two() { ret; }"
    )
    loaded = load(ptx)
    assert [e.name for e in loaded.entries] == ["one", "two"]
    one = loaded.entry("one")
    assert [(p["name"], p["size"], p["align"]) for p in one.params] == [("p", 8, 8), ("s", 48, 16)]
    assert one.static_smem == 2048
    assert one.reqntid and one.reqntid[0] == 128
    assert one.instructions == 2
    assert sum(one.registers.values()) == 8
    assert loaded.target == "sm_80"
    assert loaded.version == "8.8"


def test_module_is_reusable_and_closes() -> None:
    with load(entry("atom.global.add.u32 %r0, [%out], 1;")) as loaded:
        out = np.zeros(1, np.uint32)
        for _ in range(3):
            loaded.launch("k", 1, 32, [out])
        assert out[0] == 96
    with pytest.raises(ptxsim.LaunchError, match="closed"):
        loaded.launch("k", 1, 32, [out])


def test_module_globals_keep_their_value_between_launches() -> None:
    ptx = entry("atom.global.add.u32 %r0, [counter], 1; st.global.u32 [%out], %r0;", globals_=".global .u32 counter;")
    loaded, out = load(ptx), np.zeros(1, np.uint32)
    for expected in range(3):
        loaded.launch("k", 1, 1, [out])
        assert out[0] == expected


def test_load_reads_a_path(tmp_path: Path) -> None:
    path = tmp_path / "kernel.ptx"
    path.write_text(entry(NOTHING))
    assert ptxsim.load(path).entries[0].name == "k"
    with pytest.raises(ptxsim.ParseError, match="Path"):
        ptxsim.load(str(path))
    with pytest.raises(FileNotFoundError):
        ptxsim.load(tmp_path / "missing.ptx")


def test_trailing_null_of_nvrtc_is_accepted() -> None:
    ptxsim.load(entry(NOTHING).encode() + b"\0")


def test_threads_of_many_ctas_give_the_same_result_on_any_number_of_host_threads() -> None:
    body = """
      mov.u32 %r0, %ctaid.x; mad.lo.u32 %r1, %r0, 64, %t; mul.wide.u32 %l0, %r1, 4; add.u64 %l1, %out, %l0;
      mul.lo.u32 %r2, %r1, %r1; st.global.u32 [%l1], %r2;"""
    want = (np.arange(64 * 100, dtype=np.uint32) ** 2).tolist()
    for num_threads in (1, 2, 5):
        assert run_words(entry(body), 6400, grid=100, block=64, num_threads=num_threads).tolist() == want


def test_an_error_in_one_cta_ends_the_launch() -> None:
    body = "mov.u32 %r0, %ctaid.x; setp.eq.u32 %p0, %r0, 13; @%p0 trap;"
    with pytest.raises(ptxsim.TrapError) as caught:
        run(entry(body), [np.zeros(1, np.uint32)], grid=40, num_threads=2)
    assert caught.value.cta == (13, 0, 0)
