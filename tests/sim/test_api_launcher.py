# SPDX-License-Identifier: Apache-2.0
"""The launcher's C API and its CUDA device, driven against a stand-in for libcuda that records every driver call."""

from __future__ import annotations

from pathlib import Path

from tests.sim.driver_stub import libcuda, run

__all__ = ["libcuda"]


def test_launch_shape_stream_and_context(libcuda: Path) -> None:
    lines = run(
        libcuda,
        """
register(spec(), "sm_80", b"image-0001")
api.forward(args(), device_index=0, stream=77)
print(json.dumps(log()))
""",
    )
    smem = (128 * 128 + 2 * 64 * 128) * 2
    assert lines == [
        "push",
        "load image-0001 context=100",
        f"attribute 8={smem}",
        f"launch grid=16,1,1 block=128,1,1 smem={smem} stream=77 q=4096 context=100",
        "pop",
    ]


def test_an_image_is_loaded_once_per_device(libcuda: Path) -> None:
    found = run(
        libcuda,
        """
register(spec(block_m=64, block_n=32), "sm_80", b"image-0001")
stub.stub_set_current(100)
for _ in range(3):
    api.forward(args(), device_index=0)
first = log()
for _ in range(2):
    api.forward(args(), device_index=1)
print(json.dumps([first, log(), api.last_launch()]))
""",
    )
    first, second, last = found
    assert [line.split()[0] for line in first] == ["load", "launch", "launch", "launch"]  # no push: it was current
    assert [line.split()[0] for line in second] == ["push", "load", "launch", "pop", "push", "launch", "pop"]
    assert all("context=101" in line for line in second if line.startswith(("load", "launch")))
    assert last["device_index"] == 1 and last["grid"] == 32


def test_a_device_runs_only_what_it_can(libcuda: Path) -> None:
    """sm_86 has 99 KB: sm_80's big tile is passed over for a smaller one; an sm_86 image is preferred to sm_80's."""
    found = run(
        libcuda,
        """
register(spec(block_m=128, block_n=128, num_warps=8, num_stages=2), "sm_80", b"big-sm80..", priority=0)
register(spec(block_m=128, block_n=64), "sm_80", b"small-sm80", priority=1)
api.forward(args(), device_index=0); on_a100 = log()
api.forward(args(), device_index=1); on_rtx = log()
register(spec(block_m=128, block_n=32), "sm_86", b"own-sm86..", priority=2)
api.forward(args(), device_index=1); own = log()
api.forward(args(), device_index=0); again = log()
print(json.dumps([on_a100, on_rtx, own, again, error(lambda: api.forward(args(), device_index=2))]))
""",
    )
    on_a100, on_rtx, own, again, refused = found
    assert "load big-sm80.." in on_a100[1] and "load small-sm80" in on_rtx[1] and "load own-sm86.." in own[1]
    assert [line.split()[0] for line in again] == ["push", "launch", "pop"]
    assert "compute capability 12.0" in refused and "allowed" in refused


def test_no_work_means_no_driver_call(libcuda: Path) -> None:
    lines = run(
        libcuda,
        """
api.forward(args(b=0), device_index=0)
api.forward(args(sq=0), device_index=0)
api.forward(args(h=0), device_index=0)
print(json.dumps([log(), api.last_launch()]))
""",
    )
    assert lines == [[], {}]


def test_pads_kernels_serve_smaller_head_dims(libcuda: Path) -> None:
    found = run(
        libcuda,
        """
register(spec(pads=True), "sm_80", b"pads-image")
results = []
for d in (104, 120, 128):
    api.forward(args(d=d), device_index=0)
    results.append(api.last_launch()["kernel"])
results.append(error(lambda: api.forward(args(d=96), device_index=0)))
print(json.dumps(results))
""",
    )
    assert ["hdim128pad" in name for name in found[:3]] == [True] * 3
    assert "hdim96_full" in found[3] and "attnsmith build" in found[3]


def test_errors_have_four_parts(libcuda: Path) -> None:
    found = run(
        libcuda,
        """
register(spec(), "sm_80", b"image-0001")
results = [error(lambda: api.forward(args(b=1 << 28, sq=1024), device_index=0)),
           error(lambda: api.forward(args(q=0x1001), device_index=0)),
           error(lambda: api.forward(args(), device_index=4)),
           error(lambda: api.forward(args(), device_index=-1)),
           error(lambda: register(spec(), "compute_80", b"", target="compute_80") if False else
                 api.register_kernel({**entry(spec(), "sm_80"), "target": "ampere"}, source="AOT", cubin=b"", ptx=b""))]
stub.stub_fail_next_launch()
results.append(error(lambda: api.forward(args(), device_index=0)))
api.forward(args(), device_index=0)
print(json.dumps(results))
""",
    )
    wanted = ("CTAs", "aligned", "cuda:4", "simulate", "ampere", "CUDA_ERROR_LAUNCH_FAILED")
    for text, word in zip(found, wanted, strict=True):
        assert word in text and "allowed: " in text and ": got " in text


def test_more_than_65535_batches_fit_the_grid(libcuda: Path) -> None:
    lines = run(
        libcuda,
        """
register(spec(), "sm_80", b"image-0001")
api.forward(args(b=65537, sq=4, h=2, hk=1), device_index=0)
print(json.dumps(log()))
""",
    )
    assert f"grid={65537 * 2},1,1" in lines[-2]


def test_a_machine_without_a_driver_says_so(tmp_path: Path) -> None:
    text = run(tmp_path / "missing.so", "print(json.dumps(error(lambda: api.forward(args(), device_index=0))))")
    assert "open the CUDA driver" in text and "simulate" in text
