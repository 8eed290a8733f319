# SPDX-License-Identifier: Apache-2.0
"""The tests can fail: kernels with one thing wrong are reported, by the simulator's checks or by a wrong result.

docs/mutations.md lists every mutation with what was reported.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import torch
from attnsmith.codegen.spec import KernelSpec
from torch import Tensor

from tests.sim import mutations
from tests.sim.fwd_kernel import ptx_of
from tests.sim.mutations import KERNELS, Mutation, Problem


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """The tensors are small: on busy cores torch's threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@functools.cache
def cases_of(spec: KernelSpec) -> list[tuple[Problem, tuple[Tensor, Tensor]]]:
    return mutations.cases_of(spec)


@functools.cache
def mutations_of(spec: KernelSpec) -> list[Mutation]:
    return list(mutations.mutations(spec))


@pytest.mark.parametrize("spec", KERNELS, ids=lambda spec: spec.name)
def test_the_unchanged_kernel_is_right(spec: KernelSpec) -> None:
    """Without this every mutation would count as reported."""
    for problem, expected in cases_of(spec):
        assert mutations.verdict(ptx_of(spec), problem, expected) is None, problem.name
    assert {mutation.what for mutation in mutations_of(spec)} == set(mutations.kinds_of(spec))


BY_KIND = [
    pytest.param(spec, kind, id=f"{spec.name}-{kind.replace(' ', '-')}")
    for spec in KERNELS
    for kind in mutations.kinds_of(spec)
]


@pytest.mark.parametrize("spec,kind", BY_KIND)
def test_mutation_is_reported(spec: KernelSpec, kind: str) -> None:
    """Each place at a time. What is listed as having no effect must have none, so that the list stays true."""
    wrong = []
    for mutation in mutations_of(spec):
        if mutation.what == kind:
            found, reason = mutations.report(mutation, cases_of(spec)), mutations.no_effect(mutation)
            if (found is None) != (reason is not None):
                wrong.append(f"{mutation.place}: reported {found}, expected {reason or 'a report'}")
    assert not wrong, "\n".join(wrong)
