# SPDX-License-Identifier: Apache-2.0
"""The kernel table seen from Python: what is in it, what would serve a call, and the JIT that fills it on a miss.

Responsible for registering kernels with the launcher and for a miss that is never silent. Not responsible for the
per-call lookup (csrc/dispatch.cpp) or for which spec suits a problem (codegen/dispatch.py).
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnsmith import launcher
from attnsmith.capi import CApi, Problem
from attnsmith.codegen.compile.library import SCHEDULER_CODES
from attnsmith.codegen.dispatch import FIELDS, candidate_specs, entry, unpack_key
from attnsmith.codegen.limits import TARGETS
from attnsmith.codegen.render import has_template
from attnsmith.codegen.spec import Arch, DType, KernelSpec, Mask, Op, ProblemKey, Scheduler, TileConfig, parse_enum
from attnsmith.codegen.targets import runs_on
from attnsmith.errors import DispatchError
from attnsmith.progress import visible_progress

if TYPE_CHECKING:
    from attnsmith.codegen.build import BuiltKernel

_LOG = logging.getLogger(__name__)

DTYPE_OF_CODE = {code: DType(value) for field in FIELDS if field.name == "dtype" for value, code in field.values}
"""Dtype codes of the packed key that the launcher passes."""

_SCHEDULERS = {code: Scheduler(value) for value, code in SCHEDULER_CODES.items()}

_pending = threading.local()
"""The exception of this thread's last miss, until the op's caller raises it."""


@dataclass(frozen=True, kw_only=True)
class DispatchEntry:
    """One row of the dispatch table."""

    kernel: str
    """Name."""
    key: ProblemKey
    """What it serves."""
    tile: TileConfig
    """How it runs: the tile and what sizes its grid. Pipeline options are in the kernel's name alone."""
    ctas_per_sm: int
    """CTAs that one multiprocessor holds at once."""
    target: str
    """What it was compiled for."""
    source: str
    """`built-in`, `AOT` or `JIT`."""
    smem_bytes: int
    """Dynamic shared memory per CTA."""
    num_threads: int
    """Threads per CTA."""
    priority: int
    """Among entries of one key, lower is tried first."""
    max_seqlen_q: int | None
    """The entry is preferred up to this seqlen_q, and not chosen beyond it; None: any length."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: key and tile are dicts, enums their values."""
        row = asdict(self)
        for part in ("key", "tile"):
            row[part] = {name: getattr(value, "value", value) for name, value in row[part].items()}
        return row


def dispatch_table() -> list[DispatchEntry]:
    """Every kernel that this process can launch now, in order of registration. Loads (and may build) the launcher."""
    return [_to_entry(row) for row in launcher.load().dispatch_table()]


def _to_entry(row: dict[str, Any]) -> DispatchEntry:
    tile = {name: row[name] for name in ("block_m", "block_n", "num_warps", "num_stages", "cluster_size")}
    return DispatchEntry(
        kernel=row["kernel"],
        key=unpack_key(row["packed_key"]),
        tile=TileConfig(**tile, scheduler=_SCHEDULERS[row["scheduler"]]),
        ctas_per_sm=row["ctas_per_sm"],
        target=row["target"],
        source=row["source"],
        smem_bytes=row["smem_bytes"],
        num_threads=row["num_threads"],
        priority=row["priority"],
        max_seqlen_q=row["max_seqlen_q"] or None,
    )


def register_kernel(built: BuiltKernel, *, source: str = "JIT", priority: int | None = None) -> None:
    """Adds a kernel of codegen.build.build_kernel to the table; a kernel of the same name and target is replaced.

    Args:
        built: a kernel with its spec.
        source: `built-in`, `AOT` or `JIT`, for the table.
        priority: position among kernels of one key, lower first; default: its place among the default tiles. A negative
            one pins the kernel: it serves every length, and nothing better is compiled.
    """
    _register(launcher.load(), built, source, priority)


def _register(api: CApi, built: BuiltKernel, source: str, priority: int | None = None) -> None:
    if built.spec is None:
        raise DispatchError(
            asked=f"register {built.name}", got="a kernel without a spec", allowed="kernels that a spec rendered",
            do="Build it with attnsmith.codegen.build.build_kernel.",
        )  # fmt: skip
    row = entry(built.spec, built.target)
    if priority is not None:
        row["priority"] = priority
    api.register_kernel(row, source=source, cubin=built.cubin, ptx=built.ptx.encode())


