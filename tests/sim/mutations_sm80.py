# SPDX-License-Identifier: Apache-2.0
"""Mutations of the SM80 forward kernel's PTX, and the problems that must expose them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from attnsmith import reference
from attnsmith.codegen.spec import DType, KernelSpec, Mask, TileConfig
from torch import Tensor

from tests.sim.fwd_kernel import DTYPES, Ptx, normal, ptx_of, spec_named
from tests.sim.mutations import Case, Family, Mutation, Program, sampled

_S1 = spec_named("fwd_sm80_bf16_hdim64_full_64x64_w4_s1")
KERNELS: tuple[KernelSpec, ...] = (
    _S1,
    spec_named("fwd_sm80_bf16_hdim32_causal_64x128_w4_s1"),
    spec_named("fwd_sm80_fp16_hdim64_causal_128x64_w4_s2"),
    spec_named("fwd_sm80_bf16_hdim96_full_64x64_w4_s2"),
    KernelSpec(
        key=replace(_S1.key, dtype=DType.FP16, out_dtype=DType.FP16, head_dim_v=32, pads_head_dim=True),
        tile=TileConfig(block_m=64, block_n=64, num_warps=4, num_stages=1),
    ),
)
"""One and two stages, full and causal, both swizzle atoms, and one whose value head dim differs and is zero-filled."""


class Sm80Program(Program):
    """A kernel's PTX with its synchronization named."""

    def __init__(self, spec: KernelSpec) -> None:
        super().__init__(spec, ptx_of(spec).text)
        is_causal = spec.key.mask is Mask.CAUSAL
        loop = ("K", "careful", "V") if is_causal else ("K", "V")
        steps = [*(f"masked loop, {x}" for x in loop), "full loop, K", "full loop, V"]
        restore = ["nonfinite, table free", "nonfinite, table full"] if is_causal else []
        prologue = ["prologue K"]
        for stage in range(1, spec.tile.num_stages):
            prologue += [f"prologue V{stage}", f"prologue K{stage + 1}"]
        self.barriers = self._named(
            "bar.sync", ["sign of Q", *steps, *restore, "epilogue, Q free", "epilogue, O staged"]
        )
        self.waits = self._named("cp.async.wait_", ["sign of Q", *steps])
        loads = ["masked loop, V", "masked loop, K", "full loop, V", "full loop, K"]
        self.commits = self._named("cp.async.commit_group", [*prologue, *loads])

    def _named(self, instruction: str, names: list[str]) -> dict[str, int]:
        return self.named(instruction, self.find(lambda line: line.startswith(instruction)), names)

    def region(self, index: int) -> str:
        """The named barrier before a line: where the line is."""
        places = [name for name, at in self.barriers.items() if at < index]
        return places[-1] if places else "prologue"

    def group(self, index: int) -> str:
        """The commit group that a cp.async belongs to."""
        return next(name for name, at in self.commits.items() if at > index)


KINDS = (
    "barrier removed",
    "vote without barrier",
    "wait removed",
    "wait leaves one group more",
    "commit removed",
    "load removed",
    "zero fill removed",
    "zero fill always",
    "ldmatrix without trans",
    "ldmatrix with trans",
    "swizzle step wrong",
    "swizzle without its row bits",
    "mask one key further",
    "mask one key earlier",
    "one key block too many",
    "last key block left out",
    "LSE stored one row further",
    "O stored one chunk further",
)
"""Values of Mutation.what."""


def kinds_of(spec: KernelSpec) -> list[str]:
    """The kinds that a kernel has places for."""
    return [kind for kind in KINDS if kind != "commit removed" or spec.tile.num_stages > 1]


def no_effect(mutation: Mutation) -> str | None:
    """Why an edit changes nothing that any input could show; None where it must be reported."""
    what, place = mutation.what, mutation.place.removesuffix(", first").removesuffix(", last")
    if what == "barrier removed" and place == "epilogue, Q free":
        return "redundant: every read of Q is before the second barrier of the last step"
    if what == "barrier removed" and place == "nonfinite, table free":
        return "redundant: every read of K is before the second barrier of the last step"
    is_ahead = mutation.spec.tile.num_stages > 1 and place in ("prologue K2", "masked loop, V")
    if what == "zero fill removed" and is_ahead and not mutation.spec.key.pads_head_dim:
        return "with two stages this load is one block ahead, so never of the block in which the keys end"
    if what == "zero fill removed" and mutation.spec.key.pads_head_dim:
        if place == "full loop, K":
            return (
                "columns beyond head_dim meet zeros of Q; a NaN there has the tile done again, where the fill is intact"
            )
        if mutation.place == "full loop, V, first":
            return "inside the tensor (unlike the last pass), and columns of O beyond head_dim_v are not stored"
    return None


def mutations(spec: KernelSpec) -> Iterator[Mutation]:
    program = Sm80Program(spec)
    yield from _synchronization(program)
    yield from _loads(program)
    yield from _addresses(program)
    yield from _bounds(program)


