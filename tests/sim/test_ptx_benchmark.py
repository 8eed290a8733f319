# SPDX-License-Identifier: Apache-2.0
"""The simulator's benchmark command: its kernel computes what it claims to, its numbers are plausible."""

from __future__ import annotations

import json

import numpy as np
import pytest
from attnsmith.tools import ptxsim
from attnsmith.tools.ptxsim import benchmark

MASK = 0xFFFFFFFF


def expected(thread: int, iterations: int) -> int:
    """The integer part of ALU_PTX; its float part ends below 1 and adds 0."""
    r1, r2, r3 = thread + 17, thread ^ 99, 3
    for _ in range(iterations):
        r1 = (r1 * r3 + r2) & MASK
        r2 = (r2 + r1) & MASK
        r3 ^= r1
        r6, r7 = (r1 << 3) & MASK, r2 & 255
        r8 = r6 ^ r7 ^ r3
        r2 = (r2 - r8) & MASK
        r3 = max(r3, r7, key=lambda v: v - (1 << 32) if v >> 31 else v)
        r3 |= 1
        r1 = (r1 + (r8 >> 5)) & MASK
    return r1


def test_alu_kernel_computes_what_its_source_says() -> None:
    out = np.zeros(128, np.uint32)
    stats = ptxsim.load(benchmark.ALU_PTX).launch("alu", 1, 128, [out, 10])
    assert out.tolist() == [expected(t, 10) for t in range(128)]
    assert stats.by_class["alu"] > stats.warp_instructions / 2


def test_rate_is_measured() -> None:
    facts = benchmark.alu_rate(iterations=300, repeats=1)
    assert facts["warp_instructions"] == pytest.approx(4 * 4 * 300 * 19, rel=0.05)
    assert facts["per_second"] > 1e5


def test_command_prints_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "forward_seconds", lambda **_: None)
    assert benchmark.main(["--quick", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["alu"]["per_second"] > 1e5
    assert benchmark.main(["--quick"]) == 0
    assert "million warp instructions/s" in capsys.readouterr().out
