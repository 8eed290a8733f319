# SPDX-License-Identifier: Apache-2.0
"""Mutations of the SM90 forward kernel's PTX, and the problems that must expose them. Places have the names of
sm90_places.py."""

from __future__ import annotations

import re
from collections.abc import Iterator

from attnsmith.codegen.spec import KernelSpec, Scheduler

from tests.sim.fwd_sm90_kernel import box_row_bytes, ptx_of
from tests.sim.mutations import Family, Mutation, sampled
from tests.sim.sm90_places import Sm90Program, key_loops, num_warpgroups, transposes_v
from tests.sim.sm90_problems import KERNELS, PROBLEMS, cases_of


class Edits:
    """Edits of one kernel, by what they do to which instruction."""

    def __init__(self, spec: KernelSpec) -> None:
        self.program = Sm90Program(spec)
        self.spec = spec

    def removed(self, what: str, place: str, *indices: int) -> Mutation:
        return self.program.edited(what, place, dict.fromkeys(indices))

    def with_operand(self, what: str, place: str, index: int, operand: int, value: str) -> Mutation:
        """The operand-th register of a line replaced: `value` is an operation on it, `add.s32 {new}, {old}, 1;`."""
        line = self.program.lines[index].strip()
        match = list(re.finditer(r"%r[sd]?\d+", line))[operand]
        kind = {"%rs": "b16", "%rd": "b64"}.get(match[0][:3], "b32")
        changed = f"{line[: match.start()]}changed{line[match.end() :]}"
        compute = value.format(new="changed", old=match[0])
        block = f"{{\n.reg .{kind} changed;\n{compute}\n{changed}\n}}"
        if "wgmma" in line or line.startswith("mov.b64"):
            block = f".reg .b32 changed;\n{compute}\n{changed}"  # the line's own block scopes the name
        return self.program.edited(what, place, {index: block})

    def inserted(self, what: str, place: str, index: int, text: str) -> Mutation:
        return self.program.edited(what, place, {index: f"{self.program.lines[index]}\n{text}"})

    def moved(self, what: str, place: str, index: int, after: int) -> Mutation:
        lines = self.program.lines
        return self.program.edited(what, place, {index: None, after: f"{lines[after]}\n{lines[index]}"})


def mutations(spec: KernelSpec) -> Iterator[Mutation]:
    edits = Edits(spec)
    for family in (_mbarriers, _copies, _proxies_and_barriers, _groups, _products, _addresses, _rings, _bounds, _setup):
        yield from family(edits)


def _mbarriers(edits: Edits) -> Iterator[Mutation]:
    program, lines = edits.program, edits.program.lines
    for name, index in program.waits.items():
        poll = re.fullmatch(r"mbarrier\.try_wait\S+ (\w+), \[(%r\d+)\], (%r\d+);", lines[index].strip())
        assert poll, lines[index]
        passes = f"setp.eq.u32 {poll[1]}, 0, 0;"
        yield program.edited("wait removed", name, {index: passes})
        yield edits.with_operand("wait with the other parity", name, index, 1, "xor.b32 {new}, {old}, 1;")
    for name, index in program.arrivals.items():
        yield edits.removed("arrival removed", name, index)
    waited = {name.split(",")[0] for name in program.waits}
    for name, index in program.inits.items():
        if name.split()[0] not in waited:
            continue  # a barrier that this kernel does not use
        yield edits.with_operand("init with one arrival more", name, index, 1, "add.u32 {new}, {old}, 1;")
        yield edits.with_operand("init with one arrival less", name, index, 1, "sub.u32 {new}, {old}, 1;")


