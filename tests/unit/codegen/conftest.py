# SPDX-License-Identifier: Apache-2.0
"""Cases of the generator's unit tests: legal specs to change one field of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from attnsmith.codegen.spec import Arch, DType, KernelSpec, Mask, ProblemKey, TileConfig

BASE_SPEC = KernelSpec(
    key=ProblemKey(arch=Arch.SM80, dtype=DType.BF16, head_dim=128, head_dim_v=128, mask=Mask.CAUSAL),
    tile=TileConfig(block_m=128, block_n=64, num_warps=4, num_stages=1),
)


def spec_with(**changes: Any) -> KernelSpec:
    """BASE_SPEC with fields of its key or tile changed."""
    key_names = {field.name for field in fields(ProblemKey)}
    key = {name: value for name, value in changes.items() if name in key_names}
    tile = {name: value for name, value in changes.items() if name not in key_names}
    return KernelSpec(key=replace(BASE_SPEC.key, **key), tile=replace(BASE_SPEC.tile, **tile))


@pytest.fixture
def make_spec() -> Callable[..., KernelSpec]:
    """`make_spec(block_n=32)`: the D128 bf16 causal spec with fields changed."""
    return spec_with
