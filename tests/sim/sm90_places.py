# SPDX-License-Identifier: Apache-2.0
"""The SM90 forward kernel's PTX with its places named: who waits for, arrives at and loads to which mbarrier, which
wgmma group is which. Responsible for names, by barrier and in program order; mutations_sm90.py edits the places."""

from __future__ import annotations

import re
from functools import cached_property

from attnsmith.codegen.spec import KernelSpec, Mask, Scheduler

from tests.sim.fwd_sm90_kernel import ptx_of
from tests.sim.mutations import Program

NUM_TILE_SLOTS = 2  # kTileRing of sm90/storage.hpp
LOADS_OF_K = ["first block", "second block", "loop"]
LOADS_OF_V = ["first block", "loop"]
Names = dict[str, list[str]]


def num_warpgroups(spec: KernelSpec) -> int:
    return spec.tile.num_warps // 4


def transposes_v(spec: KernelSpec) -> bool:
    return spec.key.dtype.is_fp8 and not spec.key.v_is_col_major


def key_loops(spec: KernelSpec) -> list[str]:
    is_masked = spec.key.mask is Mask.CAUSAL or not spec.tile.overlaps_softmax
    return ["masked loop", "full loop"] if is_masked else ["full loop"]


def k_steps(spec: KernelSpec) -> list[str]:
    """Where a consumer multiplies with K."""
    return [*(["first block"] if spec.tile.overlaps_softmax else []), *key_loops(spec)]


def v_steps(spec: KernelSpec) -> list[str]:
    """Where a consumer multiplies with V."""
    return [*key_loops(spec), *(["last block"] if spec.tile.overlaps_softmax else [])]


def q_writes(spec: KernelSpec) -> list[str]:
    """Where a consumer changes Q in shared memory."""
    return [*(["unused rows"] if spec.key.packs_gqa else []), "sign of Q"]


def expected_waits(spec: KernelSpec) -> Names:
    """Waiting places of each barrier."""
    drain = ["end of the CTA"] if spec.tile.cluster_size > 1 else []
    names = {
        "empty_q": [f"warpgroup {i}" for i in range(num_warpgroups(spec))],
        "empty_k": [*LOADS_OF_K, *drain],
        "empty_v": [*LOADS_OF_V, *drain],
        "full_q": ["tile"],
        "full_k": k_steps(spec),
    }
    if spec.key.dtype.is_fp8:
        names |= {"full_v": ["V warps"], "full_vt": v_steps(spec)}
        names |= {"empty_vt": ["V warps"]} if transposes_v(spec) else {}
    else:
        names |= {"full_v": v_steps(spec)}
    return names | _tile_names(spec, ("empty_tile", "full_tile"), "full_tile")


def expected_arrivals(spec: KernelSpec) -> Names:
    """Arriving places of each barrier, those that expect bytes left out."""
    names = {"empty_q": ["epilogue"], "empty_k": k_steps(spec)}
    if spec.key.dtype.is_fp8:
        names |= {"full_vt": ["V warps"]}
    if transposes_v(spec):
        names |= {"empty_v": ["V warps"], "empty_vt": v_steps(spec)}
    else:
        names |= {"empty_v": v_steps(spec)}
    return names | _tile_names(spec, ("full_tile", "empty_tile"), "empty_tile")


def _tile_names(spec: KernelSpec, barriers: tuple[str, ...], of_readers: str) -> Names:
    if spec.tile.scheduler is not Scheduler.DYNAMIC:
        return {}
    names = {barrier: ["first tile", "next tile"] for barrier in barriers}
    return names | ({f"{of_readers} of V warps": ["first tile", "next tile"]} if spec.key.dtype.is_fp8 else {})


def expected_expects(spec: KernelSpec) -> Names:
    """Places that arrive with a number of bytes, one per loaded tile."""
    q = [f"warpgroup {i}" for i in range(num_warpgroups(spec))]
    return {"full_q": q, "full_k": LOADS_OF_K, "full_v": LOADS_OF_V}


def barriers(spec: KernelSpec) -> list[str]:
    """The mbarriers in the order in which they are initialized: sm90/storage.hpp's Control::init."""
    names = [f"{name} {i}" for i in range(num_warpgroups(spec)) for name in ("full_q", "empty_q")]
    per_stage = ["full_k", "empty_k", "full_v", "empty_v"]
    per_stage += ["full_vt", "empty_vt"] if spec.key.dtype.is_fp8 else []
    names += [f"{name} {i}" for i in range(spec.tile.num_stages) for name in per_stage]
    return [*names, *(f"{name} {i}" for i in range(NUM_TILE_SLOTS) for name in ("full_tile", "empty_tile"))]


