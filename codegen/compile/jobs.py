# SPDX-License-Identifier: Apache-2.0
"""How many compilations may run at once on this machine: cores and free memory. Not responsible for running them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

NVRTC_BYTES = 1_200_000_000
"""Peak of one NVRTC compilation of a CuTe attention kernel (0.9 GB measured with CUDA 13.0), with a margin."""

NVCC_BYTES = 2_500_000_000
"""Peak of one nvcc with its cicc, for a translation unit of a few kernels."""


def available_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Memory that new processes can have without swapping, in this container; None where the system does not say."""
    known = [size for size in (_free_of_machine(meminfo), _free_of_cgroup(cgroup)) if size is not None]
    return min(known, default=None)


def _free_of_machine(meminfo: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in meminfo.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _free_of_cgroup(cgroup: Path) -> int | None:
    """None without a limit ("max"), or without cgroup v2. File cache that the kernel can drop counts as free."""
    with contextlib.suppress(OSError, ValueError):
        limit, used = (int((cgroup / name).read_text()) for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        return max(limit - used + int(stat.get("inactive_file", 0)), 0)
    return None


def default_jobs(
    num_tasks: int,
    bytes_each: int,
    meminfo: Path = Path("/proc/meminfo"),
    cgroup: Path = Path("/sys/fs/cgroup"),
) -> int:
    """At least 1, at most the tasks, the cores of this process, and what fits into available memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    available = available_bytes(meminfo, cgroup)
    fitting = cores if available is None else available // bytes_each
    return max(1, min(num_tasks, cores, fitting))