def attach(api: CApi) -> None:
    """Connects a freshly loaded launcher: the miss handler, then the AOT library that ATTNSMITH_LIBRARY names."""
    api.set_miss_handler(lambda *arguments: _on_miss(api, *arguments))
    named = os.environ.get("ATTNSMITH_LIBRARY")
    if named:
        _load_library(api, Path(named))


def load_library(path: str | Path) -> int:
    """Registers every kernel of an AOT library that `attnsmith build --aot` made; returns how many.

    Raises:
        CacheError: the file is not such a library.
    """
    return _load_library(launcher.load(), Path(path))


def _load_library(api: CApi, path: Path) -> int:
    from attnsmith.codegen.compile.library import read_library

    count = 0
    for desc in read_library(path):
        api.register_desc(desc)
        count += 1
    return count


def forget_pending() -> None:
    """Before an op: what an earlier call left (one that nobody asked for with `raise_pending`) is not this call's."""
    _pending.error = None


def raise_pending(cause: BaseException) -> None:
    """Raises the exception of the calling thread's last miss, if there is one."""
    error: BaseException | None = getattr(_pending, "error", None)
    if error is not None:
        _pending.error = None
        raise error from (cause if isinstance(error, Exception) else None)


def _on_miss(api: CApi, asked: Any, message: Any, capacity: int) -> int:
    """Called by the launcher in the thread of the op. Nothing may escape: the error waits for `raise_pending`."""
    problem: Problem = asked.contents
    try:
        _build_best(api, problem)
    except BaseException as error:
        if problem.has_usable and isinstance(error, Exception):
            _LOG.warning("%s (another kernel of the table serves the call)", error)
            return 0
        _pending.error = error
        text = str(error).encode()[: capacity - 1] + b"\0"
        ctypes.memmove(message, text, len(text))
        return 1
    return 0


def _build_best(api: CApi, problem: Problem) -> None:
    from attnsmith.codegen.build import build_kernel

    target = compile_target(problem.target.decode(), can_use_tma=bool(problem.can_use_tma))
    best = candidate_specs(
        dtype=DTYPE_OF_CODE[problem.dtype],
        out_dtype=DTYPE_OF_CODE[problem.out_dtype],
        head_dim=problem.head_dim,
        head_dim_v=problem.head_dim_v,
        mask=Mask.CAUSAL if problem.is_causal else Mask.FULL,
        target=target,
        seqlen_q=problem.seqlen_q,
        v_is_col_major=bool(problem.v_is_col_major),
        packs_gqa=bool(problem.packs_gqa),
    )[0]
    if any(row["kernel"] == best.name and row["target"] == target for row in api.dispatch_table()):
        return
    if not is_jit_enabled():
        raise _no_kernel(api, best, target, problem.head_dim, problem.head_dim_v)
    with visible_progress():
        built = build_kernel(best, target)
    _register(api, built, "JIT")


def is_jit_enabled() -> bool:
    """False iff ATTNSMITH_JIT is 0.

    Raises:
        DispatchError: it is neither 0 nor 1, such as "false".
    """
    value = os.environ.get("ATTNSMITH_JIT") or "1"
    if value not in ("0", "1"):
        raise DispatchError(
            asked="read the environment variable ATTNSMITH_JIT", got=repr(value), allowed="0 or 1",
            do="Set it to 0 to compile nothing at run time, or unset it.",
        )  # fmt: skip
    return value == "1"


def compile_target(device_target: str, *, can_use_tma: bool = True) -> str:
    """The best target of ours whose code runs on a device: same major version, no newer minor, a family that exists.

    Args:
        device_target: its compute capability, `sm_90`.
        can_use_tma: False leaves out families whose kernels load tensors by TMA.

    Raises:
        DispatchError: there is none.
    """
    capability = _capability(device_target)
    fitting = [target for target in TARGETS if runs_on(target, capability) and _is_usable(target, can_use_tma)]
    if not fitting:
        raise DispatchError(
            asked="run attention on this GPU",
            got=f"compute capability {capability[0]}.{capability[1]}",
            allowed=f"GPUs that run one of {', '.join(TARGETS)}",
            do="Use such a GPU, or CPU tensors inside attnsmith.simulate(...).",
        )
    return max(fitting, key=lambda target: (_capability(target), target))


def _capability(target: str) -> tuple[int, int]:
    """`sm_90a` -> (9, 0)."""
    number = int(target.removeprefix("sm_").rstrip("a"))
    return number // 10, number % 10


