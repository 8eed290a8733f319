# SPDX-License-Identifier: Apache-2.0
"""The tests can fail: kernels with one thing wrong are reported, by the simulator's checks or by a wrong result.

docs/mutations.md lists every mutation with what was reported.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
from attnsmith.codegen.spec import KernelSpec

from tests.sim import mutations_sm80, mutations_sm90
from tests.sim.fwd_sm90_kernel import one_torch_thread
from tests.sim.mutations import Case, Family, Mutation, disagreements

FAMILY_OF: dict[KernelSpec, Family] = {
    spec: part.FAMILY for part in (mutations_sm80, mutations_sm90) for spec in part.FAMILY.kernels
}


@pytest.fixture(autouse=True)
def few_threads() -> Iterator[None]:
    with one_torch_thread():
        yield


@functools.cache
def cases_of(spec: KernelSpec) -> list[Case]:
    return FAMILY_OF[spec].cases_of(spec)


@functools.cache
def mutations_of(spec: KernelSpec) -> list[Mutation]:
    return list(FAMILY_OF[spec].mutations(spec))


@pytest.mark.parametrize("spec", FAMILY_OF, ids=lambda spec: spec.name)
def test_the_unchanged_kernel_is_right(spec: KernelSpec) -> None:
    """Without this every mutation would count as reported."""
    family = FAMILY_OF[spec]
    for case in cases_of(spec):
        assert case.verdict(family.text_of(spec)) is None, case.name
    assert {mutation.what for mutation in mutations_of(spec)} == set(family.kinds_of(spec))


BY_KIND = [
    pytest.param(spec, kind, id=f"{spec.name}-{kind.replace(' ', '-')}")
    for spec, family in FAMILY_OF.items()
    for kind in family.kinds_of(spec)
]


@pytest.mark.parametrize("spec,kind", BY_KIND)
def test_mutation_is_reported(spec: KernelSpec, kind: str) -> None:
    """Each place at a time. What is listed as having no effect must have none, so that the list stays true."""
    wrong = disagreements(FAMILY_OF[spec], [m for m in mutations_of(spec) if m.what == kind], cases_of(spec))
    assert not wrong, "\n".join(wrong)
