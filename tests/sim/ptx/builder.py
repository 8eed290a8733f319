# SPDX-License-Identifier: Apache-2.0
"""Builds small PTX modules and runs them: the shared bench of the simulator's tests.

Responsible for headers, register declarations, loads and stores around the instruction under test. Not responsible for
expected values: reference.py and the tests are. With ATTNSMITH_TEST_PTXAS=1 every module is first assembled with ptxas,
which proves that the tests' PTX is legal; =only stops there.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attnsmith.tools import ptxsim

THREADS = 64
_LOAD_TYPES = {1: "u8", 2: "b16", 4: "b32", 8: "b64"}
_REGISTER_TYPES = {1: "b16", 2: "b16", 4: "b32", 8: "b64"}
_TEMPORARIES = """\
  .reg .pred %p<16>;
  .reg .b16 %h<64>;
  .reg .b32 %r<128>;
  .reg .f32 %f<64>;
  .reg .b64 %l<32>;
  .reg .f64 %d<16>;
"""


def module(entries: str, *, target: str = "sm_80", version: str = "8.8") -> str:
    """Complete PTX text around entries or globals."""
    return f".version {version}\n.target {target}\n.address_size 64\n\n{entries}\n"


def entry(
    body: str,
    params: Sequence[str] = ("u64 out",),
    *,
    name: str = "k",
    directives: str = "",
    globals_: str = "",
    target: str = "sm_80",
    version: str = "8.8",
) -> str:
    """A module of one kernel. `params` are like "u64 out": %out gets loaded (a pointer made global).

    The temporaries %p (pred), %h (16 bit), %r (32), %f (f32), %l (64), %d (f64) are declared; %t is threadIdx.x.
    """
    declared, loads = [], []
    for param in params:
        kind, param_name = param.split()
        register_kind = {"u64": "b64", "u32": "b32", "f32": "f32"}[kind]
        declared.append(f"  .param .{kind} p_{param_name}")
        loads.append(f"  .reg .{register_kind} %{param_name};\n  ld.param.{kind} %{param_name}, [p_{param_name}];")
        if kind == "u64":
            loads.append(f"  cvta.to.global.u64 %{param_name}, %{param_name};")
    lines = [f".visible .entry {name}(", ",\n".join(declared), f") {directives}", "{", _TEMPORARIES]
    lines += ["  .reg .b32 %t;\n  mov.u32 %t, %tid.x;", *loads, body, "  ret;", "}"]
    return module(globals_ + "\n" + "\n".join(lines), target=target, version=version)


def load(ptx: str) -> ptxsim.Module:
    """Loads a module; checks it with ptxas first if ATTNSMITH_TEST_PTXAS is set."""
    mode = os.environ.get("ATTNSMITH_TEST_PTXAS")
    if mode:
        assemble(ptx)
    if mode == "only":
        pytest.skip("ATTNSMITH_TEST_PTXAS=only: assembled, not simulated")
    return ptxsim.load(ptx)


def run(
    ptx: str, args: Sequence[Any] = (), grid: Any = 1, block: Any = 32, kernel: str = "k", **launch: Any
) -> ptxsim.Stats:
    """Loads and launches a module's kernel."""
    launch.setdefault("num_threads", 1)
    return load(ptx).launch(kernel, grid, block, list(args), **launch)


def run_words(ptx: str, count: int, *inputs: Any, dtype: Any = np.uint32, **launch: Any) -> np.ndarray:
    """Runs a kernel whose first parameter is an output of `count` elements; returns it."""
    out = np.zeros(count, dtype=dtype)
    run(ptx, [out, *inputs], **launch)
    return out


def elementwise(
    body: str,
    inputs: Mapping[str, np.ndarray],
    outputs: Mapping[str, Any],
    *,
    target: str = "sm_80",
    version: str = "8.8",
    declare: str = "",
    device: str = "a100",
) -> dict[str, np.ndarray]:
    """Runs `body` once per element: %NAME holds each input, what the body leaves in %NAME of each output comes back.

    Args:
        body: instructions; temporaries as in `entry`.
        inputs: equally long 1-D arrays; the item size picks the register (8-bit values live in 16-bit registers).
        outputs: name -> dtype.
    """
    arrays = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
    count = len(next(iter(arrays.values())))
    padded = -(-count // THREADS) * THREADS
    ptx = elementwise_ptx(
        body,
        {name: array.dtype.itemsize for name, array in arrays.items()},
        {name: np.dtype(dtype).itemsize for name, dtype in outputs.items()},
        target=target,
        version=version,
        declare=declare,
    )
    ins = [np.concatenate([array, np.repeat(array[:1], padded - count)]) for array in arrays.values()]
    outs = {name: np.zeros(padded, dtype=dtype) for name, dtype in outputs.items()}
    run(ptx, [*ins, *outs.values()], grid=padded // THREADS, block=THREADS, device=device)
    return {name: array[:count] for name, array in outs.items()}


def elementwise_ptx(
    body: str,
    inputs: Mapping[str, int],
    outputs: Mapping[str, int],
    *,
    target: str = "sm_80",
    version: str = "8.8",
    declare: str = "",
) -> str:
    """The PTX text behind `elementwise`; inputs and outputs give item sizes in bytes."""
    sizes = {**inputs, **outputs}
    lines = [".visible .entry k(", ",\n".join(f"  .param .u64 p_{name}" for name in sizes), ")", "{", _TEMPORARIES]
    lines += ["  .reg .b32 %t, %cta, %index;\n  .reg .b64 %addr, %step;", declare]
    lines += [f"  .reg .{_REGISTER_TYPES[size]} %{name};" for name, size in sizes.items()]
    lines += ["  mov.u32 %t, %tid.x;", "  mov.u32 %cta, %ctaid.x;", f"  mad.lo.u32 %index, %cta, {THREADS}, %t;"]

    def address(name: str, size: int) -> list[str]:
        return [
            f"  ld.param.u64 %addr, [p_{name}];",
            "  cvta.to.global.u64 %addr, %addr;",
            f"  mul.wide.u32 %step, %index, {size};",
            "  add.s64 %addr, %addr, %step;",
        ]

    for name, size in inputs.items():
        lines += [*address(name, size), f"  ld.global.{_LOAD_TYPES[size]} %{name}, [%addr];"]
    lines.append(body)
    for name, size in outputs.items():
        lines += [*address(name, size), f"  st.global.{_LOAD_TYPES[size]} [%addr], %{name};"]
    return module("\n".join([*lines, "  ret;", "}"]), target=target, version=version)


def assemble(ptx: str) -> None:
    """Fails unless ptxas accepts the module."""
    target = next(line.split()[1].rstrip(",") for line in ptx.splitlines() if line.startswith(".target"))
    command = [_ptxas(), f"-arch={target}", "--output-file", "/dev/null", "--input-as-string", ptx]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{ptx}"


@functools.cache
def _ptxas() -> str:
    site = Path(sysconfig.get_paths()["purelib"])
    return str(next(path for path in site.glob("nvidia/cu*/bin/ptxas")))


def aligned_zeros(count: int, dtype: Any, alignment: int = 256) -> np.ndarray:
    """Zeros whose first byte lies on a multiple of `alignment`, as device allocations do."""
    itemsize = np.dtype(dtype).itemsize
    storage = np.zeros(count * itemsize + alignment, np.uint8)
    start = -storage.ctypes.data % alignment
    return storage[start : start + count * itemsize].view(dtype)


def line_of(ptx: str, text: str) -> int:
    """Line number of the first line that contains `text`, from 1."""
    return next(number for number, line in enumerate(ptx.splitlines(), 1) if text in line)
