# SPDX-License-Identifier: Apache-2.0
"""What the compiler made of a kernel: registers, spills, shared memory, remarks, and the loops that use tensor cores.

Facts come from ptxas's log and from the cubin's SASS; KERNELS.md's anchors stand beside them. Not responsible for
compiling (codegen.build) or for reading SASS (sass.py).
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnsmith.codegen.build import BuiltKernel, build_kernels
from attnsmith.codegen.cache import KernelCache
from attnsmith.codegen.errors import ToolchainError
from attnsmith.codegen.resources import WARP_SIZE, entry_registers, smem_bytes, target_limits
from attnsmith.codegen.spec import Arch, KernelSpec
from attnsmith.codegen.toolchain import find_disassembler
from attnsmith.tools.anchors import Anchor, anchor_of
from attnsmith.tools.sass import Instruction, Loop, class_counts, count_opcodes, parse_kernels, tensor_loops

_LOG = logging.getLogger(__name__)


SPLIT_CLASSES = {"ffma": "scale", "mufu": "exp", "fmnmx": "max", "fadd": "sum", "cvt": "cvt", "fmul": "rescale"}
"""SASS class -> what the anchors' table calls it; every other non-tensor instruction is "other"."""

HMMA = ("HMMA", "QMMA", "IMMA")
"""Tensor instructions of one warp, which cannot use Hopper's tensor cores fully."""


@dataclass(frozen=True, kw_only=True)
class LoopFacts:
    """An innermost loop with tensor instructions, per thread and iteration."""

    start: int
    """Address in the kernel."""
    is_masked: bool
    """It compares or selects about once per score or more. The unmasked main loop does so for rows only."""
    key_blocks: float
    """Key blocks of one iteration by its multiply-adds: 1, or more where the compiler unrolled the loop."""
    instructions: int
    """All of them."""
    always: int
    """Of the cheapest iteration, without those behind a branch, such as a rescale that most iterations skip."""
    tensor: int
    """Tensor-core instructions: HMMA on SM80, HGMMA and QGMMA on SM90."""
    hmma: int
    """Of these HMMA, QMMA and IMMA: none in an SM90 kernel."""
    per_tensor: float
    """Non-tensor instructions per tensor instruction."""
    per_score: float
    """Non-tensor instructions, all that the loop has, per score: divided by key_blocks * block_m * block_n / threads
    that compute."""
    per_score_always: float
    """The same for the cheapest iteration: without those behind a branch, such as the skipped rescale."""
    spills: int
    """STL and LDL."""
    mix: dict[str, int]
    """Instructions by class."""
    always_mix: dict[str, int]
    """Those of the cheapest iteration by class."""
    split: dict[str, int]
    """Non-tensor instructions of the cheapest iteration as the anchors' table splits them."""


