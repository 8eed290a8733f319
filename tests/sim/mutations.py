# SPDX-License-Identifier: Apache-2.0
"""Mutations of the kernels' PTX: what one is, what is reported for it, and the list of all in docs/mutations.md.

A mutation is a text edit at one named place. Places are named in program order; a kernel whose places are not the
expected ones fails in `Program`, so that a name never silently means another place. Which edits there are and which
problems must expose them is mutations_sm80.py's and mutations_sm90.py's.
`python -m tests.sim.mutations` writes docs/mutations.md.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from attnsmith.codegen.spec import KernelSpec
from attnsmith.tools import ptxsim
from torch import Tensor


@dataclass(frozen=True)
class Mutation:
    """One edit."""

    spec: KernelSpec
    what: str
    """What is done: `barrier removed`."""
    place: str
    """Where: `masked loop, K`."""
    lines: tuple[str, ...]
    """The whole changed program."""

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class Program:
    """A kernel's PTX, and edits of it."""

    def __init__(self, spec: KernelSpec, text: str) -> None:
        self.spec = spec
        self.lines = text.splitlines()

    def find(self, matches: Callable[[str], object]) -> list[int]:
        return [i for i, line in enumerate(self.lines) if matches(line.strip())]

    def named(self, what: str, found: list[int], names: list[str]) -> dict[str, int]:
        """Names for the places of one kind, in program order."""
        if len(found) != len(names):
            raise AssertionError(f"{self.spec.name} has {len(found)} {what}, expected {names}: name them anew")
        return dict(zip(names, found, strict=True))

    def edited(self, what: str, place: str, edits: dict[int, str | None]) -> Mutation:
        """None deletes a line."""
        changed = [edits.get(i, line) for i, line in enumerate(self.lines)]
        assert changed != self.lines, f"{what} changes nothing at {place}"
        return Mutation(self.spec, what, place, tuple(line for line in changed if line is not None))

    def substituted(self, what: str, place: str, index: int, pattern: str, to: str) -> Mutation:
        return self.edited(what, place, {index: re.sub(pattern, to, self.lines[index])})


def sampled(indices: list[int], name_of: Callable[[int], str]) -> Iterator[tuple[str, int]]:
    """First and last index of each place."""
    places: dict[str, list[int]] = {}
    for index in indices:
        places.setdefault(name_of(index), []).append(index)
    for name, found in places.items():
        yield f"{name}, first", found[0]
        if len(found) > 1:
            yield f"{name}, last", found[-1]


@dataclass(frozen=True)
class Case:
    """One launch that exercises one path of the kernel."""

    name: str
    run: Callable[[str], tuple[Tensor, Tensor]]
    """(out, lse) that a program of this text computes; asserts that it leaves the tile counter as it found it."""
    wrong: Callable[[Tensor, Tensor], str | None]
    """What is wrong with (out, lse)."""

    def verdict(self, text: str) -> str | None:
        """What is reported: the simulator's error, or what is wrong; None if all is right."""
        try:
            out, lse = self.run(text)
        except (ptxsim.ParseError, ptxsim.UnsupportedInstruction):
            raise  # the edit is no PTX: that proves nothing
        except ptxsim.PtxSimError as error:
            return type(error).__name__
        except AssertionError:
            return "wrong tile counter"
        return self.wrong(out, lse)


@dataclass(frozen=True, kw_only=True)
class Family:
    """The mutations of one kernel family."""

    name: str
    kernels: tuple[KernelSpec, ...]
    problems: str
    """What the cases are, for the document."""
    text_of: Callable[[KernelSpec], str]
    """The unchanged program."""
    kinds_of: Callable[[KernelSpec], list[str]]
    """The kinds of mutation that a kernel has places for."""
    mutations: Callable[[KernelSpec], Iterator[Mutation]]
    no_effect: Callable[[Mutation], str | None]
    """Why an edit changes nothing that any input could show; None where it must be reported."""
    cases_of: Callable[[KernelSpec], list[Case]]


def report(mutation: Mutation, cases: list[Case]) -> str | None:
    """The first verdict among the cases, and which case showed it; None where the mutation survives."""
    for case in cases:
        found = case.verdict(mutation.text)
        if found is not None:
            return f"{found} ({case.name})"
    return None


def disagreements(family: Family, mutations: list[Mutation], cases: list[Case]) -> list[str]:
    """Mutations that are not reported, and those listed as having no effect that are: the list stays true."""
    wrong = []
    for mutation in mutations:
        found, reason = report(mutation, cases), family.no_effect(mutation)
        if (found is None) != (reason is not None):
            wrong.append(f"{mutation.what}, {mutation.place}: reported {found}, expected {reason or 'a report'}")
    return wrong


HEADER = """# Mutations of the forward kernels

What is reported when one thing in a kernel's PTX is wrong: the simulator's error, or which output misses the reference,
and in brackets the first of the problems that showed it. "First" and "last" are the first and the last such instruction
of that place. Written by `python -m tests.sim.mutations`; `tests/sim/test_fwd_mutations.py` requires
that each is reported.
"""


def table(family: Family, spec: KernelSpec) -> list[str]:
    """Markdown lines for one kernel."""
    cases = family.cases_of(spec)
    rows, verdicts = [], Counter[str]()
    for mutation in family.mutations(spec):
        found = report(mutation, cases) or f"nothing: {family.no_effect(mutation)}"
        verdicts["without effect" if found.startswith("nothing") else "reported"] += 1
        rows.append(f"| {mutation.what} | {mutation.place} | {found} |")
    summary = f"{len(rows)} mutations: {', '.join(f'{n} {what}' for what, n in sorted(verdicts.items()))}.\n"
    return [f"\n### {spec.name}\n", summary, "| mutation | place | reported |", "|---|---|---|", *rows]


def main() -> None:
    """Writes docs/mutations.md."""
    from tests.sim import mutations_sm80, mutations_sm90

    lines = [HEADER.rstrip()]
    for family in (mutations_sm80.FAMILY, mutations_sm90.FAMILY):
        lines += [f"\n## {family.name}\n", family.problems]
        for spec in family.kernels:
            lines += table(family, spec)
    path = Path(__file__).resolve().parents[2] / "docs" / "mutations.md"
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