def _synchronization(program: Sm80Program) -> Iterator[Mutation]:
    for name, index in program.barriers.items():
        yield program.edited("barrier removed", name, {index: None})
    for index in program.find(lambda line: line.startswith("bar.red.or")):
        vote = r"bar\.red\.or\.pred\s+(\S+), 0, (\S+);"
        yield program.substituted("vote without barrier", "end of the full loop", index, vote, r"or.pred \1, \2, \2;")
    for name, index in program.waits.items():
        yield program.edited("wait removed", name, {index: None})
        fewer = f"wait_group {2 * program.spec.tile.num_stages - 1}"  # leaves one group more than the steps' wait
        yield program.substituted("wait leaves one group more", name, index, r"wait_(all|group \d+)", fewer)
    if program.spec.tile.num_stages > 1:
        for name, index in program.commits.items():
            yield program.edited("commit removed", name, {index: None})


def _loads(program: Sm80Program) -> Iterator[Mutation]:
    copies = program.find(lambda line: line.startswith("cp.async.cg"))
    for name, index in sampled(copies, program.group):
        yield program.edited("load removed", name, {index: None})
    bounded = [i for i in copies if re.search(r"16, %r\d+;", program.lines[i])]
    for name, index in sampled(bounded, program.group):
        yield program.substituted("zero fill removed", name, index, r"16, %r\d+;", "16;")
        yield program.substituted("zero fill always", name, index, r"16, %r\d+;", "16, 0;")


def _addresses(program: Sm80Program) -> Iterator[Mutation]:
    matrices = program.find(lambda line: line.startswith("ldmatrix"))
    transposed = [i for i in matrices if ".trans" in program.lines[i]]
    for name, index in sampled(transposed, program.region):
        yield program.substituted("ldmatrix without trans", name, index, r"\.trans", "")
    plain = [i for i in matrices if i not in transposed]
    for name, index in sampled(plain, program.region):
        yield program.substituted("ldmatrix with trans", name, index, r"\.x4", ".x4.trans")
    flips = program.find(lambda line: re.match(r"xor\.b32\s+%r\d+, %r\d+, (16|32|64|96);", line))
    for name, index in sampled(flips, program.region):
        yield program.substituted("swizzle step wrong", name, index, r", (\d+);", ", 48;")
    swizzles = program.find(lambda line: re.match(r"and\.b32\s+%r\d+, %r\d+, (192|448|96|224|384|896);", line))
    for number, index in enumerate(swizzles):
        yield program.substituted("swizzle without its row bits", f"mask {number}", index, r", (\d+);", ", 64;")


def _bounds(program: Sm80Program) -> Iterator[Mutation]:
    limits: dict[str, list[int]] = {}
    for index in program.find(lambda line: re.match(r"setp\.gt\.s32\s+%p\d+, %r\d+, \d+;", line)):
        limits.setdefault(program.lines[index].split(",")[1], []).append(index)
    masks = [rows for rows in limits.values() if len(rows) >= 8]
    assert masks, "no comparison of columns with the row's limit"
    for number, rows in enumerate(masks):
        for what, step in (("mask one key further", -1), ("mask one key earlier", 1)):
            edits: dict[int, str | None] = {i: _with_last_number(program.lines[i], step) for i in rows}
            yield program.edited(what, f"row {number}", edits)
    yield from _loop_ends(program)
    stores = (("LSE stored one row further", "f32", 4, "row"), ("O stored one chunk further", "v", 16, "pass"))
    for what, kind, step, place in stores:
        for number, index in enumerate(program.find(lambda line, kind=kind: line.startswith(f"st.global.{kind}"))):
            edits = {index: _with_offset(program.lines[index], step)}
            yield program.edited(what, f"{place} {number}", edits)


def _with_offset(line: str, step: int) -> str:
    def add(match: re.Match[str]) -> str:
        return f"{match[1]}+{int(match[2] or 0) + step}]"

    return re.sub(r"(\[%rd\d+)\+?(\d+)?\]", add, line)


def _with_last_number(line: str, step: int) -> str:
    head, number = line.rstrip().rstrip(";").rsplit(" ", 1)
    return f"{head} {int(number) + step};"


def _loop_ends(program: Sm80Program) -> Iterator[Mutation]:
    """The back edges of the two loops over key blocks: `if (n_block > end) again`."""
    for name in ("masked loop, V", "full loop, V"):
        start = program.barriers[name]
        after = [i for i in program.find(lambda line: re.match(r"@%p\d+ bra", line)) if i > start]
        back = next(i for i in after if _is_backward(program, i))
        predicate = program.lines[back].split()[0][1:]
        compare = next(i for i in reversed(range(back)) if re.search(rf"setp\S*\s+{predicate},", program.lines[i]))
        line = program.lines[compare]
        number = re.search(r"%r\d+, (%r\d+|-?\d+);", line)
        assert number and "setp.gt.s32" in line, line
        if number[1].startswith("%"):
            yield program.substituted("one key block too many", name, compare, r"setp\.gt", "setp.ge")
        else:
            yield program.substituted("last key block left out", name, compare, r", (\d+);", f", {int(number[1]) + 1};")
            yield program.substituted("one key block too many", name, compare, r", (\d+);", f", {int(number[1]) - 1};")


