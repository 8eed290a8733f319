# SPDX-License-Identifier: Apache-2.0
"""What a launch moves and computes, counted by the simulator, against numbers derived here from the tiling alone."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from attnsmith.codegen.spec import KernelSpec, Mask
from attnsmith.tools import ptxsim

from tests.sim.fwd_kernel import DTYPES, PADDED_SPECS, SPECS, Ptx, built, normal, ptx_of

BF16_SPECS = [spec for spec in (*SPECS, *PADDED_SPECS) if spec.key.dtype.value == "bf16"]
SIZES = [(1, 257), (113, 203), (203, 113), (256, 512)]
BATCH, NHEADS, NHEADS_K = 2, 4, 2


@dataclass(frozen=True)
class Minimum:
    """What the tiling needs for one (batch, head), from the definition of the mask, key by key."""

    bytes_read: int
    bytes_written: int
    tensor_flops: int


def minimum(spec: KernelSpec, seqlen_q: int, seqlen_k: int, head_dim: int) -> Minimum:
    """O and LSE once; Q once where its block sees a key; K and V once per block pair where some row sees some key."""
    block_m, block_n = spec.tile.block_m, spec.tile.block_n
    rows_read = keys_read = blocks = 0
    for first_row in range(0, seqlen_q, block_m):
        rows = range(first_row, min(first_row + block_m, seqlen_q))
        for first_key in range(0, seqlen_k, block_n):
            keys = range(first_key, min(first_key + block_n, seqlen_k))
            if spec.key.mask is Mask.FULL or any(keys[0] <= row + seqlen_k - seqlen_q for row in rows):
                keys_read += len(keys)
                blocks += 1
                rows_read += len(rows) * (first_key == 0)
    return Minimum(
        bytes_read=2 * head_dim * (rows_read + 2 * keys_read),
        bytes_written=seqlen_q * (2 * head_dim + 4),
        tensor_flops=blocks * 2 * block_m * block_n * (spec.key.head_dim + spec.key.head_dim_v),
    )


def launch(spec: KernelSpec, seqlen_q: int, seqlen_k: int, head_dim: int, kernel: Ptx | None = None) -> ptxsim.Stats:
    dtype = DTYPES[spec.key.dtype.value]
    q = normal(BATCH, seqlen_q, NHEADS, head_dim, dtype=dtype, seed=1)
    k, v = (normal(BATCH, seqlen_k, NHEADS_K, head_dim, dtype=dtype, seed=seed) for seed in (2, 3))
    return (kernel or ptx_of(spec)).run(q, k, v)[2]


@pytest.mark.parametrize("spec", BF16_SPECS, ids=lambda spec: spec.name)
def test_bytes_flops_and_bank_conflicts(spec: KernelSpec) -> None:
    head_dim = 40 if spec.key.pads_head_dim else spec.key.head_dim
    for seqlen_q, seqlen_k in SIZES:
        stats = launch(spec, seqlen_q, seqlen_k, head_dim)
        wanted = minimum(spec, seqlen_q, seqlen_k, head_dim)
        label = f"sq{seqlen_q} sk{seqlen_k}"
        heads = BATCH * NHEADS
        assert heads * wanted.bytes_read <= stats.global_bytes_read <= 1.05 * heads * wanted.bytes_read, label
        assert heads * wanted.bytes_written <= stats.global_bytes_written <= 1.05 * heads * wanted.bytes_written, label
        assert stats.tensor_flops == heads * wanted.tensor_flops, label
        assert stats.shared_wavefronts["ldmatrix"] > 0 and stats.shared_wavefronts["cp_async"] > 0, label
        assert not any(stats.shared_conflicts.values()), f"{label}: {dict(stats.shared_conflicts)}"


def test_the_minimum_grows_with_what_is_visible() -> None:
    """The yardstick itself, by hand: 128 x 128 tiles of head_dim 64, 256 queries and keys, 2 and 3 of 4 blocks."""
    full, causal = (
        next(s for s in SPECS if s.name == f"fwd_sm80_bf16_hdim64_{mask}_128x128_w4_s1") for mask in ("full", "causal")
    )
    assert minimum(full, 256, 256, 64).bytes_read == 2 * 64 * (256 + 4 * 256)
    assert minimum(causal, 256, 256, 64).bytes_read == 2 * 64 * (256 + 3 * 256)
    assert minimum(causal, 256, 256, 64).tensor_flops == 3 * 4 * 128 * 128 * 64
    assert minimum(causal, 256, 1, 64).bytes_written == 256 * 132


def test_a_lost_swizzle_would_show_as_bank_conflicts() -> None:
    """Planted: addresses that a swizzle's xor forms use plain row-major order, which cp.async does not mind."""
    spec = next(s for s in SPECS if s.name == "fwd_sm80_bf16_hdim64_full_64x64_w4_s1")
    lines = built(spec).ptx.splitlines()
    swizzles = [i for i, line in enumerate(lines) if line.lstrip().startswith("and.b32") and line.endswith(" 448;")]
    assert swizzles
    for i in swizzles:
        lines[i] = lines[i].replace(" 448;", " 0;")
    stats = launch(spec, 64, 64, 64, Ptx(spec, "\n".join(lines)))
    assert stats.shared_conflicts["ldmatrix"] > 0
