# SPDX-License-Identifier: Apache-2.0
"""How many compilations may run at once on this machine: cores and free memory. Not responsible for running them."""

from __future__ import annotations

import os
from pathlib import Path

NVRTC_BYTES = 1_200_000_000
"""Peak of one NVRTC compilation of a CuTe attention kernel (0.9 GB measured with CUDA 13.0), with a margin."""

NVCC_BYTES = 2_500_000_000
"""Peak of one nvcc with its cicc, for a translation unit of a few kernels."""


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Memory that new processes can have without swapping; None where the system does not say."""
    try:
        for line in meminfo.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def default_jobs(num_tasks: int, bytes_each: int, meminfo: Path = Path("/proc/meminfo")) -> int:
    """At least 1, at most the tasks, the cores of this process, and what fits into available memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    available = available_bytes(meminfo)
    fitting = cores if available is None else available // bytes_each
    return max(1, min(num_tasks, cores, fitting))