def _copies(edits: Edits) -> Iterator[Mutation]:
    program, lines = edits.program, edits.program.lines
    for name, index in program.expects.items():
        yield edits.with_operand("expect_tx of 16 bytes more", name, index, 1, "add.u32 {new}, {old}, 16;")
        yield edits.with_operand("expect_tx of 16 bytes less", name, index, 1, "sub.u32 {new}, {old}, 16;")
        yield edits.removed("expect_tx removed", name, index)
    copies = [(f"load, {name}", i) for name, found in program.loads.items() for i in found]
    copies += [("store, O", i) for i in program.stores]
    for name, index in sampled([i for _, i in copies], lambda i: next(name for name, at in copies if at == i)):
        line = lines[index]
        yield edits.removed("copy removed", name, index)
        registers = [m[0] for m in re.finditer(r"%r[sd]?\d+", line)]
        is_load = name.startswith("load")
        shared = 0 if is_load else len(registers) - 1
        yield edits.with_operand(
            "copy 1024 bytes further in shared memory", name, index, shared, "add.u32 {new}, {old}, 1024;"
        )
        first, rank = (2, int(line.split(".tensor.")[1][0])) if is_load else (1, int(line.split(".tensor.")[1][0]))
        for k, dim in enumerate(_dims(edits.spec, name, rank)):
            yield edits.with_operand(f"copy one {dim} further", name, index, first + k, "add.s32 {new}, {old}, 1;")
        if ".multicast" in line:
            mask = next(k for k, r in enumerate(registers) if r.startswith("%rs"))
            for cta in (0, 1):
                yield edits.with_operand(
                    f"multicast to CTA {cta} only", name, index, mask, f"mov.b16 {{new}}, {1 << cta};"
                )
    for what, form in (
        ("bulk commit removed", "cp.async.bulk.commit_group"),
        ("bulk wait removed", "cp.async.bulk.wait_group"),
    ):
        for index in program.find(lambda line, form=form: line.startswith(form)):
            yield edits.removed(what, "epilogue", index)
    drain = program.find(lambda line: line.startswith("cp.async.bulk.wait_group"))[0]
    yield edits.moved(
        "buffer released before it was read", "Q's, by O's store", drain, program.arrivals["empty_q, epilogue"]
    )


def _dims(spec: KernelSpec, name: str, rank: int) -> list[str]:
    if rank == 5:
        return ["column", "head of the group", "row", "head", "batch"]
    if spec.key.v_is_col_major and name.startswith("load, full_v"):
        return ["row", "column", "head", "batch"]
    return ["column", "row", "head", "batch"]


def _proxies_and_barriers(edits: Edits) -> Iterator[Mutation]:
    program = edits.program
    for name, index in program.proxies.items():
        yield edits.removed("proxy fence removed", name, index)
    for name, index in {**program.barriers, **program.turns}.items():
        is_turn = name.startswith(("turn", "first turn"))
        yield edits.removed("barrier removed", name, index)
        yield edits.with_operand("barrier with one warp more", name, index, 1, "add.u32 {new}, {old}, 32;")
        yield edits.with_operand("barrier with one warp less", name, index, 1, "sub.u32 {new}, {old}, 32;")
        if is_turn:
            yield edits.with_operand("barrier of another warpgroup", name, index, 0, "add.u32 {new}, {old}, 1;")
        elif num_warpgroups(edits.spec) > 1 and not name.startswith("P staged"):
            yield edits.with_operand("barrier shared by all warpgroups", name, index, 0, "mov.u32 {new}, 1;")


def _groups(edits: Edits) -> Iterator[Mutation]:
    program, lines = edits.program, edits.program.lines
    for name, index in program.fences.items():
        yield edits.removed("wgmma.fence removed", name, index)
    for name, index in program.commits.items():
        yield edits.removed("wgmma.commit_group removed", name, index)
        accumulators, weights = _registers(lines[program.products[name][0]])
        touched = {
            "accumulator read in flight": f"{{\n.reg .f32 copy;\nmov.f32 copy, {accumulators[-1]};\n}}",
            "accumulator written in flight": f"mov.f32 {accumulators[-1]}, 0f00000000;",
        }
        if weights:
            touched["A operand written in flight"] = f"mov.b32 {weights[-1]}, 0;"
        for what, text in touched.items():
            yield edits.inserted(what, name, index, text)
    for name, index in program.drains.items():
        yield edits.removed("wgmma.wait_group removed", name, index)
        pending = re.search(r"aligned (\d);", lines[index])
        assert pending
        more = f"aligned {int(pending[1]) + 1};"
        yield program.substituted("wgmma.wait_group leaves one group more", name, index, r"aligned \d;", more)
    for name, index in program.arrivals.items():
        if name.startswith("empty_") and not name.endswith(("epilogue", "V warps", "tile")):
            wait = max(i for i in program.drains.values() if i < index)
            label = next(i for i in range(index, len(lines)) if lines[i].startswith("$L"))
            yield edits.moved("buffer released before it was read", name, wait, label)


def _registers(product: str) -> tuple[list[str], list[str]]:
    """Accumulators and, where they are registers, A's of a wgmma."""
    lists = [found.split(", ") for found in re.findall(r"\{([^}]*)\}", product)]
    return lists[0], lists[1] if len(lists) > 1 else []


