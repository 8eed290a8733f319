# SPDX-License-Identifier: Apache-2.0
"""Small rewrites of PTX text that keep its meaning: dropping unused module variables, cutting out one kernel.

Line-based, for the output of NVRTC and nvcc. Not a parser: tools/ptxsim has one.
"""

from __future__ import annotations

import re

_VARIABLE = re.compile(
    r"^(?:\.visible |\.weak |\.extern )?\.(?:global|const)\b[^;{]*?([A-Za-z_$][\w$]*)(?:\[\d*\])?(?: = .*)?;$"
)
_IDENTIFIER = re.compile(r"[A-Za-z_$][\w$]*")


def strip_unreferenced_variables(ptx: str) -> str:
    """Removes one-line .global and .const definitions that nothing else mentions.

    -default-device turns every namespace-scope constant of CuTe and libcu++ into one: about 2,800 lines and 90 % of the
    text, none of which a kernel reads.
    """
    lines = ptx.splitlines(keepends=True)
    while True:
        names = [match.group(1) if (match := _VARIABLE.match(line.rstrip())) else None for line in lines]
        mentions: dict[str, int] = {}
        wanted = {name for name in names if name}
        for line in lines:
            for word in _IDENTIFIER.findall(line):
                if word in wanted:
                    mentions[word] = mentions.get(word, 0) + 1
        kept = [line for line, name in zip(lines, names, strict=True) if name is None or mentions[name] > 1]
        if len(kept) == len(lines):
            return "".join(kept)
        lines = kept


def split_kernels(ptx: str) -> dict[str, str]:
    """One PTX text per .entry: the module's directives, its functions and variables in use, and that entry.

    Whole-program output of nvcc for a translation unit of several kernels; each part assembles on its own. Raises
    ValueError where a name cannot be found.
    """
    preamble, entries = _cut_entries(ptx.splitlines(keepends=True))
    return {name: strip_unreferenced_variables("".join([*preamble, *body])) for name, body in entries.items()}


def _cut_entries(lines: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    preamble: list[str] = []
    entries: dict[str, list[str]] = {}
    current: list[str] | None = None
    depth = 0
    for line in lines:
        match = re.match(r"\s*(?:\.visible |\.weak )?\.entry\s+([\w$]+)", line)
        if match and current is None:
            current = entries.setdefault(match.group(1), [])
        (preamble if current is None else current).append(line)
        if current is not None:
            code = line.split("//", 1)[0]
            depth += code.count("{") - code.count("}")
            if depth == 0 and "}" in code:
                current = None
    if current is not None:
        raise ValueError("PTX ends within an entry")
    return preamble, entries
