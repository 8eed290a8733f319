# SPDX-License-Identifier: Apache-2.0
"""How fast the simulator is on this machine: `python -m attnsmith.tools.ptxsim.benchmark`.

Responsible for two numbers: million warp instructions per second on ALU code on one core, and the seconds of a 1 x 1 x
512 x 64 attention forward after compilation. Not responsible for the kernel's correctness: tests are.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from attnsmith.tools.ptxsim.module import load
from attnsmith.tools.ptxsim.stats import Stats

REPEATS = 5
ITERATIONS = 20_000
CTAS = 4

# 16 integer, logic and float instructions on 8 registers plus the loop's own three, four warps per CTA.
ALU_PTX = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry alu(.param .u64 out, .param .u32 iterations) {
  .reg .pred %p; .reg .b32 %r<12>; .reg .f32 %f<4>; .reg .b64 %l<4>;
  mov.u32 %r0, %tid.x; add.u32 %r1, %r0, 17; xor.b32 %r2, %r0, 99; mov.u32 %r3, 3; mov.u32 %r4, 0;
  cvt.rn.f32.u32 %f0, %r0; mov.f32 %f1, 0f3F7FF000; mov.f32 %f2, 0f3F000000;
  ld.param.u32 %r5, [iterations];
LOOP:
  mad.lo.u32 %r1, %r1, %r3, %r2;   fma.rn.f32 %f0, %f0, %f1, %f2;
  add.u32 %r2, %r2, %r1;           xor.b32 %r3, %r3, %r1;
  shl.b32 %r6, %r1, 3;             and.b32 %r7, %r2, 255;
  lop3.b32 %r8, %r6, %r7, %r3, 0x96; add.f32 %f3, %f0, %f2;
  sub.u32 %r2, %r2, %r8;           max.s32 %r3, %r3, %r7;
  mul.f32 %f0, %f3, %f1;           shr.u32 %r6, %r8, 5;
  prmt.b32 %r7, %r6, %r1, 0x3210;  or.b32 %r3, %r3, 1;
  add.u32 %r1, %r1, %r7;           min.f32 %f0, %f0, %f1;
  add.u32 %r4, %r4, 1; setp.lt.u32 %p, %r4, %r5; @%p bra LOOP;
  ld.param.u64 %l0, [out]; cvta.to.global.u64 %l0, %l0; mul.wide.u32 %l1, %r0, 4; add.u64 %l2, %l0, %l1;
  cvt.rzi.u32.f32 %r9, %f0; add.u32 %r1, %r1, %r9; st.global.u32 [%l2], %r1;
  ret;
}
"""


def median_seconds(run: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median wall-clock seconds; the first, warming run is not counted."""
    run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def alu_rate(iterations: int = ITERATIONS, repeats: int = REPEATS) -> dict[str, float]:
    """Warp instructions per second of an ALU loop on one host thread, with the statistics switched on and off."""
    module = load(ALU_PTX)
    out = (ctypes.c_uint32 * 128)()
    rows = [(ctypes.addressof(out), ctypes.sizeof(out), "out", True)]
    args = [ctypes.addressof(out), iterations]

    def launch(collect_stats: bool) -> Stats:
        return module.launch(
            "alu", CTAS, 128, args, allocations=rows, num_threads=1, collect_stats=collect_stats
        )  # fmt: skip

    instructions = launch(True).warp_instructions
    return {
        "warp_instructions": instructions,
        "per_second": instructions / median_seconds(lambda: launch(True), repeats),
        "per_second_without_stats": instructions / median_seconds(lambda: launch(False), repeats),
    }


def forward_seconds(seqlen: int = 512, head_dim: int = 64, repeats: int = 3) -> dict[str, Any] | None:
    """Seconds of a batch 1, one head, bf16 forward on a simulated A100, compilation excluded; None without the op."""
    try:
        import attnsmith
        import torch

        flash_attn_func, simulate = attnsmith.flash_attn_func, attnsmith.simulate
    except (ImportError, AttributeError):
        return None
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, seqlen, 1, head_dim, generator=generator).bfloat16() for _ in range(3))
    with simulate("a100"):
        seconds = median_seconds(lambda: flash_attn_func(q, k, v), repeats)
    return {"seqlen": seqlen, "head_dim": head_dim, "dtype": "bf16", "seconds": seconds}


def measure(quick: bool = False) -> dict[str, Any]:
    """All measurements; `quick` measures each once on a smaller loop."""
    repeats = 1 if quick else REPEATS
    return {"alu": alu_rate(ITERATIONS // (20 if quick else 1), repeats), "forward": forward_seconds(repeats=repeats)}


def main(argv: list[str] | None = None) -> int:
    """Prints the measurements; exit status 0."""
    parser = argparse.ArgumentParser(prog="python -m attnsmith.tools.ptxsim.benchmark", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quick", action="store_true", help="one short run of each")
    options = parser.parse_args(argv)
    facts = measure(options.quick)
    if options.json:
        sys.stdout.write(json.dumps(facts, indent=2) + "\n")
        return 0
    alu, forward = facts["alu"], facts["forward"]
    lines = [
        f"ALU code, one core: {alu['per_second'] / 1e6:.1f} million warp instructions/s "
        f"({alu['per_second_without_stats'] / 1e6:.1f} without statistics)",
        "forward b=1 h=1 s=512 d=64 bf16: "
        + (f"{forward['seconds']:.3f} s" if forward else "not measured (the op is not available)"),
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
