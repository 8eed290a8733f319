# SPDX-License-Identifier: Apache-2.0
"""Cases of the generator's unit tests: legal specs to change one field of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from attnsmith.codegen.spec import Arch, DType, KernelSpec, Mask, ProblemKey, Scheduler, TileConfig

BASE_SPEC = KernelSpec(
    key=ProblemKey(arch=Arch.SM80, dtype=DType.BF16, head_dim=128, head_dim_v=128, mask=Mask.CAUSAL),
    tile=TileConfig(block_m=128, block_n=64, num_warps=4, num_stages=1),
)

SM90_SPEC = KernelSpec(
    key=ProblemKey(arch=Arch.SM90, dtype=DType.BF16, head_dim=128, head_dim_v=128, mask=Mask.CAUSAL),
    tile=TileConfig(
        block_m=128,
        block_n=128,
        num_warps=8,
        num_stages=2,
        scheduler=Scheduler.DYNAMIC,
        is_ping_pong=True,
        overlaps_softmax=True,
    ),
)


def spec_with(base: KernelSpec = BASE_SPEC, /, **changes: Any) -> KernelSpec:
    """`base` with fields of its key or tile changed. The output's type follows `dtype` unless it is changed too."""
    if "dtype" in changes:
        changes = {"out_dtype": None, **changes}
    key_names = {field.name for field in fields(ProblemKey)}
    key = {name: value for name, value in changes.items() if name in key_names}
    tile = {name: value for name, value in changes.items() if name not in key_names}
    return KernelSpec(key=replace(base.key, **key), tile=replace(base.tile, **tile))


@pytest.fixture
def make_spec() -> Callable[..., KernelSpec]:
    """`make_spec(block_n=32)`: the D128 bf16 causal spec with fields changed."""
    return spec_with


@pytest.fixture
def make_sm90_spec() -> Callable[..., KernelSpec]:
    """The same of a D128 bf16 causal spec for SM90. FP8 specs do not skip rescales, which no rule allows."""

    def make(**changes: Any) -> KernelSpec:
        if changes.get("dtype") in (DType.E4M3, DType.E5M2):
            changes = {"skips_rescale": False, **changes}
        return spec_with(SM90_SPEC, **changes)

    return make