@dataclass(frozen=True, kw_only=True)
class KernelFacts:
    """One kernel. `to_dict` is what `attnsmith inspect --json` prints."""

    kernel: str
    """Name."""
    arch: str
    """Kernel family."""
    op: str
    """Operation."""
    target: str
    """Compile target."""
    registers: int
    """Per thread, at entry: an SM90 kernel's setmaxnreg moves them later."""
    registers_allowed: int
    """At entry, so that as many CTAs fit an SM as the spec means."""
    spill_bytes: int
    """Spill stores plus spill loads, as ptxas counts them: bytes per thread in the code, not per execution."""
    spill_store_bytes: int
    """Spill stores."""
    spill_load_bytes: int
    """Spill loads."""
    local_instructions: int
    """STL and LDL in the whole SASS: spills, and arrays that did not fit into registers."""
    tensor_instructions: int
    """HMMA, HGMMA and QGMMA in the whole SASS."""
    hmma_instructions: int
    """Of these HMMA, QMMA and IMMA."""
    smem_bytes: int
    """Dynamic (by the spec) plus static (by ptxas) shared memory per CTA."""
    remarks: tuple[str, ...]
    """ptxas's warnings and C75xx remarks."""
    loops: tuple[LoopFacts, ...]
    """By address."""
    anchor: Anchor | None
    """What to beat for this dtype, head dim and mask."""
    seconds: float
    """CPU seconds of the compilation."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; `main_loop` repeats the claim that stands beside the anchor, None where no loop is known."""
        main = self.main_loop
        claim = main and {
            "start": main.start,
            "tensor": main.tensor,
            "hmma": main.hmma,
            "per_score_always": main.per_score_always,
            "per_score": main.per_score,
            "anchor_per_score": self.anchor.per_score if self.anchor else None,
            "split": main.split,
            "anchor_split": self.anchor.split if self.anchor else None,
        }
        return {**asdict(self), "main_loop": claim, "faults": list(self.faults)}

    @property
    def main_loop(self) -> LoopFacts | None:
        """The unmasked loop with the most tensor instructions, of equal ones the longest: warpgroups may have their
        own copies of it."""
        unmasked = [loop for loop in self.loops if not loop.is_masked]
        return max(unmasked, key=lambda loop: (loop.tensor, loop.per_score_always), default=None)

    @property
    def faults(self) -> tuple[str, ...]:
        """What of the compiled kernel is not as it must be, in words; empty for a good one."""
        main = self.main_loop
        found = [
            (self.spill_bytes > 0, f"{self.spill_bytes} bytes spilled"),
            (self.registers > self.registers_allowed, f"{self.registers} registers, allowed {self.registers_allowed}"),
            (bool(self.remarks), f"{len(self.remarks)} remarks of ptxas"),
            (self.arch == Arch.SM90.value and self.hmma_instructions > 0, f"{self.hmma_instructions} HMMA on SM90"),
        ]
        if self.loops:
            found.append((main is None, "no unmasked loop"))
        if main and self.anchor:
            text = f"{main.per_score_always} instructions per score, anchor {self.anchor.per_score}"
            found.append((main.per_score_always > self.anchor.per_score, text))
        return tuple(text for is_so, text in found if is_so)


def parse_ptxas(log: str) -> dict[str, int]:
    """registers, spill_store_bytes, spill_load_bytes, static_smem_bytes from the -v log of one kernel; 0 if absent."""
    patterns = {
        "registers": r"Used (\d+) registers",
        "spill_store_bytes": r"(\d+) bytes spill stores",
        "spill_load_bytes": r"(\d+) bytes spill loads",
        "static_smem_bytes": r"(\d+) bytes smem",
    }
    found = {name: re.search(pattern, log) for name, pattern in patterns.items()}
    return {name: int(match.group(1)) if match else 0 for name, match in found.items()}


def parse_remarks(log: str) -> tuple[str, ...]:
    """Lines of NVRTC's or nvcc's log in which ptxas complains: warnings, and whatever their level C75xx remarks (wgmma
    serialized, arrive injected) and a setmaxnreg that is ignored. Warnings about C++ are not about the code."""
    pattern = re.compile(
        r"^\s*(ptxas|nvlink)\b.*\bwarning\b|\(C7\d{3}\)|Potential Performance Loss|setmaxnreg.*ignored", re.IGNORECASE
    )
    return tuple(dict.fromkeys(line.strip() for line in log.splitlines() if pattern.search(line)))


