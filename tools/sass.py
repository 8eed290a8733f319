# SPDX-License-Identifier: Apache-2.0
"""Reads disassembled GPU code: kernels, their control flow, their loops and what instructions those consist of.

Text in, facts out; runs no tool. Not responsible for what the facts should be (inspect.py, KERNELS.md's anchors).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

TENSOR_CLASSES = ("wgmma", "mma")

_CLASSES: dict[str, tuple[str, ...]] = {
    "wgmma": ("HGMMA", "QGMMA", "IGMMA"),
    "mma": ("HMMA", "QMMA", "IMMA"),
    "mufu": ("MUFU",),
    "ffma": ("FFMA", "FFMA2"),
    "fmul": ("FMUL", "FMUL2"),
    "fadd": ("FADD", "FADD2"),
    "fmnmx": ("FMNMX", "FMNMX3"),
    "cvt": ("F2FP", "F2F", "F2I", "I2F", "I2FP", "FRND"),
    "half": ("HADD2", "HMUL2", "HFMA2", "HMNMX2", "HSETP2", "HSET2"),
    "spill": ("STL", "LDL"),
    "ldmatrix": ("LDSM",),
    "stmatrix": ("STSM",),
    "shared": ("LDS", "STS", "ATOMS"),
    "cp_async": ("LDGSTS",),
    "tma": ("UTMALDG", "UTMASTG", "UTMAREDG", "UTMAPF", "UTMACMDFLUSH", "UTMACCTL", "UBLKCP", "UBLKRED", "UBLKPF"),
    "global": ("LDG", "STG", "RED", "ATOMG", "ATOM", "CCTL"),
    "sync": ("BAR", "SYNCS", "WARPGROUP", "WARPSYNC", "DEPBAR", "LDGDEPBAR", "BSSY", "BSYNC", "BMOV", "ELECT", "FENCE",
             "MEMBAR", "ERRBAR", "CGAERRBAR", "UCGABAR_ARV", "UCGABAR_WAIT", "NANOSLEEP", "YIELD"),
    "setmaxnreg": ("USETMAXREG",),
    "shuffle": ("SHFL", "VOTE", "VOTEU", "REDUX"),
    "select": ("FSEL", "SEL", "FSETP", "ISETP", "PLOP3", "FCHK"),
    "branch": ("BRA", "BRX", "EXIT", "JMP", "CALL", "RET", "BREAK"),
    "move": ("MOV", "S2R", "CS2R", "R2P", "P2R"),
    "constant": ("LDC", "LDCU", "ULDC"),
    "integer": ("IMAD", "IADD3", "IADD", "LEA", "LOP3", "SHF", "PRMT", "IMNMX", "IABS", "VIADD", "VIMNMX", "ISCADD"),
    "uniform": ("R2UR", "S2UR", "CS2UR", "UMOV", "UIADD3", "UIMAD", "ULEA", "ULOP3", "USHF", "UISETP", "USEL", "UPRMT",
                "UPLOP3", "UP2UR", "UR2UP", "UFLO", "UPOPC", "USGXT", "UBMSK", "UVIADD", "UVIMNMX"),
}  # fmt: skip
_CLASS_OF = {opcode: name for name, opcodes in _CLASSES.items() for opcode in opcodes}

_PACKED_SHAPES = {"16816": 16 * 8 * 16, "1688": 16 * 8 * 8, "16832": 16 * 8 * 32}
"""M, N, K written together, as HMMA and QMMA have them."""


@dataclass(frozen=True)
class Instruction:
    """One SASS instruction."""

    address: int
    """In bytes, from the kernel's start."""
    text: str
    """Predicate, opcode and operands."""

    @property
    def opcode(self) -> str:
        """With modifiers, without predicate: "HMMA.16816.F32"."""
        return re.sub(r"^@!?U?P\w+\s+", "", self.text).split(None, 1)[0]

    @property
    def instruction_class(self) -> str:
        """A row of the mix: "mma", "ffma", ..., "other"."""
        return _CLASS_OF.get(self.opcode.split(".", 1)[0], "other")

    @property
    def is_tensor(self) -> bool:
        """True for instructions of the tensor cores."""
        return self.instruction_class in TENSOR_CLASSES

    @property
    def macs(self) -> int:
        """Multiply-adds of a tensor instruction's shape: HGMMA.64x128x16 has M * N * K of them; 0 for others."""
        if not self.is_tensor:
            return 0
        shape = re.search(r"\.(\d+)x(\d+)x(\d+)", self.opcode)
        if shape:
            return int(shape[1]) * int(shape[2]) * int(shape[3])
        return next((macs for text, macs in _PACKED_SHAPES.items() if f".{text}" in self.opcode), 0)

    @property
    def branch_target(self) -> int | None:
        """Address that it may jump to."""
        match = re.search(r"\b(?:BRA|JMP)\b.*\b0x([0-9a-f]+)$", self.text)
        return int(match.group(1), 16) if match and not self.text.startswith("@!PT") else None

    @property
    def falls_through(self) -> bool:
        """True where the next instruction may follow."""
        if re.match(r"@(?!PT\b)", self.text):
            return True
        is_plain_jump = re.fullmatch(r"(?:BRA|JMP)(?:\.\w+)* 0x[0-9a-f]+", self.text)
        return not (is_plain_jump or self.opcode.split(".", 1)[0] in ("EXIT", "RET"))


