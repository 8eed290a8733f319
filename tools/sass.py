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
    "cvt": ("F2FP", "F2F", "F2I", "I2F", "I2FP"),
    "spill": ("STL", "LDL"),
    "ldmatrix": ("LDSM",),
    "stmatrix": ("STSM",),
    "shared": ("LDS", "STS", "ATOMS"),
    "cp_async": ("LDGSTS", "UBLKCP", "UTMALDG", "UTMASTG"),
    "global": ("LDG", "STG", "RED", "ATOMG", "ATOM"),
    "sync": ("BAR", "SYNCS", "WARPGROUP", "WARPSYNC", "DEPBAR", "LDGDEPBAR", "BSSY", "BSYNC", "ELECT", "FENCE"),
    "shuffle": ("SHFL", "VOTE", "VOTEU", "REDUX"),
    "select": ("FSEL", "SEL", "FSETP", "ISETP", "PLOP3", "FCHK"),
    "branch": ("BRA", "EXIT", "JMP", "CALL", "RET", "BREAK"),
    "move": ("MOV", "R2UR", "S2R", "S2UR", "UMOV", "CS2R", "R2P", "P2R"),
    "integer": ("IMAD", "IADD3", "IADD", "LEA", "LOP3", "SHF", "PRMT", "IMNMX", "IABS", "VIADD", "VIMNMX",
                "UIADD3", "UIMAD", "ULEA", "ULOP3", "USHF", "UISETP", "USEL", "ULDC"),
}  # fmt: skip
_CLASS_OF = {opcode: name for name, opcodes in _CLASSES.items() for opcode in opcodes}


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
    """Those that every iteration executes: the rest is behind a branch, such as a skipped rescale."""

    @property
    def num_tensor(self) -> int:
        """Tensor instructions of the body."""
        return sum(instruction.is_tensor for instruction in self.body)

    def mix(self) -> dict[str, int]:
        """Instructions of the body by class, most frequent first."""
        return dict(Counter(instruction.instruction_class for instruction in self.body).most_common())


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
        on_every_path = set.intersection(*(flow.dominators[latch] for latch in latches))
        loops.append(
            Loop(
                start=code[flow.starts[header]].address,
                body=flow.instructions(blocks),
                always=flow.instructions(blocks & on_every_path),
            )
        )
    return loops


def count_opcodes(code: Iterable[Instruction], *opcodes: str) -> int:
    """Instructions whose opcode without modifiers is one of `opcodes`."""
    return sum(instruction.opcode.split(".", 1)[0] in opcodes for instruction in code)
