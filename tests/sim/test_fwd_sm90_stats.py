# SPDX-License-Identifier: Apache-2.0
"""What a launch of an SM90 kernel moves and computes, counted by the simulator, against numbers derived here from the
tiling alone: bytes of TMA and of other accesses, tensor-core FLOPs, shared-memory conflicts.

TMA bytes are those inside the tensors; test_whole_blocks has none outside.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest
from attnsmith.codegen.spec import KernelSpec, Mask, Scheduler
from attnsmith.tools.check import CheckCase

from tests.sim.fwd_sm90_kernel import ROWS, SPECS, Sm90Ptx, case_of, inputs_of, ptx_of, spec_like

SIZES = [(1, 257), (203, 113), (256, 512)]
NUM_CTAS = 5


@dataclass(frozen=True)
class Traffic:
    """Of one launch. What is not TMA's: LSE, descales and the tile counter's atomics, counted as read and written."""

    tma_bytes_read: int
    tma_bytes_written: int
    other_bytes_read: int
    other_bytes_written: int
    tensor_flops: int
    conflicts: int


@dataclass(frozen=True)
class Tiling:
    """Output tiles of one problem, and the key blocks that each needs by the definition of the mask, key by key."""

    spec: KernelSpec
    case: CheckCase

    @property
    def group(self) -> int:
        """Query heads in a tile."""
        return self.case.nheads // self.case.kv_heads if self.spec.key.packs_gqa else 1

    @property
    def first_rows(self) -> range:
        """Of each tile of one head; a cluster's last tile may have no row."""
        tile, seqlen_q = self.spec.tile, self.case.seqlen_q
        rows = tile.block_m // ROWS * (ROWS // self.group)
        num_clusters = -(-seqlen_q // (rows * tile.cluster_size))
        return range(0, num_clusters * tile.cluster_size * rows, rows)

    @property
    def num_tiles(self) -> int:
        return len(self.first_rows) * self.case.batch * self.case.nheads // self.group

    def blocks(self) -> list[range]:
        """Keys of each (query block, key block) of one head that has a row which sees a key."""
        case, block_n, is_full = self.case, self.spec.tile.block_n, self.spec.key.mask is Mask.FULL
        found = []
        for first_row in self.first_rows:
            rows = range(first_row, min(first_row + self.first_rows.step, case.seqlen_q))
            for first_key in range(0, case.seqlen_k, block_n):
                if is_full or any(first_key <= row + case.seqlen_k - case.seqlen_q for row in rows):
                    found.append(range(first_key, min(first_key + block_n, case.seqlen_k)))
        return found


def minimum(spec: KernelSpec, case: CheckCase, num_ctas: int = NUM_CTAS) -> Traffic:
    """Q, O and LSE once; K and V once per pair of blocks, in a cluster once for all its CTAs."""
    key, tile, tiling = spec.key, spec.tile, Tiling(spec, case)
    heads, rows = case.batch * case.nheads // tiling.group, case.batch * case.nheads * case.seqlen_q
    blocks = tiling.blocks()
    keys_read = heads * sum(len(block) for block in blocks) // tile.cluster_size
    atomics = descales = 0
    if tile.scheduler is Scheduler.DYNAMIC:
        # Each CTA fetches until it gets no tile, and one of them resets both words.
        atomics = 4 * (tiling.num_tiles + min(num_ctas, tiling.num_tiles) + 2)
    if key.dtype.is_fp8:
        descales = 3 * 4 * 32 * tile.num_warps * tiling.num_tiles  # every consumer thread, per tile
    return Traffic(
        tma_bytes_read=key.dtype.num_bytes * (rows * case.head_dim + keys_read * (case.head_dim + case.dim_v)),
        tma_bytes_written=2 * rows * case.dim_v,
        other_bytes_read=atomics + descales,
        other_bytes_written=atomics + 4 * rows,
        tensor_flops=heads * len(blocks) * 2 * tile.block_m * tile.block_n * (key.head_dim + key.head_dim_v),
        conflicts=0,
    )


def measure(spec: KernelSpec, case: CheckCase, num_ctas: int = NUM_CTAS, kernel: Sm90Ptx | None = None) -> Traffic:
    inputs, descales = inputs_of(case)
    _, _, stats = (kernel or ptx_of(spec)).run(*inputs, descales=descales, num_ctas=num_ctas)
    return Traffic(
        tma_bytes_read=stats.tma_bytes_read,
        tma_bytes_written=stats.tma_bytes_written,
        other_bytes_read=stats.global_bytes_read,
        other_bytes_written=stats.global_bytes_written,
        tensor_flops=stats.tensor_flops,
        conflicts=sum(stats.shared_conflicts.values()),
    )


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_bytes_flops_and_conflicts(spec: KernelSpec) -> None:
    for seqlen_q, seqlen_k in SIZES:
        case = case_of(spec, seqlen_q, seqlen_k, batch=2, nheads_k=1, group=2)
        assert measure(spec, case) == minimum(spec, case), case.label


ONE_OF_EACH_DTYPE = [spec for spec in SPECS if spec.key.dtype.value in ("bf16", "e4m3")]
ACCEPTANCE = [spec for spec in ONE_OF_EACH_DTYPE if spec.key.head_dim == 128 and spec.tile.num_warps == 8]


@pytest.mark.parametrize("spec", ACCEPTANCE, ids=lambda spec: spec.name)
def test_1024_queries_and_keys_of_two_heads(spec: KernelSpec) -> None:
    case = case_of(spec, 1024, 1024, nheads_k=2)
    assert measure(spec, case, num_ctas=132) == minimum(spec, case, num_ctas=132)


@pytest.mark.parametrize("spec", ACCEPTANCE, ids=lambda spec: spec.name)
def test_whole_blocks(spec: KernelSpec) -> None:
    """No box leaves the tensors: the bytes are those of the boxes, which is what a GPU's counters show."""
    case = case_of(spec, 3 * spec.tile.block_m, 4 * spec.tile.block_n, nheads_k=2)
    assert measure(spec, case) == minimum(spec, case)


VARIANTS = [
    spec_like("fwd_sm90_bf16_hdim128_full_128", cluster_size=2),
    spec_like("fwd_sm90_fp16_hdim64_full_192", cluster_size=2, scheduler=Scheduler.SINGLE),
    spec_like("fwd_sm90_bf16_hdim128_causal_packgqa"),
    spec_like("fwd_sm90_e4m3_bf16_hdim128_full_vcol"),
    spec_like("fwd_sm90_e5m2_bf16_hdim96_causal_vcol"),
    spec_like("fwd_sm90_bf16_hdim64x256_causal"),
    spec_like("fwd_sm90_bf16_hdim128_causal_128", overlaps_softmax=False),
    spec_like("fwd_sm90_bf16_hdim128_full_64", p_in_smem=True, block_n=80),
]


@pytest.mark.parametrize("spec", VARIANTS, ids=lambda spec: spec.name)
def test_variant(spec: KernelSpec) -> None:
    for seqlen_q, seqlen_k in SIZES:
        case = case_of(spec, seqlen_q, seqlen_k, batch=2, nheads_k=1, group=4)
        num_ctas = 4 if spec.tile.cluster_size == 2 else NUM_CTAS
        assert measure(spec, case, num_ctas) == minimum(spec, case, num_ctas), case.label


def test_a_cluster_of_two_halves_the_bytes_of_keys_and_values() -> None:
    alone = spec_like("fwd_sm90_bf16_hdim128_full_128")
    pair = replace(alone, tile=replace(alone.tile, cluster_size=2))
    case = case_of(alone, 1024, 1024, nheads_k=2)
    q_bytes = 2 * 2 * 1024 * 128
    found = [measure(spec, case, num_ctas=132).tma_bytes_read for spec in (alone, pair)]
    assert found == [q_bytes + 8 * 2 * q_bytes, q_bytes + 4 * 2 * q_bytes]


def test_packed_heads_read_keys_once() -> None:
    """One query of 8 heads: one tile instead of 8."""
    packed = spec_like("fwd_sm90_bf16_hdim128_causal_packgqa")
    case = case_of(packed, 1, 512, group=8)
    assert measure(packed, case).tma_bytes_read == 2 * 128 * (8 + 2 * 512)
    unpacked = replace(packed, key=replace(packed.key, packs_gqa=False))
    assert measure(unpacked, case).tma_bytes_read == 2 * 128 * 8 * (1 + 2 * 512)


def test_the_minimum_by_hand() -> None:
    """The yardstick itself: 128 x 128 tiles of head_dim 128, 256 queries and keys, 3 of 4 blocks visible."""
    causal = spec_like("fwd_sm90_bf16_hdim128_causal_128x128")
    found = minimum(causal, case_of(causal, 256, 256))
    assert found.tma_bytes_read == 2 * 128 * (256 + 2 * 3 * 128)
    assert found.tensor_flops == 3 * 4 * 128 * 128 * 128
    assert found.other_bytes_written == 256 * 4 + 4 * (2 + 2 + 2)
    nothing = minimum(causal, case_of(causal, 256, 1))
    assert nothing.tma_bytes_read == 2 * 128 * (256 + 2) and nothing.tma_bytes_written == 2 * 128 * 256


def test_a_lost_swizzle_would_show_as_bank_conflicts() -> None:
    """Planted: O is staged in plain row-major order, which stmatrix does not mind."""
    spec = spec_like("fwd_sm90_bf16_hdim128_full_64")
    text, count = re.subn(r"(and\.b32\s+%r\d+, %r\d+, )112;", r"\g<1>0;", ptx_of(spec).text)
    assert count
    case = case_of(spec, 64, 64)
    assert measure(spec, case, kernel=Sm90Ptx(spec, text)).conflicts > 0 == measure(spec, case).conflicts