def _is_backward(program: Sm80Program, index: int) -> bool:
    label = program.lines[index].split()[-1].rstrip(";") + ":"
    return label in (line.strip() for line in program.lines[:index])


# Problems


@dataclass(frozen=True)
class Problem:
    """Inputs whose launch exercises one path of the kernel, and what is right."""

    name: str
    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    causal: bool

    def expected(self) -> tuple[Tensor, Tensor]:
        return reference.attention(self.q, self.k, self.v, softmax_scale=self.scale, causal=self.causal)


def problems(spec: KernelSpec) -> list[Problem]:
    """Every pass of every bounded load has rows that do not exist: the last tiles hold one query row and one key."""
    dtype, causal = DTYPES[spec.key.dtype.value], spec.key.mask is Mask.CAUSAL
    head_dim, head_dim_v = (56, 24) if spec.key.pads_head_dim else (spec.key.head_dim, spec.key.head_dim_v)
    block_m, block_n = spec.tile.block_m, spec.tile.block_n

    def make(name: str, seqlen_q: int, seqlen_k: int, scale: float = 0.3) -> Problem:
        q = _surrounded(normal(1, seqlen_q, 2, head_dim, dtype=dtype, seed=1))
        k = _surrounded(normal(1, seqlen_k, 1, head_dim, dtype=dtype, seed=2))
        v = _surrounded(normal(1, seqlen_k, 1, head_dim_v, dtype=dtype, seed=3))
        return Problem(name, q, k, v, scale, causal)

    plain = make("random", block_m + 1, 4 * block_n + 1)
    negative = make("negative scale", block_m + 1, 3 * block_n + 1, -0.3)
    whole = make("whole blocks", 2 * block_m, 2 * block_m + 3 * block_n)
    huge = make("one huge row", block_m + 1, 4 * block_n + 1)
    huge.q[:, 20] = 0
    huge.q[:, 20, :, 3] = 2.0**12
    huge.k[..., 3] = 2.0**10
    huge.k[:, ::3, :, 3] = 2.0**10 + 8
    few = make("few keys", block_m - 7, 9)
    found = [plain, negative, whole, huge, few]
    if causal:
        nan = make("NaN in V", 2 * block_m, 2 * block_m + 2 * block_n)
        nan.v[0, -block_m // 2, 0, 3] = float("nan")
        nan.v[0, -5, 0, 7] = float("inf")
        found.append(nan)
    return found


def _surrounded(x: Tensor) -> Tensor:
    """The same values as a slice: NaN between rows, and before and after them memory that no tensor owns."""
    batch, seqlen, nheads, head_dim = x.shape
    buffer = torch.full((batch, seqlen + 256, nheads, head_dim + 64), float("nan"), dtype=x.dtype)
    return buffer[:, 128 : 128 + seqlen, :, :head_dim].copy_(x)


def case_of(spec: KernelSpec, problem: Problem) -> Case:
    """The launch of a problem, with what is right for it."""
    ref, ref_lse = problem.expected()

    def run(text: str) -> tuple[Tensor, Tensor]:
        kernel, inputs = Ptx(spec, text), (problem.q, problem.k, problem.v)
        out, lse, _ = kernel.run(*inputs, softmax_scale=problem.scale, step_budget=5_000_000)
        return out, lse

    def wrong(out: Tensor, lse: Tensor) -> str | None:
        finite = torch.isfinite(ref)
        same = torch.equal(out[~finite].double().isnan(), ref[~finite].isnan())
        error = (out.double() - ref)[finite].abs().max() if finite.any() else torch.zeros(())
        bound = torch.finfo(out.dtype).eps * float(problem.v[torch.isfinite(problem.v)].abs().max()) + 1e-5
        if not (same and error <= bound):
            return "wrong out"
        return None if reference.compare_lse(lse, ref_lse).ok else "wrong lse"

    return Case(problem.name, run, wrong)


def cases_of(spec: KernelSpec) -> list[Case]:
    return [case_of(spec, problem) for problem in problems(spec)]


FAMILY = Family(
    name="SM80",
    kernels=KERNELS,
    problems="Problems: random values (the last tiles hold one row and one key), negative softmax_scale, whole blocks "
    "only, one row of\nhuge scores (the tile is done again), few keys, NaN and infinity in V (causal: done again with "
    "zeros).",
    text_of=lambda spec: ptx_of(spec).text,
    kinds_of=kinds_of,
    mutations=mutations,
    no_effect=no_effect,
    cases_of=cases_of,
)