@dataclass(frozen=True)
class Loop:
    """A natural loop of a kernel."""

    start: int
    """Address of its first instruction."""
    body: tuple[Instruction, ...]
    """All its instructions, inner loops and rarely taken paths included."""
    always: tuple[Instruction, ...]
    """Those of the cheapest iteration that does all the tensor work: the rest is behind a branch that can skip it, such
    as the rescale, or a wait that has to wait."""

    @property
    def num_tensor(self) -> int:
        """Tensor instructions of the body."""
        return sum(instruction.is_tensor for instruction in self.body)

    def mix(self) -> dict[str, int]:
        """Instructions of the body by class, most frequent first."""
        return class_counts(self.body)


def parse_kernels(text: str) -> Iterator[tuple[str, list[Instruction]]]:
    """Name and instructions of every kernel in the output of `cuobjdump --dump-sass`."""
    name: str | None = None
    code: list[Instruction] = []
    for line in text.splitlines():
        match = re.match(r"\s*Function : (\S+)", line)
        if match:
            if name:
                yield name, code
            name, code = match.group(1), []
            continue
        match = re.match(r"\s*/\*([0-9a-f]{4,6})\*/\s+(.*?)\s*;", line)
        if match:
            code.append(Instruction(int(match.group(1), 16), " ".join(match.group(2).split())))
    if name:
        yield name, code


# Control flow


