# SPDX-License-Identifier: Apache-2.0
"""Specs and caches for tests that run real compilers."""

from __future__ import annotations

from pathlib import Path

import pytest
from attnsmith.codegen.cache import KernelCache
from attnsmith.codegen.registry import Selection
from attnsmith.codegen.spec import DType, KernelSpec, Mask

TRIVIAL = """
extern "C" __global__ void trivial(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) { x[i] = 2.0f * x[i] + 1.0f; }
}
"""


@pytest.fixture(scope="session")
def cold_cache(tmp_path_factory: pytest.TempPathFactory) -> KernelCache:
    """An empty cache, in a folder with a space, that the session's tests share."""
    return KernelCache(tmp_path_factory.mktemp("cold cache"))


@pytest.fixture(scope="session")
def real_specs() -> tuple[KernelSpec, ...]:
    """The full and the causal bf16 kernel of head dim 64 with their best tiles."""
    full, causal = (
        Selection(target="sm_80", set_name="minimal", dtypes=(DType.BF16,), head_dims=(64,), masks=(mask,)).to_specs()
        for mask in (Mask.FULL, Mask.CAUSAL)
    )
    return (*full, *causal)


@pytest.fixture
def trivial_source() -> str:
    """A kernel named `trivial` that needs no header."""
    return TRIVIAL


@pytest.fixture(scope="session")
def checkout(request: pytest.FixtureRequest) -> Path:
    """The repository's root."""
    return Path(request.config.rootpath)