class Sm90Program(Program):
    """A kernel's PTX with its places named."""

    def __init__(self, spec: KernelSpec) -> None:
        super().__init__(spec, ptx_of(spec).text)
        self.inits = self.named(
            "mbarrier.init", self.find(lambda line: line.startswith("mbarrier.init")), barriers(spec)
        )
        self._offsets = {self._offset(index): name for name, index in self.inits.items()}
        self._offsets[self._offset(self.inits["full_q 0"]) - 8] = "full_q 0"  # by a consumer's number in the CTA
        self.consumer = self._reachable(self.find(lambda line: line.startswith("setmaxnreg.inc"))[0])
        self.waits = self._at_barriers("mbarrier.try_wait", expected_waits(spec))
        self.expects = self._at_barriers("mbarrier.arrive.expect_tx", expected_expects(spec))
        self.arrivals = self._at_barriers("mbarrier.arrive", expected_arrivals(spec))
        self.groups = self._groups()
        self.fences = self._of_consumers("wgmma.fence", self.groups)
        self.commits = self._of_consumers("wgmma.commit_group", self.groups)
        self.drains = self._of_consumers("wgmma.wait_group", self.groups)
        p_steps = [f"P, {step}" for step in k_steps(spec)] if spec.tile.p_in_smem else []
        self.proxies = self._of_consumers("fence.proxy.async", [*q_writes(spec), *p_steps, "O staged"])
        self.barriers = self._of_consumers("bar.sync", self._barrier_names())
        turns = [f"turn passed, {step}" for step in key_loops(spec)] if spec.tile.is_ping_pong else []
        self.turns = self._of_consumers("bar.arrive", ["first turn", *turns] if turns else [])
        if spec.key.dtype.is_fp8:
            self.proxies["V warps"] = self._only("fence.proxy.async", is_consumer=False)
        self._check_groups()

    def _groups(self) -> list[str]:
        steps = [f"{x}, {step}" for step in key_loops(self.spec) for x in ("S", "O")]
        return ["S, first block", *steps, "O, last block"] if self.spec.tile.overlaps_softmax else steps

    def _barrier_names(self) -> list[str]:
        names = q_writes(self.spec)
        for step in k_steps(self.spec):
            names += [f"turn, {step}"] if self.spec.tile.is_ping_pong and step != "first block" else []
            names += [f"P staged, {step}"] if self.spec.tile.p_in_smem else []
        return [*names, "O staged"]

    def _check_groups(self) -> None:
        """S waits for K, O for V: so that the names of groups are right."""
        for name, index in self.fences.items():
            product, step = name.split(", ")
            waited = {
                wait: at for wait, at in self.waits.items() if wait.startswith("full_" + {"S": "k", "O": "v"}[product])
            }
            before = max((at, wait) for wait, at in waited.items() if at < index)[1]
            assert before.endswith(step), f"{name} waits for {before}"

    def _of_consumers(self, instruction: str, names: list[str]) -> dict[str, int]:
        found = [i for i in self.find(lambda line: line.startswith(instruction)) if i in self.consumer]
        return self.named(instruction, found, names)

    def _only(self, instruction: str, *, is_consumer: bool) -> int:
        found = self.find(lambda line: line.startswith(instruction))
        return next(i for i in found if (i in self.consumer) == is_consumer)

    def _at_barriers(self, instruction: str, expected: Names) -> dict[str, int]:
        """`barrier, place` of every instruction of this form, by the barrier that its address names."""
        found: dict[str, list[int]] = {}
        form = re.compile(re.escape(instruction) + (r"(?!\.expect)" if instruction == "mbarrier.arrive" else ""))
        for index in self.find(form.match):
            name = self.barrier_at(index).split()[0]
            is_reader = name in ("full_tile", "empty_tile") and f"{name} of V warps" in expected
            found.setdefault(name if index in self.consumer or not is_reader else f"{name} of V warps", []).append(
                index
            )
        assert set(found) == set(expected), f"{self.spec.name}: {instruction} of {set(found)}, expected {set(expected)}"
        named = {name: self.named(f"{instruction} of {name}", found[name], names) for name, names in expected.items()}
        return {f"{barrier}, {place}": i for barrier, places in named.items() for place, i in places.items()}

    def barrier_at(self, index: int) -> str:
        """The mbarrier, the first of its ring, that a line names."""
        return self._offsets[self._offset(index)]

    def _offset(self, index: int) -> int:
        """The constant part of the mbarrier address that a line names."""
        line = self.lines[index]
        is_copy = line.strip().startswith("cp.async.bulk")
        match = re.search(r"\}\], \[(%r\d+)\]" if is_copy else r"\[(%r\d+|remote)\]", line)
        assert match, line
        if match[1] == "remote":
            mapped = re.search(r"remote, (%r\d+),", self.lines[index - 1])
            assert mapped, self.lines[index - 1]
            return self._constant(mapped[1], index - 1)
        return self._constant(match[1], index)

    def _constant(self, register: str, before: int) -> int:
        """The constant part of an address: what its additions add up to."""
        assignment = re.compile(r"\s*(mov|add|cvt)\S*\s+" + re.escape(register) + r", (.*);")
        for index in reversed(range(before)):
            if match := assignment.match(self.lines[index]):
                terms = match[2].split(", ")
                return sum(self._constant(x, index) if x[0] == "%" else int(x) for x in terms if x != "smem_bytes")
        return 0

    def _reachable(self, start: int) -> set[int]:
        """Lines to which control can come from a line."""
        seen: set[int] = set()
        todo = [start]
        while todo:
            index = todo.pop()
            while index < len(self.lines) and index not in seen:
                seen.add(index)
                line = self.lines[index].strip()
                if branch := re.search(r"bra(?:\.uni)?\s+(\$L\w+);", line):
                    todo.append(self.labels[branch[1]])
                if line.startswith(("bra", "ret")) and "WAIT" not in line:
                    break
                index += 1
        return seen

    @cached_property
    def labels(self) -> dict[str, int]:
        return {line.strip()[:-1]: i for i, line in enumerate(self.lines) if re.match(r"\s*\$L\w+:", line)}

    @cached_property
    def loads(self) -> dict[str, list[int]]:
        """TMA loads of each tile, box after box."""
        found: dict[str, list[int]] = {name: [] for name in self.expects}
        for index in self.find(lambda line: line.startswith("cp.async.bulk.tensor") and "mbarrier::" in line):
            name = max((at, name) for name, at in self.expects.items() if at < index)[1]
            assert self.barrier_at(index).split()[0] == name.split(",")[0], f"{name} loads to {self.barrier_at(index)}"
            found[name].append(index)
        assert all(found.values()), f"{self.spec.name}: nothing is loaded for {found}"
        return found

    @cached_property
    def stores(self) -> list[int]:
        return self.find(lambda line: line.startswith("cp.async.bulk.tensor") and "bulk_group" in line)

    @cached_property
    def products(self) -> dict[str, list[int]]:
        """The wgmmas of each group."""
        found = self.find(lambda line: line.startswith("wgmma.mma_async"))
        return {name: [i for i in found if self.fences[name] < i < self.commits[name]] for name in self.groups}

    def region(self, index: int) -> str:
        """The named place before a line."""
        events = {
            **{f"wait, {name}": i for name, i in self.waits.items()},
            **{f"arrival, {name}": i for name, i in self.arrivals.items()},
            **{f"expect_tx, {name}": i for name, i in self.expects.items()},
            **{f"barrier, {name}": i for name, i in self.barriers.items()},
            **{f"wgmma, {name}": i for name, i in self.commits.items()},
        }
        return "after " + max(((at, name) for name, at in events.items() if at < index), default=(0, "the setup"))[1]

    def loop_compare(self, index: int) -> int:
        """The comparison that ends the innermost loop around a line."""
        ends = []
        for at in range(index, len(self.lines)):
            branch = re.match(r"\s*@(%p\d+) bra\s+(\$L\w+);", self.lines[at])
            if branch and self.labels[branch[2]] < index:
                ends.append((at - self.labels[branch[2]], at, branch[1]))
        _, end, predicate = min(ends)
        setp = re.compile(rf"\s*setp\S*\s+{predicate},")
        return next(i for i in reversed(range(end)) if setp.match(self.lines[i]))
