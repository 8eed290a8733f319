# SPDX-License-Identifier: Apache-2.0
"""The one error type of the generator and its four parts. Not responsible for deciding what is legal: rules.py is."""

from __future__ import annotations


class AttnsmithError(Exception):
    """A failure that the user can act on.

    The message has four parts: what was asked, what was got, what is allowed, and what to do.

    Example:
        >>> str(AttnsmithError(asked="build arch sm70", got="sm70", allowed="sm80, sm90", do="Pass one of these."))
        'build arch sm70: got sm70; allowed: sm80, sm90. Pass one of these.'
    """

    def __init__(self, *, asked: str, got: str, allowed: str, do: str) -> None:
        self.asked = asked
        self.got = got
        self.allowed = allowed
        self.do = do
        super().__init__(f"{asked}: got {got}; allowed: {allowed}. {do}")


class SpecError(AttnsmithError, ValueError):
    """A spec that a legality rule rejects, or a value that no spec can have."""


class UnsupportedError(SpecError, NotImplementedError):
    """A combination that the arch cannot do, or that this version has no kernel for; the message names what can."""


class ToolchainError(AttnsmithError, RuntimeError):
    """A compiler, header folder or library that is missing or unusable."""


class CompileError(AttnsmithError, RuntimeError):
    """A kernel, launcher or simulator that failed to compile; `log` holds the compiler's output."""

    def __init__(self, *, asked: str, got: str, allowed: str, do: str, log: str = "") -> None:
        super().__init__(asked=asked, got=got, allowed=allowed, do=do)
        self.log = log


class CacheError(AttnsmithError, OSError):
    """A cache directory that cannot be used (full, read-only, not a directory)."""
