# SPDX-License-Identifier: Apache-2.0
"""What of attnsmith works on this machine: every part that was looked for, where it is, and what to do where it is not.

Looks, and loads NVRTC; builds nothing and installs nothing. Not responsible for finding anything: the modules that use
a part find it, and are asked here.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import shutil
import sys
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from attnsmith.codegen import toolchain
from attnsmith.codegen.cache import CACHES, default_root, folder_bytes
from attnsmith.codegen.cuda_roots import Surroundings
from attnsmith.codegen.errors import AttnsmithError
from attnsmith.codegen.nvcc import find_nvcc
from attnsmith.codegen.targets import target_for_capability


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One part."""

    part: str
    """Its name."""
    needed_for: str
    """What does not work without it."""
    is_required: bool
    """True for what JIT and the simulator need: without it `doctor` exits 1."""
    ok: bool
    """Whether it was found and is usable."""
    found: str
    """Version and place, or what is wrong."""
    do: str = ""
    """What to do; empty where nothing is to be done."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """All parts."""

    findings: tuple[Finding, ...]
    """In the order of use."""

    @property
    def ok(self) -> bool:
        """True where kernels can be compiled and simulated here."""
        return all(finding.ok for finding in self.findings if finding.is_required)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"ok": self.ok, "findings": [asdict(finding) for finding in self.findings]}


_Part = tuple[str, str, bool, Callable[[], str]]


def diagnose() -> Diagnosis:
    """Looks at every part. Never raises for a part that is missing."""
    parts: tuple[_Part, ...] = (
        ("python", "everything", True, _python),
        ("torch", "the ops, AOT builds", True, _torch),
        ("nvrtc", "JIT", True, _nvrtc),
        ("cuda headers", "JIT", True, _cuda_headers),
        ("cccl headers", "JIT", True, _cccl_headers),
        ("cutlass headers", "JIT and AOT", True, _cutlass_headers),
        ("cache", "keeping what was built", False, _cache),
        ("c++ compiler", "the launcher, the simulator, AOT", True, _host_compiler),
        ("ninja", "the launcher, AOT", True, _ninja),
        ("launcher", "calling kernels", False, lambda: _built("launcher", "built on the first call")),
        ("simulator", "running kernels without a GPU", False, lambda: _built("ptxsim", "built when first used")),
        ("nvcc", "AOT", False, _nvcc),
        ("cuobjdump", "loops in `attnsmith inspect`", False, _cuobjdump),
        ("gpu", "running kernels on a GPU", False, _gpu),
    )  # fmt: skip
    return Diagnosis(findings=tuple(_look(*part) for part in parts))


def _look(part: str, needed_for: str, is_required: bool, find: Callable[[], str]) -> Finding:
    try:
        return Finding(part=part, needed_for=needed_for, is_required=is_required, ok=True, found=find())
    except AttnsmithError as error:
        found = f"{error.asked}: {error.got}"
        return Finding(part=part, needed_for=needed_for, is_required=is_required, ok=False, found=found, do=error.do)


def _missing(asked: str, got: str, do: str, allowed: str = "a usable one") -> AttnsmithError:
    return AttnsmithError(asked=asked, got=got, allowed=allowed, do=do)


def _python() -> str:
    return f"{sys.version.split()[0]} ({sys.executable})"


def _torch() -> str:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise _missing("find torch", "not installed", "Run `pip install torch`.") from None
    if tuple(int(part) for part in version.split("+")[0].split(".")[:2]) < (2, 11):
        raise _missing("use torch", version, "Run `pip install -U torch`.", "2.11 or newer")
    return version


def _nvrtc() -> str:
    from attnsmith.codegen.compile.nvrtc import supported_targets

    found = toolchain.default_toolchain().nvrtc
    for capability in (80, 90):
        if capability not in supported_targets():
            got = f"NVRTC {found.version} that does not"
            raise _missing(f"compile for sm_{capability}", got, "Install another nvidia-cuda-nvrtc.")
    return f"{found.version} ({found.library}, from {found.origin})"


def _headers(headers: toolchain.Headers) -> str:
    return f"{headers.version} ({headers.path})"


def _cuda_headers() -> str:
    around = Surroundings.of_this_process()
    nvrtc = toolchain.find_nvrtc(around)
    headers = toolchain.find_cuda_headers(around, nvrtc.version)
    if headers.version.split(".")[0] != nvrtc.version.split(".")[0]:
        raise _missing(
            "match the CUDA headers with NVRTC",
            f"headers {headers.version} in {headers.path}, NVRTC {nvrtc.version}",
            f"Run `pip install 'nvidia-cuda-runtime=={'.'.join(nvrtc.version.split('.')[:2])}.*'`.",
        )
    return _headers(headers)


def _cccl_headers() -> str:
    around = Surroundings.of_this_process()
    cuda = toolchain.find_cuda_headers(around, toolchain.find_nvrtc(around).version)
    return _headers(toolchain.find_cccl_headers(around, cuda))


def _cutlass_headers() -> str:
    return _headers(toolchain.find_cutlass_headers(Surroundings.of_this_process()))


def _cache() -> str:
    root = default_root()
    probe = root / f"doctor-{uuid.uuid4().hex}"
    try:
        probe.mkdir(parents=True)
        (probe / "file").write_bytes(b"x" * 4096)
        free = shutil.disk_usage(root).free
    except OSError as error:
        raise _missing(f"write to {root}", str(error), "Set ATTNSMITH_CACHE_DIR to a writable folder.") from error
    finally:
        shutil.rmtree(probe, ignore_errors=True)
    used = sum(folder_bytes(root / name) for name in CACHES)
    if free < 200e6:
        raise _missing(f"keep builds in {root}", f"{free / 1e6:.0f} MB free", "Run `attnsmith clean`, or free space.")
    return f"{used / 1e6:.1f} MB used, {free / 1e9:.1f} GB free ({root})"


def _host_compiler() -> str:
    return str(toolchain.find_host_compiler())


def _ninja() -> str:
    from attnsmith.codegen.compile.ninja import find_ninja

    return str(find_ninja())


def _built(folder: str, otherwise: str) -> str:
    """Not built yet is no fault: it is built on demand."""
    libraries = sorted((default_root() / folder).glob("*/*.so"))
    return str(libraries[-1]) if libraries else f"not yet built: {otherwise}"


def _nvcc() -> str:
    rejected: list[str] = []
    found = find_nvcc(rejected=rejected)
    passed_over = f"; passed over: {'; '.join(rejected)}" if rejected else ""
    return f"{found.version} ({found.path}, from {found.origin}{passed_over})"


def _cuobjdump() -> str:
    return str(toolchain.find_disassembler("cuobjdump"))


def _gpu() -> str:
    """By the driver alone, so that no torch is loaded."""
    do = "Nothing, if this machine has no NVIDIA GPU: kernels run in the simulator (attnsmith.simulate)."
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise _missing("find an NVIDIA driver", "no libcuda.so.1", do) from None
    count, version = ctypes.c_int(), ctypes.c_int()
    status = driver.cuInit(0)
    if status != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        raise _missing("find a GPU", f"driver without one (cuInit returned {status})", do)
    driver.cuDriverGetVersion(ctypes.byref(version))
    devices = ", ".join(_device_name(driver, index) for index in range(count.value))
    return f"{devices} (driver for CUDA {version.value // 1000}.{version.value % 1000 // 10})"


def _device_name(driver: ctypes.CDLL, index: int) -> str:
    device, name = ctypes.c_int(), ctypes.create_string_buffer(128)
    major, minor = ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceGetAttribute(ctypes.byref(major), 75, device)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
    driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)  # ..._MINOR
    text = f"{name.value.decode(errors='replace')} sm_{major.value}{minor.value}"
    try:
        return f"{text}, kernels for {target_for_capability(major.value, minor.value)}"
    except AttnsmithError:
        return f"{text}, for which there are no kernels"