def disassemble(cubin: bytes, cuobjdump: Path) -> list[tuple[str, list[Instruction]]]:
    """The kernels of a cubin. Raises ToolchainError where cuobjdump fails."""
    with tempfile.TemporaryDirectory(prefix="attnsmith-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        try:
            run = subprocess.run(
                [str(cuobjdump), "--dump-sass", str(path)], capture_output=True, text=True, timeout=300, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise ToolchainError(
                asked=f"disassemble with {cuobjdump}",
                got=str(getattr(error, "stderr", None) or error).strip()[-300:],
                allowed="a cuobjdump as new as the compiler",
                do="Set ATTNSMITH_CUOBJDUMP to another one.",
            ) from error
    return list(parse_kernels(run.stdout))


def key_block_macs(spec: KernelSpec) -> float:
    """Multiply-adds of the two products for one key block, of what one SASS instruction speaks for: a warp (SM80) or a
    warpgroup (SM90)."""
    key, tile = spec.key, spec.tile
    instruction_warps = 4 if key.arch is Arch.SM90 else 1
    width = key.head_dim + key.head_dim_v
    return tile.block_m * tile.block_n * width * instruction_warps / tile.num_warps


def loop_facts(loop: Loop, spec: KernelSpec) -> LoopFacts:
    """Scores of an iteration are block_m * block_n / threads that compute, for every key block that it works on."""
    tile = spec.tile
    key_blocks = sum(i.macs for i in loop.always) / key_block_macs(spec)
    scores = (key_blocks or 1.0) * tile.block_m * tile.block_n / (WARP_SIZE * tile.num_warps)
    rest = [i for i in loop.body if not i.is_tensor]
    rest_always = [i for i in loop.always if not i.is_tensor]
    return LoopFacts(
        start=loop.start,
        is_masked=count_opcodes(loop.always, "FSEL", "SEL", "ISETP") >= scores,
        key_blocks=round(key_blocks, 2),
        instructions=len(loop.body),
        always=len(loop.always),
        tensor=loop.num_tensor,
        hmma=count_opcodes(loop.body, *HMMA),
        per_tensor=round(len(rest) / loop.num_tensor, 2),
        per_score=round(len(rest) / scores, 2),
        per_score_always=round(len(rest_always) / scores, 2),
        spills=count_opcodes(loop.body, "STL", "LDL"),
        mix=loop.mix(),
        always_mix=class_counts(loop.always),
        split=split_of(rest_always),
    )


def split_of(code: Sequence[Instruction]) -> dict[str, int]:
    """Non-tensor instructions by what the anchors' table calls them; their sum is all of them."""
    counts = class_counts(code)
    split = {name: counts.pop(class_name, 0) for class_name, name in SPLIT_CLASSES.items()}
    return {**split, "other": sum(counts.values())}


def registers_allowed(spec: KernelSpec, target: str) -> int:
    """Registers per thread at entry: all that a thread can address, and on SM90 what the CTA's launch has for each."""
    most = target_limits(target).max_registers_per_thread
    return entry_registers(spec) if spec.key.arch is Arch.SM90 else most


def kernel_facts(built: BuiltKernel, spec: KernelSpec, code: Sequence[Instruction]) -> KernelFacts:
    """The facts of one compiled kernel; `code` is empty where nothing could disassemble it."""
    ptxas = parse_ptxas(built.log)
    return KernelFacts(
        kernel=spec.name,
        arch=spec.key.arch.value,
        op=spec.key.op.value,
        target=built.target,
        registers=ptxas["registers"],
        registers_allowed=registers_allowed(spec, built.target),
        spill_bytes=ptxas["spill_store_bytes"] + ptxas["spill_load_bytes"],
        spill_store_bytes=ptxas["spill_store_bytes"],
        spill_load_bytes=ptxas["spill_load_bytes"],
        local_instructions=count_opcodes(code, "STL", "LDL"),
        tensor_instructions=sum(i.is_tensor for i in code),
        hmma_instructions=count_opcodes(code, *HMMA),
        smem_bytes=smem_bytes(spec) + ptxas["static_smem_bytes"],
        remarks=parse_remarks(built.log),
        loops=tuple(loop_facts(loop, spec) for loop in tensor_loops(list(code))),
        anchor=anchor_of(spec),
        seconds=round(built.seconds, 2),
    )


def find_cuobjdump() -> Path | None:
    """None, with a warning, where there is none: registers and spills are known from the log all the same."""
    try:
        path: Path = find_disassembler("cuobjdump")
    except ToolchainError as error:
        _LOG.warning("%s (no loops are shown)", error)
        return None
    return path


def inspect_kernels(
    specs: Sequence[KernelSpec],
    target: str,
    *,
    jobs: int | None = None,
    cache: KernelCache | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[KernelFacts]:
    """Builds `specs` (or finds them in the cache) and reports on each, in their order. Raises as build_kernels."""
    cuobjdump = find_cuobjdump()
    built = build_kernels(specs, target, jobs=jobs, cache=cache, progress=progress)

    def facts_of(spec: KernelSpec, kernel: BuiltKernel) -> KernelFacts:
        code = dict(disassemble(kernel.cubin, cuobjdump)).get(spec.name, []) if cuobjdump else []
        return kernel_facts(kernel, spec, code)

    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        return list(pool.map(facts_of, specs, built))
