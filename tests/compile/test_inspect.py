# SPDX-License-Identifier: Apache-2.0
"""inspect on a real kernel: what its tile implies is what the SASS shows, and nothing is spilled."""

from __future__ import annotations

import json

import pytest
from attnsmith.codegen.cache import KernelCache
from attnsmith.codegen.errors import ToolchainError
from attnsmith.codegen.spec import KernelSpec
from attnsmith.codegen.toolchain import find_disassembler
from attnsmith.tools.inspect import KernelFacts, inspect_kernels

try:
    find_disassembler("cuobjdump")
except ToolchainError as error:
    pytest.skip(f"no disassembler: {error}", allow_module_level=True)


@pytest.fixture(scope="module")
def facts(cold_cache: KernelCache, real_specs: tuple[KernelSpec, ...]) -> KernelFacts:
    """Of the full bf16 D64 kernel."""
    return inspect_kernels(real_specs[:1], "sm_80", jobs=1, cache=cold_cache)[0]


def test_nothing_is_spilled(facts: KernelFacts) -> None:
    assert (facts.spill_bytes, facts.local_instructions) == (0, 0)
    assert facts.registers <= 255
    assert facts.remarks == ()


def test_main_loop_has_the_tiles_tensor_instructions(facts: KernelFacts, real_specs: tuple[KernelSpec, ...]) -> None:
    """m16n8k16: block_m/16 * block_n/8 * head_dim/16 for Q K, as many for P V, over the warps."""
    tile, head_dim = real_specs[0].tile, real_specs[0].key.head_dim
    per_gemm = (tile.block_m // 16) * (tile.block_n // 8) * (head_dim // 16) // tile.num_warps
    assert facts.main_loop is not None
    assert facts.main_loop.tensor == 2 * per_gemm
    assert {loop.tensor for loop in facts.loops} == {2 * per_gemm}
    assert {loop.is_masked for loop in facts.loops} == {True, False}


def test_unmasked_loop_is_the_cheaper_one(facts: KernelFacts) -> None:
    assert facts.main_loop is not None and facts.anchor is not None
    assert facts.main_loop.per_score < min(loop.per_score for loop in facts.loops if loop.is_masked)
    assert facts.main_loop.per_score_always <= facts.anchor.per_score


def test_json_ready(facts: KernelFacts) -> None:
    assert json.loads(json.dumps(facts.to_dict()))["loops"][0]["mix"]["mma"] > 0
