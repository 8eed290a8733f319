# SPDX-License-Identifier: Apache-2.0
"""From what people write or a device reports to compile targets, and which target's code runs on which device.

Not responsible for a target's limits (resources.py) or for compiler flags (compile/).
"""

from __future__ import annotations

import re

from attnsmith.codegen.errors import SpecError, UnsupportedError
from attnsmith.codegen.limits import TARGETS

_TOKEN = re.compile(r"(?:sm|compute)?_?(\d{1,2})\.?(\d)([af]?)(?:\+ptx)?", re.IGNORECASE)
_SEPARATORS = re.compile(r"[;,\s]+")
_GPU_FAMILIES = {"ampere": ("sm_80", "sm_86"), "ada": ("sm_89",), "hopper": ("sm_90a",)}
_DO = f"Use {', '.join(TARGETS)} (also written 8.0, 80, sm80, 9.0a; several are separated by ';', ',' or a space)."


def _invalid(token: str, text: str) -> SpecError:
    allowed = ", ".join((*TARGETS, *_GPU_FAMILIES, "all"))
    return SpecError(asked=f"read the target list {text!r}", got=repr(token), allowed=allowed, do=_DO)


def _parse_token(token: str, text: str) -> tuple[str, ...]:
    word = token.lower()
    if word == "all":
        return tuple(TARGETS)
    if word in _GPU_FAMILIES:
        return _GPU_FAMILIES[word]
    match = _TOKEN.fullmatch(word)
    if match is None:
        raise _invalid(token, text)
    target = f"sm_{match[1]}{match[2]}{match[3]}"
    if target in TARGETS:
        return (target,)
    base = target.rstrip("af")
    known = base if base in TARGETS else None
    raise UnsupportedError(
        asked=f"read the target list {text!r}",
        got=f"{token!r} ({target}), which this version has no kernels for",
        allowed=", ".join(TARGETS),
        do=f"Use {known}." if known else _DO,
    )


def parse_targets(text: str) -> tuple[str, ...]:
    """The compile targets of a list such as `8.0;9.0a`, `sm_80, sm_90` or `Ampere`, without duplicates, sorted.

    9.0 and sm_90 are literally that: kernels of the SM80 family, as nvcc's -arch=sm_90 has no Hopper instructions. What
    a Hopper GPU should have is 9.0a, sm_90a or `hopper`.

    Accepts what TORCH_CUDA_ARCH_LIST writes and every form with one clear meaning; `+PTX` is accepted and means
    nothing, because every compiled kernel keeps its PTX.

    Raises:
        SpecError: a token with no clear meaning, or nothing at all; the message quotes it. Never drops a token.
        UnsupportedError: a real target that this version has no kernels for.
    """
    tokens = [token for token in _SEPARATORS.split(text.strip()) if token]
    if not tokens:
        raise _invalid(text, text)
    found = {target for token in tokens for target in _parse_token(token, text)}
    return tuple(target for target in TARGETS if target in found)


def parse_target(text: str) -> str:
    """Like `parse_targets` for exactly one target; SpecError for several."""
    targets = parse_targets(text)
    if len(targets) != 1:
        raise SpecError(
            asked=f"use one target from {text!r}", got=", ".join(targets), allowed="exactly one", do="Pass one of them."
        )
    return targets[0]


def target_for_capability(major: int, minor: int) -> str:
    """The best compile target for a device of compute capability major.minor.

    Raises:
        UnsupportedError: no target's code runs on it.
    """
    for target in reversed(TARGETS):
        if runs_on(target, (major, minor)):
            return target
    raise UnsupportedError(
        asked=f"choose kernels for a device of compute capability {major}.{minor}",
        got=f"{major}.{minor}",
        allowed=", ".join(f"{t} ({row.gpus})" for t, row in TARGETS.items()),
        do="Use one of these GPUs, or a simulated one: attnsmith.simulate('a100').",
    )


def runs_on(target: str, capability: tuple[int, int]) -> bool:
    """True when a cubin for `target` loads on a device: same major, minor not newer; an `a` target only exactly."""
    match = re.fullmatch(r"sm_(\d+)(\d)([af]?)", target)
    if match is None:
        return False
    major, minor, suffix = int(match[1]), int(match[2]), match[3]
    if suffix == "a":
        return (major, minor) == capability
    return major == capability[0] and minor <= capability[1]
