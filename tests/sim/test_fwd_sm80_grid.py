# SPDX-License-Identifier: Apache-2.0
"""Every kernel of the default set against the reference: each tile row alone in the dispatch table, GQA ratios, sizes.

One test per kernel; head_dim 40 runs on the kernels that zero-fill a wider one. The output is poisoned with NaN.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from attnsmith.codegen.spec import KernelSpec, Mask
from attnsmith.tools.check import CheckCase, run_check

from tests.sim.fwd_kernel import (
    DTYPES,
    PADDED_SPECS,
    SPECS,
    assert_close_to_reference,
    normal,
    pinned,
    ptx_of,
)

SIZES = [(1, 1), (1, 257), (64, 64), (113, 203), (203, 113), (128, 256), (257, 1)]
HEADS = [(2, 1, 1), (1, 2, 2), (1, 1, 3), (1, 1, 4)]
"""(batch, nheads_k, nheads / nheads_k)."""


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """The reference's tensors are small: on busy cores its threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def cases(spec: KernelSpec, head_dim: int) -> list[CheckCase]:
    found = []
    for seqlen_q, seqlen_k in SIZES:
        for batch, nheads_k, ratio in HEADS:
            case = CheckCase(
                device="sim:a100",
                dtype=spec.key.dtype.value,
                batch=batch,
                seqlen_q=seqlen_q,
                seqlen_k=seqlen_k,
                nheads=nheads_k * ratio,
                nheads_k=nheads_k,
                head_dim=head_dim,
                causal=spec.key.mask is Mask.CAUSAL,
            )
            found.append(replace(case, seed=zlib.crc32(case.label.encode())))
    return found


def judge(spec: KernelSpec, head_dim: int) -> None:
    failed = []
    with pinned(spec):
        for case in cases(spec, head_dim):
            result = run_check(case)
            is_decode = case.causal and case.seqlen_q == 1  # one causal row sees every key: the full kernel serves it
            assert result.kernels == (spec.name,) or is_decode, case.label
            if not result.ok:
                failed.append(f"{case.label} seed {case.seed}: {dict(result.tensors)}")
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_kernel(spec: KernelSpec) -> None:
    judge(spec, spec.key.head_dim)


@pytest.mark.parametrize("spec", PADDED_SPECS, ids=lambda spec: spec.name)
def test_head_dim_40(spec: KernelSpec) -> None:
    judge(spec, 40)


CAUSAL = [spec for spec in SPECS if spec.key.mask is Mask.CAUSAL]


@pytest.mark.parametrize("spec", CAUSAL, ids=lambda spec: spec.name)
def test_one_query_on_a_causal_kernel(spec: KernelSpec) -> None:
    """The API sends one causal row to a full kernel; the causal kernel must be right all the same."""
    dtype, d = DTYPES[spec.key.dtype.value], spec.key.head_dim
    for seqlen_k in (0, 1, 257):
        q, k, v = (normal(1, s, 2, d, dtype=dtype, seed=d + s + i) for i, s in enumerate((1, seqlen_k, seqlen_k)))
        out, lse, _ = ptx_of(spec).run(q, k, v)
        assert_close_to_reference(q, k, v, (out, lse), causal=True)


def test_every_tile_row_runs_with_one_and_more_stages() -> None:
    """The grid is what it says: no kernel is left out, and multi-stage pipelines are among them."""
    assert {spec.key.head_dim for spec in SPECS} == {32, 64, 96, 128, 192, 256}
    assert {spec.tile.num_stages for spec in SPECS} >= {1, 2}
    assert len({case.seed for spec in SPECS for case in cases(spec, spec.key.head_dim)}) >= len(SIZES) * len(HEADS)
