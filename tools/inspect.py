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
from attnsmith.codegen.resources import num_threads, smem_bytes
from attnsmith.codegen.spec import Arch, KernelSpec
from attnsmith.codegen.toolchain import find_disassembler
from attnsmith.tools.sass import Instruction, Loop, count_opcodes, parse_kernels, tensor_loops

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Anchor:
    """What the kernel to beat has in its unmasked main loop (KERNELS.md: FlashAttention-2, bf16, CUDA 13.0)."""

    tile: str
    """block_m x block_n x warps."""
    instructions: int
    """Of the loop."""
    tensor: int
    """Of these, HMMA."""
    per_score: float
    """Non-tensor instructions per score; every iteration executes all of them, for its rescale is not skipped."""
    spill_bytes: str
    """Of the whole kernel, over its variants."""


ANCHORS: dict[tuple[Arch, int], Anchor] = {
    (Arch.SM80, 64): Anchor(tile="128x128x4", instructions=1146, tensor=256, per_score=7.0, spill_bytes="248-328"),
    (Arch.SM80, 128): Anchor(tile="128x64x4", instructions=910, tensor=256, per_score=10.2, spill_bytes="156-504"),
    (Arch.SM80, 256): Anchor(tile="128x64x8", instructions=728, tensor=256, per_score=14.8, spill_bytes="0-76"),
}
"""By arch and head dim; none was measured for the other head dims."""


@dataclass(frozen=True, kw_only=True)
class LoopFacts:
    """An innermost loop with tensor instructions, per thread and iteration."""

    start: int
    """Address in the kernel."""
    is_masked: bool
    """It compares or selects about once per score or more. The unmasked main loop does so for rows only."""
    instructions: int
    """All of them."""
    always: int
    """Without those behind a branch in the loop, such as a rescale that most iterations skip."""
    tensor: int
    """Tensor-core instructions."""
    per_tensor: float
    """Non-tensor instructions per tensor instruction."""
    per_score: float
    """Non-tensor instructions, all that the loop has, per score: divided by block_m * block_n / threads."""
    per_score_always: float
    """The same for those that every iteration executes: without those behind a branch, such as the skipped rescale."""
    spills: int
    """STL and LDL."""
    mix: dict[str, int]
    """Instructions by class."""


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
    """Per thread."""
    spill_bytes: int
    """Spill stores plus spill loads, as ptxas counts them: bytes per thread in the code, not per execution."""
    spill_store_bytes: int
    """Spill stores."""
    spill_load_bytes: int
    """Spill loads."""
    local_instructions: int
    """STL and LDL in the whole SASS: spills, and arrays that did not fit into registers."""
    smem_bytes: int
    """Dynamic (by the spec) plus static (by ptxas) shared memory per CTA."""
    remarks: tuple[str, ...]
    """ptxas's warnings and C75xx remarks."""
    loops: tuple[LoopFacts, ...]
    """By address."""
    anchor: Anchor | None
    """What to beat at this head dim."""
    seconds: float
    """CPU seconds of the compilation."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; `main_loop` repeats the claim that stands beside the anchor, None where no loop is known."""
        main = self.main_loop
        claim = main and {
            "start": main.start,
            "per_score_always": main.per_score_always,
            "per_score": main.per_score,
            "anchor_per_score": self.anchor.per_score if self.anchor else None,
        }
        return {**asdict(self), "main_loop": claim}

    @property
    def main_loop(self) -> LoopFacts | None:
        """The unmasked loop with the most tensor instructions."""
        unmasked = [loop for loop in self.loops if not loop.is_masked]
        return max(unmasked, key=lambda loop: loop.tensor, default=None)


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
    """Lines of a ptxas log that complain: warnings, and C75xx remarks (a serialized wgmma) whatever their level."""
    pattern = re.compile(r"\bwarning\b|\(C7\d{3}\)|Potential Performance Loss", re.IGNORECASE)
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


def loop_facts(loop: Loop, scores_per_thread: float) -> LoopFacts:
    """`scores_per_thread` is block_m * block_n / threads: the scores that a thread holds per iteration."""
    tensor = loop.num_tensor
    rest, rest_always = len(loop.body) - tensor, len(loop.always) - sum(i.is_tensor for i in loop.always)
    return LoopFacts(
        start=loop.start,
        is_masked=count_opcodes(loop.body, "FSEL", "SEL", "ISETP") >= scores_per_thread,
        instructions=len(loop.body),
        always=len(loop.always),
        tensor=tensor,
        per_tensor=round(rest / tensor, 2),
        per_score=round(rest / scores_per_thread, 2),
        per_score_always=round(rest_always / scores_per_thread, 2),
        spills=count_opcodes(loop.body, "STL", "LDL"),
        mix=loop.mix(),
    )


def kernel_facts(built: BuiltKernel, spec: KernelSpec, code: Sequence[Instruction]) -> KernelFacts:
    """The facts of one compiled kernel; `code` is empty where nothing could disassemble it."""
    ptxas = parse_ptxas(built.log)
    tile = spec.tile
    scores = tile.block_m * tile.block_n / num_threads(spec)
    return KernelFacts(
        kernel=spec.name,
        arch=spec.key.arch.value,
        op=spec.key.op.value,
        target=built.target,
        registers=ptxas["registers"],
        spill_bytes=ptxas["spill_store_bytes"] + ptxas["spill_load_bytes"],
        spill_store_bytes=ptxas["spill_store_bytes"],
        spill_load_bytes=ptxas["spill_load_bytes"],
        local_instructions=count_opcodes(code, "STL", "LDL"),
        smem_bytes=smem_bytes(spec) + ptxas["static_smem_bytes"],
        remarks=parse_remarks(built.log),
        loops=tuple(loop_facts(loop, scores) for loop in tensor_loops(list(code))),
        anchor=ANCHORS.get((spec.key.arch, spec.key.head_dim)),
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
