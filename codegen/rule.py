# SPDX-License-Identifier: Apache-2.0
"""The form of a legality rule: a row of id, predicate and message. Not responsible for the rows (rules.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from attnsmith.codegen.errors import SpecError
from attnsmith.codegen.spec import Arch, KernelSpec


@dataclass(frozen=True)
class Problem:
    """Why a spec breaks a rule: what it has, what is allowed and what to do."""

    got: str
    allowed: str
    do: str


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One legality rule."""

    id: str
    """Stable name, for tests and messages."""
    summary: str
    """What must hold, in one sentence."""
    predicate: Callable[[KernelSpec, str], bool]
    """True when (spec, target) obeys the rule. Called only for the rule's family, when the rules in `needs` hold."""
    message: Callable[[KernelSpec, str], Problem]
    """Explains a spec that breaks the rule."""
    arch: Arch | None = None
    """The kernel family that the rule is about; None: every family."""
    needs: tuple[str, ...] = ()
    """Ids of earlier rules without which the predicate has no meaning."""
    error: type[SpecError] = SpecError
    """UnsupportedError (a NotImplementedError) where the hardware or this version cannot do it at all."""

    def holds(self, spec: KernelSpec, target: str) -> bool:
        """True when the rule is not about the spec's family, or (spec, target) obeys it."""
        return self.arch not in (None, spec.key.arch) or self.predicate(spec, target)

    def to_error(self, spec: KernelSpec, target: str) -> SpecError:
        """The four-part error of a spec that breaks this rule."""
        problem = self.message(spec, target)
        asked = f"{spec.name} for {target}"
        return self.error(asked=asked, got=problem.got, allowed=problem.allowed, do=problem.do)


def listed(values: Iterable[object]) -> str:
    """Values for a message, enums by their value."""
    return ", ".join(str(getattr(value, "value", value)) for value in values)
