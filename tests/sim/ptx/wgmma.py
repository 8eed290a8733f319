# SPDX-License-Identifier: Apache-2.0
"""Builds one-wgmma kernels: operands laid out in shared memory as the ISA's canonical layouts say, independently of the
simulator, accumulators written out register by register. Not responsible for expected values: the tests are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from tests.sim.ptx.builder import entry, run

ELEMENT_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1}
TORCH_TYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "tf32": torch.float32,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}
SWIZZLE_CODES = {0: 0, 128: 1, 64: 2, 32: 3}
A_BASE, B_BASE, SMEM_BYTES = 0, 16384, 65536


def swizzle(address: int, span: int) -> int:
    """Where a byte of a swizzled layout lies: 16-byte chunk number xor row number, within the span's atom."""
    chunks = max(1, span // 16)
    return address ^ ((address // 128 % chunks) * 16)


@dataclass(frozen=True)
class Operand:
    """How a (rows, k) matrix lies in shared memory."""

    base: int
    kind: str
    rows: int
    k: int
    mn_major: bool = False
    span: int = 0
    """Swizzle span in bytes, 0 without."""

    @property
    def size(self) -> int:
        return ELEMENT_BYTES[self.kind]

    def address(self, r: int, c: int) -> int:
        """Byte address of element (r, c): the canonical layouts of the ISA's figures, tightly packed."""
        unit = 16 // self.size
        width = max(1, self.span // 16)
        if not self.mn_major:
            if width == 1:  # 8x16-byte core matrices; those along k first
                core = (r // 8) * (self.k // unit) + c // unit
                return self.base + core * 128 + r % 8 * 16 + c % unit * self.size
            return swizzle(self.base + r * self.span + c * self.size, self.span)
        if width == 1:  # core matrices of 8 k x 8 rows; those along the rows first
            core = (c // 8) * (self.rows // 8) + r // 8
            return self.base + core * 128 + c % 8 * 16 + r % 8 * self.size
        block, inside = divmod(r, self.span // self.size)
        return swizzle(self.base + block * self.k * self.span + c * self.span + inside * self.size, self.span)

    def descriptor(self) -> int:
        """The 64-bit matrix descriptor."""
        width = max(1, self.span // 16)
        if not self.mn_major:
            leading, stride = (128, 256) if width == 1 else (16, 8 * self.span)
        elif width == 1:
            leading, stride = self.rows // 8 * 128, 128
        else:
            leading, stride = self.k * self.span, 8 * self.span
        fields = self.base >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | SWIZZLE_CODES[self.span] << 62
        return fields

    def image(self, matrix: torch.Tensor, smem: np.ndarray) -> None:
        """Writes the matrix's bytes into an image of shared memory."""
        data = matrix.contiguous().view(torch.uint8).reshape(self.rows, self.k, self.size).numpy()
        for r in range(self.rows):
            for c in range(self.k):
                at = self.address(r, c)
                smem[at : at + self.size] = data[r, c]


@dataclass(frozen=True)
class Case:
    """One wgmma.mma_async."""

    kind_a: str
    kind_b: str
    n: int
    accumulator: str = "f32"
    a_in_registers: bool = False
    a_mn_major: bool = False
    b_mn_major: bool = False
    span_a: int = 128
    span_b: int = 128
    scale_d: int = 1
    scale_a: int = 1
    scale_b: int = 1
    repeat: int = 1
    lines: dict[str, str] = field(default_factory=dict)
    """Replaces fence, proxy, commit, wait; before_wait and after_wait add to the kernel."""

    @property
    def k(self) -> int:
        return 32 // ELEMENT_BYTES[self.kind_a]

    @property
    def d_registers(self) -> int:
        return self.n // 2 if self.accumulator == "f32" else self.n // 4

    def operands(self) -> tuple[Operand, Operand]:
        a = Operand(A_BASE, self.kind_a, 64, self.k, self.a_mn_major, self.span_a)
        return a, Operand(B_BASE, self.kind_b, self.n, self.k, self.b_mn_major, self.span_b)

    def instruction(self) -> str:
        types = f"{self.accumulator}.{self.kind_a}.{self.kind_b}"
        d = ", ".join(f"%acc{i}" for i in range(self.d_registers))
        a = "{%a0, %a1, %a2, %a3}" if self.a_in_registers else "%desca"
        tail = f"%ps, {self.scale_a}, {self.scale_b}"
        if ELEMENT_BYTES[self.kind_a] == 2:
            tail += "" if self.a_in_registers else f", {int(self.a_mn_major)}"
            tail += f", {int(self.b_mn_major)}"
        return f"wgmma.mma_async.sync.aligned.m64n{self.n}k{self.k}.{types} {{{d}}}, {a}, %descb, {tail};"

    def ptx(self) -> str:
        """Copies an image of shared memory in, loads C and A registers, multiplies, writes D registers out."""
        get = {
            "fence": "wgmma.fence.sync.aligned;",
            "proxy": "fence.proxy.async.shared::cta;",
            "commit": "wgmma.commit_group.sync.aligned;",
            "wait": "wgmma.wait_group.sync.aligned 0;",
            "before_wait": "",
            "after_wait": "",
            **self.lines,
        }
        a, b = self.operands()
        count = self.d_registers
        body = f"""
  .reg .b32 %acc<{count}>, %a<4>;
  .reg .b64 %desca, %descb;
  .reg .pred %ps;
  mov.u32 %r1, smem;
  shl.b32 %r2, %t, 4;
  add.u32 %r1, %r1, %r2;
  cvt.u64.u32 %l1, %r2;
  add.s64 %l1, %image, %l1;
  mov.u32 %r3, 0;
COPY:
  ld.global.v4.u32 {{%r4, %r5, %r6, %r7}}, [%l1];
  st.shared.v4.u32 [%r1], {{%r4, %r5, %r6, %r7}};
  add.u32 %r1, %r1, 2048;
  add.s64 %l1, %l1, 2048;
  add.u32 %r3, %r3, 1;
  setp.lt.u32 %p1, %r3, {SMEM_BYTES // 2048};
  @%p1 bra COPY;
  {get["proxy"]}
  bar.sync 0;
  mul.wide.u32 %l2, %t, {4 * count};
  add.s64 %l3, %c, %l2;
  add.s64 %l4, %out, %l2;
  mul.wide.u32 %l5, %t, 16;
  add.s64 %l5, %aregs, %l5;
  mov.u64 %desca, {a.descriptor()};
  mov.u64 %descb, {b.descriptor()};
  setp.ne.u32 %ps, {self.scale_d}, 0;
"""
        body += "".join(f"  ld.global.b32 %acc{i}, [%l3+{4 * i}];\n" for i in range(count))
        body += "".join(f"  ld.global.b32 %a{i}, [%l5+{4 * i}];\n" for i in range(4))
        body += f"  {get['fence']}\n" + f"  {self.instruction()}\n" * self.repeat
        body += f"  {get['commit']}\n  {get['before_wait']}\n  {get['wait']}\n  {get['after_wait']}\n"
        body += "".join(f"  st.global.b32 [%l4+{4 * i}], %acc{i};\n" for i in range(count))
        globals_ = ".extern .shared .align 1024 .b8 smem[];"
        return entry(body, ("u64 out", "u64 image", "u64 c", "u64 aregs"), globals_=globals_, target="sm_90a")

    def run(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, **launch: object) -> torch.Tensor:
        """D (64, n) = scale_d * C + A (64, k) B (n, k)^T, in fp32 or fp16."""
        image = np.zeros(SMEM_BYTES, np.uint8)
        operand_a, operand_b = self.operands()
        operand_b.image(b, image)
        if not self.a_in_registers:
            operand_a.image(a, image)
        a_words = a.contiguous().view(torch.uint8).reshape(64, 32).numpy().view(np.uint32).reshape(64, 8)
        a_registers = np.zeros((128, 4), np.uint32)
        for thread in range(128):
            row, t = thread // 32 * 16 + thread % 32 // 4, thread % 4
            a_registers[thread] = [a_words[row + 8 * (r % 2), t + 4 * (r // 2)] for r in range(4)]
        out = np.zeros((128, self.d_registers), np.uint32)
        args = [out, image, self.spread(c), a_registers]
        launch = {"device": "h100", "block": 128, "shared_bytes": SMEM_BYTES, **launch}
        run(self.ptx(), args, **launch)
        return self.gather(out)

    def _place(self, thread: int, i: int) -> tuple[int, int]:
        """Row and first column of register i of a thread; f16 registers hold two columns."""
        row, t = thread // 32 * 16 + thread % 32 // 4, thread % 4
        if self.accumulator == "f32":
            return row + 8 * (i % 4 // 2), 8 * (i // 4) + 2 * t + i % 2
        return row + 8 * (i % 2), 8 * (i // 2) + 2 * t

    def spread(self, c: torch.Tensor) -> np.ndarray:
        """Registers of every thread that hold C."""
        words = np.zeros((128, self.d_registers), np.uint32)
        for thread in range(128):
            for i in range(self.d_registers):
                row, column = self._place(thread, i)
                value = c[row, column : column + (1 if self.accumulator == "f32" else 2)].contiguous()
                words[thread, i] = value.view(torch.uint8).numpy().view(np.uint32)[0]
        return words

    def gather(self, words: np.ndarray) -> torch.Tensor:
        """The matrix that the registers hold."""
        dtype = torch.float32 if self.accumulator == "f32" else torch.float16
        d = torch.full((64, self.n), float("nan"), dtype=dtype)
        for thread in range(128):
            for i in range(self.d_registers):
                row, column = self._place(thread, i)
                value = torch.from_numpy(words[thread, i : i + 1].copy()).view(dtype)
                d[row, column : column + len(value)] = value
        return d