def _is_usable(target: str, can_use_tma: bool) -> bool:
    arch = TARGETS[target].archs[0]
    return has_template(Op.FWD, arch) and (can_use_tma or arch is not Arch.SM90)


def build_command(spec: KernelSpec, target: str, head_dim: int, head_dim_v: int) -> str:
    """The command that builds `spec` ahead of time for a problem's head dims: the kernel's own would not ask for one
    that pads."""
    key = spec.key
    command = f"attnsmith build --aot --arch {target} --dtype {key.dtype.value} --head-dim {head_dim}"
    command += f" --mask {key.mask.value}"
    if head_dim_v != head_dim:
        command += f" --head-dim-v {head_dim_v}"
    if key.dtype.is_fp8 and key.out_dtype is not None:
        command += f" --out-dtype {key.out_dtype.value}"
    return command + " --v-col-major" * key.v_is_col_major + " --pack-gqa" * key.packs_gqa


def _no_kernel(api: CApi, spec: KernelSpec, target: str, head_dim: int, head_dim_v: int) -> DispatchError:
    names = [entry.kernel for entry in map(_to_entry, api.dispatch_table()) if entry.target == target]
    nearest = sorted(names, key=lambda name: -_common_parts(name, spec.name))[:3]
    return DispatchError(
        asked=f"run {spec.name} on {target} with ATTNSMITH_JIT=0",
        got="no such kernel in the dispatch table",
        allowed=f"kernels of the table; nearest: {', '.join(nearest) or 'none, the table is empty'}",
        do=f"Run `{build_command(spec, target, head_dim, head_dim_v)}` and load its library "
        "(attnsmith.load_library, or ATTNSMITH_LIBRARY), or unset ATTNSMITH_JIT.",
    )


def _common_parts(name: str, other: str) -> int:
    return len(set(name.split("_")) & set(other.split("_")))


def explain(
    *,
    dtype: str = "bf16",
    head_dim: int = 128,
    head_dim_v: int | None = None,
    causal: bool = False,
    seqlen_q: int | None = None,
    device: str | None = None,
    out_dtype: str | None = None,
    pack_gqa: bool = False,
    v_is_col_major: bool = False,
) -> dict[str, Any]:
    """Which kernel serves a problem, why, what else could, and which of them this process has loaded.

    Args:
        dtype: fp16, bf16, e4m3 or e5m2.
        head_dim, head_dim_v: as a caller would pass them, 1 to 256.
        causal: bottom-right aligned causal mask.
        seqlen_q: query rows; None is long.
        device: a simulated GPU, a target, or `cuda`; default: the simulation in effect, else the GPU, else a100.
        out_dtype: of an 8-bit dtype, fp16 or bf16; None is bf16.
        pack_gqa: tiles of a group's query heads (on sm_90a; elsewhere it asks for nothing).
        v_is_col_major: v's keys are contiguous; 8-bit dtypes only.

    Returns:
        JSON-ready: `kernel`, `why`, `alternatives` as `attnsmith explain --json`, and `loaded`: names in the table.

    Raises:
        SpecError (a ValueError): no kernel can serve the problem.
    """
    from attnsmith.tools.explain import Problem, resolve_target
    from attnsmith.tools.explain import explain as explain_problem

    problem = Problem(
        dtype=parse_enum(DType, dtype),
        head_dim=head_dim,
        head_dim_v=head_dim if head_dim_v is None else head_dim_v,
        mask=Mask.CAUSAL if causal and seqlen_q != 1 else Mask.FULL,
        seqlen_q=seqlen_q,
        out_dtype=None if out_dtype is None else parse_enum(DType, out_dtype),
        v_is_col_major=v_is_col_major,
        packs_gqa=pack_gqa,
    )
    facts = explain_problem(problem, resolve_target(device or _default_device()))
    api = launcher.loaded()
    table = [] if api is None else [_to_entry(row) for row in api.dispatch_table()]
    wanted = {facts["kernel"]["name"], *(row["name"] for row in facts["alternatives"])}
    loaded = [row.kernel for row in table if row.kernel in wanted and row.target == facts["target"]]
    return {**facts, "loaded": loaded}


def _default_device() -> str:
    import torch
    from attnsmith import simulation

    options = simulation.current()
    if options is not None:
        return options.device
    return "cuda" if torch.cuda.is_available() else "a100"
