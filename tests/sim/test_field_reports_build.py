# SPDX-License-Identifier: Apache-2.0
"""Build reports that need a real compilation: unusual paths. The others are in tests/unit/compile and tests/compile."""

from __future__ import annotations

from pathlib import Path

import attnsmith
import pytest
from attnsmith.codegen.build import build_kernel
from attnsmith.codegen.cache import KernelCache
from attnsmith.codegen.dispatch import spec_for
from attnsmith.codegen.spec import DType, Mask
from attnsmith.tools.check import CheckCase, run_check
from attnsmith.tools.gpu_check import only_kernel


@pytest.mark.parametrize("folder", ["a b/c$d", "quote'd \"twice\" colon:semi;co,mma"])
def test_bld_11_cache_paths_with_unusual_characters(tmp_path: Path, folder: str) -> None:
    spec = spec_for(dtype=DType.FP16, head_dim=32, mask=Mask.FULL, target="sm_80", seqlen_q=64)
    cache = KernelCache(tmp_path / folder)
    built = build_kernel(spec, "sm_80", cache=cache)
    assert built.directory is not None and tmp_path / folder in built.directory.parents
    again = build_kernel(spec, "sm_80", cache=cache)
    assert again.was_cached and again.cubin == built.cubin
    with attnsmith.simulate("a100"), only_kernel(again):
        result = run_check(CheckCase(device="sim:a100", dtype="fp16", seqlen_q=33, seqlen_k=70, head_dim=32))
    assert result.ok and result.kernels == (spec.name,)
