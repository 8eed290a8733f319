# SPDX-License-Identifier: Apache-2.0
"""inspect on real kernels: what a tile implies is what the SASS shows, nothing is spilled, no figure is above its
anchor's."""

from __future__ import annotations

import json

import pytest
from attnsmith.codegen.cache import KernelCache
from attnsmith.codegen.errors import ToolchainError
from attnsmith.codegen.registry import Selection
from attnsmith.codegen.resources import entry_registers
from attnsmith.codegen.spec import DType, KernelSpec, Mask
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


HOPPER = [(DType.BF16, 128, Mask.FULL), (DType.BF16, 128, Mask.CAUSAL), (DType.FP16, 64, Mask.CAUSAL)]


def hopper_spec(dtype: DType, head_dim: int, mask: Mask) -> KernelSpec:
    """The best tile of a problem on an H100."""
    selection = Selection(target="sm_90a", dtypes=(dtype,), head_dims=(head_dim,), masks=(mask,))
    return selection.to_specs()[0]


@pytest.mark.parametrize(("dtype", "head_dim", "mask"), HOPPER, ids=[f"{d.value}-{n}-{m.value}" for d, n, m in HOPPER])
def test_sm90_main_loop(cold_cache: KernelCache, dtype: DType, head_dim: int, mask: Mask) -> None:
    """One wgmma for 32 bytes of the summed-over dim of each product; the consumers' loops, each once per mask phase."""
    spec = hopper_spec(dtype, head_dim, mask)
    facts = inspect_kernels([spec], "sm_90a", jobs=1, cache=cold_cache)[0]
    assert facts.faults == ()
    assert (facts.spill_bytes, facts.local_instructions, facts.remarks, facts.hmma_instructions) == (0, 0, (), 0)
    assert facts.registers == entry_registers(spec) == facts.registers_allowed
    main = facts.main_loop
    assert main is not None and facts.anchor is not None
    per_block = (head_dim + spec.tile.block_n) * dtype.num_bytes // 32
    assert (main.tensor, main.key_blocks) == (per_block * main.key_blocks, int(main.key_blocks))
    assert {loop.is_masked for loop in facts.loops} == ({False} if mask is Mask.FULL else {True, False})
    assert main.per_score_always < main.per_score, "the rescale is behind a branch"
    assert main.split["rescale"] < spec.key.head_dim_v // 2, "and not in the cheapest iteration"
    assert main.per_score_always <= facts.anchor.per_score