class _Flow:
    """Basic blocks as index ranges into the code, their edges and dominators."""

    def __init__(self, code: list[Instruction]) -> None:
        self.code = code
        index_of = {instruction.address: index for index, instruction in enumerate(code)}
        targets = [index_of.get(target) if (target := i.branch_target) is not None else None for i in code]
        starts = {0, *(target for target in targets if target is not None)}
        starts |= {k + 1 for k, i in enumerate(code[:-1]) if targets[k] is not None or not i.falls_through}
        self.starts = sorted(starts)
        block_of = {start: block for block, start in enumerate(self.starts)}
        self.ends = [*self.starts[1:], len(code)]
        self.successors: list[list[int]] = []
        for end in self.ends:
            follows = [block_of[targets[end - 1]]] if targets[end - 1] is not None else []  # type: ignore[index]
            if code[end - 1].falls_through and end < len(code):
                follows.append(block_of[end])
            self.successors.append(follows)
        self.predecessors: list[list[int]] = [[] for _ in self.starts]
        for block, follows in enumerate(self.successors):
            for other in follows:
                self.predecessors[other].append(block)
        self.dominators = self._dominators()

    def _dominators(self) -> list[set[int]]:
        """Of each reachable block, itself included; empty for an unreachable one."""
        order = self._reverse_postorder()
        dominators: list[set[int]] = [set() for _ in self.starts]
        everything = set(order)
        for block in order:
            dominators[block] = {0} if block == 0 else everything
        is_changing = True
        while is_changing:
            is_changing = False
            for block in order[1:]:
                known = [dominators[other] for other in self.predecessors[block] if dominators[other]]
                new = set.intersection(*known) | {block} if known else {block}
                if new != dominators[block]:
                    dominators[block], is_changing = new, True
        return dominators

    def _reverse_postorder(self) -> list[int]:
        seen, order = {0}, []
        stack = [(0, iter(self.successors[0]))]
        while stack:
            block, follows = stack[-1]
            unseen = next((other for other in follows if other not in seen), None)
            if unseen is None:
                order.append(block)
                stack.pop()
            else:
                seen.add(unseen)
                stack.append((unseen, iter(self.successors[unseen])))
        return order[::-1]

    def natural_loops(self) -> dict[int, tuple[set[int], set[int]]]:
        """Header -> (blocks, latches): back edges to one header make one loop."""
        loops: dict[int, tuple[set[int], set[int]]] = {}
        for latch, follows in enumerate(self.successors):
            for header in follows:
                if header in self.dominators[latch]:
                    blocks, latches = loops.setdefault(header, ({header}, set()))
                    latches.add(latch)
                    blocks |= self._reaching(latch, header)
        return loops

    def cheapest_path(self, blocks: set[int], header: int, latches: set[int]) -> list[int]:
        """From a loop's header to one of its latches: of the paths with the most tensor work the one with the fewest
        instructions. Inner cycles (a wait that tries again) are left at once."""
        best: dict[int, tuple[tuple[int, int], list[int]] | None] = {}
        on_path: set[int] = set()

        def cost(block: int) -> tuple[int, int]:
            code = self.code[self.starts[block] : self.ends[block]]
            return -sum(i.macs or i.is_tensor for i in code), len(code)

        def walk(block: int) -> tuple[tuple[int, int], list[int]] | None:
            if block not in best:
                on_path.add(block)
                inside = [o for o in self.successors[block] if o in blocks and o != header and o not in on_path]
                ends: list[tuple[tuple[int, int], list[int]]] = [((0, 0), [])] if block in latches else []
                ends += [found for other in inside if (found := walk(other)) is not None]
                on_path.discard(block)
                here = cost(block)
                total = [((here[0] + rest[0], here[1] + rest[1]), [block, *path]) for rest, path in ends]
                best[block] = min(total, default=None)
            return best[block]

        found = walk(header)
        return found[1] if found else []

    def _reaching(self, latch: int, header: int) -> set[int]:
        blocks, pending = {header, latch}, [latch] if latch != header else []
        while pending:
            for other in self.predecessors[pending.pop()]:
                if other not in blocks and self.dominators[other]:
                    blocks.add(other)
                    pending.append(other)
        return blocks

    def instructions(self, blocks: Iterable[int]) -> tuple[Instruction, ...]:
        """Of `blocks`, by address."""
        return tuple(i for block in sorted(blocks) for i in self.code[self.starts[block] : self.ends[block]])


def tensor_loops(code: list[Instruction]) -> list[Loop]:
    """Innermost loops that hold tensor instructions, by address."""
    if not code:
        return []
    flow = _Flow(code)
    found = {
        header: (blocks, latches)
        for header, (blocks, latches) in flow.natural_loops().items()
        if any(instruction.is_tensor for instruction in flow.instructions(blocks))
    }
    loops = []
    for header, (blocks, latches) in sorted(found.items()):
        if any(other != header and inner < blocks for other, (inner, _) in found.items()):
            continue
        loops.append(
            Loop(
                start=code[flow.starts[header]].address,
                body=flow.instructions(blocks),
                always=flow.instructions(flow.cheapest_path(blocks, header, latches)),
            )
        )
    return loops


def class_counts(code: Iterable[Instruction]) -> dict[str, int]:
    """Instructions by class, most frequent first."""
    return dict(Counter(instruction.instruction_class for instruction in code).most_common())


def count_opcodes(code: Iterable[Instruction], *opcodes: str) -> int:
    """Instructions whose opcode without modifiers is one of `opcodes`."""
    return sum(instruction.opcode.split(".", 1)[0] in opcodes for instruction in code)
