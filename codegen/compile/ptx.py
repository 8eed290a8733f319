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