def _products(edits: Edits) -> Iterator[Mutation]:
    program, lines = edits.program, edits.program.lines
    steps = {i: name for name, found in program.products.items() for i in found}
    for name, index in sampled(list(steps), lambda i: steps[i]):
        block = range(max(i for i in range(index) if lines[i].strip() == "{"), index)
        scale = next(i for i in block if lines[i].startswith("setp.ne.b32 p"))
        yield program.substituted("scale-d inverted", name, scale, r"setp\.ne", "setp.eq")
        for flags in re.finditer(r"p, 1, 1, (\d)(?:, (\d))?;", lines[index]):
            yield _flipped(edits, name, index, flags)
        for x in "ab":
            for at in (i for i in block if lines[i].startswith(f"mov.b64 {x},")):
                yield from _descriptor(edits, f"{name}, {x.upper()}", at)


def _flipped(edits: Edits, name: str, index: int, flags: re.Match[str]) -> Mutation:
    """The last transposition flag, B's."""
    line = edits.program.lines[index]
    at = flags.end() - 2
    return edits.program.edited(
        "operand transposed", f"{name}, B", {index: line[:at] + str(1 - int(line[at])) + line[at + 1 :]}
    )


def _descriptor(edits: Edits, name: str, index: int) -> Iterator[Mutation]:
    line = edits.program.lines[index]
    match = re.search(r"\{ (%r\d+), (-?\d+)\}", line)
    assert match, line
    high = int(match[2]) & 0xFFFFFFFF
    for what, changed in (
        ("descriptor with another swizzle", (high & 0x3FFFFFFF) | (high >> 30) % 3 + 1 << 30),
        ("descriptor with half the stride (SBO)", high & ~0x3FFF | (high & 0x3FFF) // 2),
    ):
        yield edits.program.edited(what, name, {index: line.replace(match[2], str(changed))})
    yield edits.with_operand("descriptor 32 bytes further", name, index, 0, "add.u32 {new}, {old}, 2;")
    yield edits.with_operand(
        "descriptor with another leading offset (LBO)", name, index, 0, "xor.b32 {new}, {old}, 131072;"
    )


def _addresses(edits: Edits) -> Iterator[Mutation]:
    program, lines = edits.program, edits.program.lines
    masks = [
        i
        for i in program.find(lambda line: re.match(r"and\.b32\s+%r\d+, %r\d+, (16|48|112);", line))
        if _defines(lines[i - 1], lines[i], r"shr\.u32\s+{}, %r\d+, 3;")
    ]
    for name, index in sampled(masks, program.region):
        yield program.substituted("swizzle without its row bits", name, index, r", \d+;", ", 0;")
    for name, index in sampled(program.find(lambda line: line.startswith("ldmatrix")), program.region):
        yield program.substituted("ldmatrix without trans", name, index, r"\.trans", "")
    if edits.spec.key.dtype.is_fp8:
        swaps = [i for i in program.find(lambda line: line.startswith("prmt")) if i not in program.consumer]
        for name, index in sampled(swaps, program.region):
            yield program.substituted(
                "bytes of V in another order", name, index, r"(%r\d+), (%r\d+), (%r\d+);", r"\2, \1, \3;"
            )


def _defines(before: str, line: str, form: str) -> bool:
    """Whether the line before sets the second register of `line` by an instruction of this form."""
    source = re.findall(r"%r\d+", line)[1]
    return bool(re.match(r"\s*" + form.format(source), before))


def _rings(edits: Edits) -> Iterator[Mutation]:
    program, lines = edits.program, edits.program.lines
    for index in program.find(lambda line: re.match(r"setp\.eq\.s32\s+%p\d+, %r\d+, \d+;", line)):
        wrap = re.match(r"\s*setp\.eq\.s32\s+(%p\d+), (%r\d+), (\d+);", lines[index])
        assert wrap
        after = lines[index + 1 : index + 6]
        if any(re.search(rf"selp\.b32\s+%r\d+, 0, {wrap[2]}, {wrap[1]};", line) for line in after):
            late = f", {int(wrap[3]) + 1};"
            yield program.substituted("ring one buffer longer", program.region(index), index, r", \d+;", late)
    for index in program.find(lambda line: re.match(r"xor\.b32\s+(%r\d+), \1, (%r\d+|1);", line)):
        other = lines[index].split(", ")[2].strip(" ;")
        if other == "1" or re.match(rf"\s*selp\.u32\s+{other}, 1, 0, %p", lines[index - 1]):
            yield edits.removed("parity kept at the ring's end", program.region(index), index)


def _bounds(edits: Edits) -> Iterator[Mutation]:
    program, lines = edits.program, edits.program.lines
    limits: dict[str, list[int]] = {}
    for index in program.find(lambda line: re.match(r"setp\.gt\.s32\s+%p\d+, %r\d+, \d+;", line)):
        limits.setdefault(lines[index].split(",")[1], []).append(index)
    for number, rows in enumerate(rows for rows in limits.values() if len(rows) >= 8):
        for what, step in (("mask one key further", -1), ("mask one key earlier", 1)):
            stepped: dict[int, str | None] = {i: _with_last_number(lines[i], step) for i in rows}
            yield program.edited(what, f"{program.region(rows[0])}, row {number % 2}", stepped)
    yield from _loop_ends(edits)
    for number, index in enumerate(program.find(lambda line: line.startswith("st.global.f32"))):
        yield program.substituted("LSE stored one row further", f"row {number}", index, r"\[(%rd\d+)\]", r"[\1+4]")


def _with_last_number(line: str, step: int) -> str:
    head, number = line.rstrip().rstrip(";").rsplit(" ", 1)
    return f"{head} {int(number) + step};"


def _loop_ends(edits: Edits) -> Iterator[Mutation]:
    program, lines = edits.program, edits.program.lines
    loops = {f"consumer, {name}": program.waits[f"full_k, {name}"] for name in key_loops(edits.spec)}
    loops["producer"] = program.waits["empty_v, loop"]
    if edits.spec.key.dtype.is_fp8:
        loops["V warps"] = program.waits["full_v, V warps"]
    for name, at in loops.items():
        yield from _loop_end(edits, "key block", name, program.loop_compare(at))
    if edits.spec.tile.scheduler is not Scheduler.SINGLE:
        for name, at in (
            ("consumer", program.waits["full_q, tile"]),
            ("producer", program.waits["empty_q, warpgroup 0"]),
        ):
            index = program.loop_compare(at)
            assert "setp.lt.u32" in lines[index], lines[index]
            yield program.substituted("one tile too many", name, index, r"setp\.lt", "setp.le")


def _loop_end(edits: Edits, unit: str, name: str, index: int) -> Iterator[Mutation]:
    program, line = edits.program, edits.program.lines[index]
    number = re.search(r"setp\.gt\.s32\s+%p\d+, %r\d+, (%r\d+|-?\d+);", line)
    assert number, line
    if number[1].startswith("%"):
        yield program.substituted(f"one {unit} too many", name, index, r"setp\.gt", "setp.ge")
    else:
        yield program.edited(f"one {unit} too many", name, {index: _with_last_number(line, -1)})
        yield program.edited(f"last {unit} left out", name, {index: _with_last_number(line, 1)})


def _setup(edits: Edits) -> Iterator[Mutation]:
    program, lines = edits.program, edits.program.lines
    for index in program.find(lambda line: line.startswith("setmaxnreg")):
        name, count = ("consumers", 24) if ".inc" in lines[index] else ("producer", 24)
        more = int(lines[index].split()[1].rstrip(";")) + count
        yield edits.removed("setmaxnreg removed", name, index)
        if more <= 256:
            yield program.substituted(f"setmaxnreg with {count} registers more", name, index, r" \d+;", f" {more};")
    start = program.find(lambda line: line.startswith(("bar.sync \t0", "barrier.cluster")))
    yield edits.removed("barrier removed", "start", *start)
    for index in program.find(lambda line: line.startswith("fence.mbarrier_init")):
        yield edits.removed("fence.mbarrier_init removed", "start", index)
    for index in program.find(lambda line: line.startswith("mapa")):
        yield edits.program.substituted(
            "remote arrival at the own CTA", program.region(index), index, r", %r\d+;", ", 0;"
        )
    if edits.spec.tile.scheduler is Scheduler.DYNAMIC:
        yield from _tile_counter(edits)


def _tile_counter(edits: Edits) -> Iterator[Mutation]:
    program = edits.program
    resets = program.named(
        "atom.exch", program.find(lambda line: line.startswith("atom.global.exch")), ["next tile", "finished CTAs"]
    )
    for name, index in resets.items():
        yield edits.removed("counter not reset", name, index)
    adds = program.named(
        "atom.add", program.find(lambda line: line.startswith("atom.global.add")), ["next tile", "finished CTAs"]
    )
    for name, index in adds.items():
        yield program.substituted("counter stepped by 2", name, index, ", 1;", ", 2;")
    for index in program.find(lambda line: line.startswith("membar")):
        yield edits.removed("membar removed", "end of the CTA", index)
    for index in program.find(lambda line: re.match(r"st\.shared\.u32\s+\[\S+\+\d+\], %r\d+;", line)):
        yield edits.removed("tile number not stored", program.region(index), index)


def no_effect(mutation: Mutation) -> str | None:
    """Why an edit changes nothing that any input could show; None where it must be reported."""
    what, spec = mutation.what, mutation.spec
    place = mutation.place.removesuffix(", first").removesuffix(", last")
    step = place.split(", ")[-1]
    is_unneeded = what in ("wait removed", "arrival removed", "init with one arrival more") or place.startswith("Q's")
    if spec.tile.scheduler is Scheduler.SINGLE and is_unneeded and place.startswith(("empty_q", "Q's")):
        return "one tile per CTA: nobody loads Q again"
    is_first = place in ("empty_k, first block", "empty_v, first block")
    if what == "wait removed" and is_first and spec.tile.scheduler is Scheduler.SINGLE:
        return "one tile per CTA: the buffer has never been used"
    if what == "wait removed" and place == "empty_v, first block" and transposes_v(spec):
        return "redundant: Q's load has waited for the epilogue of the tile before, whose V has been transposed"
    if what == "one key block too many" and place == "producer" and spec.tile.scheduler is Scheduler.SINGLE:
        return "loads zeros into a buffer that nobody reads again (so does CUTLASS's wgmma_tma_sm90)"
    if what == "wait removed" and place == "empty_k, end of the CTA":
        return "redundant: whoever has released the last V has released every K before it"
    if what == "scale-d inverted" and mutation.place == "O, masked loop, first" and _masks_two_blocks(spec):
        return "two blocks are masked at most, so that this product is a tile's first, onto 0"
    if (
        what == "wgmma.fence removed"
        and place.startswith("O")
        and step in key_loops(spec)
        and spec.tile.overlaps_softmax
    ):
        return "redundant: since S's wgmma.fence no register of the product has been touched"
    if what == "buffer released before it was read" and "v" in place.split(",")[0] and step == "last block":
        return "V's buffers are loaded next after the next tile's Q, which waits for this tile's epilogue"
    if what == "scale-d inverted" and place.startswith("S") and mutation.place.endswith("first"):
        return "the compiler clears the accumulators, which the program leaves undefined"
    if what.endswith("(LBO)") and not _needs_leading_offset(spec, place):
        return "not used: a K-major operand, or one that is no wider than its swizzle"
    if what == "setmaxnreg removed" and place == "consumers":
        return "a count that ptxas obeys: the kernel would spill, not fail"
    if what == "fence.mbarrier_init removed" and spec.tile.cluster_size > 1:
        return "redundant: barrier.cluster.arrive.release follows"
    if what == "membar removed":
        return "orders atomics on two addresses; here a thread's are executed in order"
    if what == "wait removed" and place.startswith("empty_tile"):
        return "redundant: the producer's Q loads have waited for the epilogue of the tile before"
    if what == "barrier of another warpgroup" and place == "first turn" and num_warpgroups(spec) > 2:
        return "another warpgroup begins"
    if place.startswith("P staged") and what == "barrier removed":
        return "redundant but for bar.warp.sync: a warp's part of a wgmma reads its own 16 rows of P, which it wrote"
    return None


def _masks_two_blocks(spec: KernelSpec) -> bool:
    """Whether the mask's boundary crosses at most two blocks of a tile (packed: of two heads at least)."""
    rows = spec.tile.block_m // (2 if spec.key.packs_gqa else 1)
    return spec.tile.overlaps_softmax and rows <= spec.tile.block_n


def _needs_leading_offset(spec: KernelSpec, place: str) -> bool:
    """Only V as it came, where it takes more than one box."""
    row_bytes = spec.key.head_dim_v * 2
    return (
        place.startswith("O")
        and place.endswith("B")
        and not spec.key.dtype.is_fp8
        and row_bytes > box_row_bytes(row_bytes)
    )


def kinds_of(spec: KernelSpec) -> list[str]:
    return list(dict.fromkeys(mutation.what for mutation in mutations(spec)))


FAMILY = Family(
    name="SM90",
    kernels=KERNELS,
    problems=PROBLEMS,
    text_of=lambda spec: ptx_of(spec).text,
    kinds_of=kinds_of,
    mutations=mutations,
    no_effect=no_effect,
    cases_of=cases_of,
)
