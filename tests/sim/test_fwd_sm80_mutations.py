# SPDX-License-Identifier: Apache-2.0
"""The tests can fail: SM80 kernels with one thing wrong are reported, by the simulator's checks or by a wrong result.

docs/mutations.md lists every mutation with what was reported.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import torch
from attnsmith.codegen.spec import KernelSpec

from tests.sim.mutations import Case, Mutation, disagreements
from tests.sim.mutations_sm80 import FAMILY


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """The tensors are small: on busy cores torch's threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@functools.cache
def cases_of(spec: KernelSpec) -> list[Case]:
    return FAMILY.cases_of(spec)


@functools.cache
def mutations_of(spec: KernelSpec) -> list[Mutation]:
    return list(FAMILY.mutations(spec))


@pytest.mark.parametrize("spec", FAMILY.kernels, ids=lambda spec: spec.name)
def test_the_unchanged_kernel_is_right(spec: KernelSpec) -> None:
    """Without this every mutation would count as reported."""
    for case in cases_of(spec):
        assert case.verdict(FAMILY.text_of(spec)) is None, case.name
    assert {mutation.what for mutation in mutations_of(spec)} == set(FAMILY.kinds_of(spec))


BY_KIND = [
    pytest.param(spec, kind, id=f"{spec.name}-{kind.replace(' ', '-')}")
    for spec in FAMILY.kernels
    for kind in FAMILY.kinds_of(spec)
]


@pytest.mark.parametrize("spec,kind", BY_KIND)
def test_mutation_is_reported(spec: KernelSpec, kind: str) -> None:
    """Each place at a time. What is listed as having no effect must have none, so that the list stays true."""
    wrong = disagreements(FAMILY, [m for m in mutations_of(spec) if m.what == kind], cases_of(spec))
    assert not wrong, "\n".join(wrong)
