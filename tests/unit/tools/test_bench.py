# SPDX-License-Identifier: Apache-2.0
"""Counts of FLOPs and bytes, and the timing loop's rules with a clock of our own."""

from __future__ import annotations

import itertools

import pytest
import torch
from attnsmith.tools.bench import (
    AttentionShape,
    TimedShape,
    backward_flops,
    forward_flops,
    measure,
    random_inputs,
    summarize,
    time_shape,
    visible_pairs,
)
from attnsmith.tools.check import torch_dtype


def count_pairs(seqlen_q: int, seqlen_k: int) -> int:
    """The definition, counted."""
    pairs = itertools.product(range(seqlen_q), range(seqlen_k))
    return sum(j <= i + seqlen_k - seqlen_q for i, j in pairs)


@pytest.mark.parametrize("seqlen_q", [0, 1, 2, 5, 9])
@pytest.mark.parametrize("seqlen_k", [0, 1, 3, 5, 12])
def test_causal_pairs_match_the_definition(seqlen_q: int, seqlen_k: int) -> None:
    assert visible_pairs(seqlen_q, seqlen_k, causal=True) == count_pairs(seqlen_q, seqlen_k)
    assert visible_pairs(seqlen_q, seqlen_k, causal=False) == seqlen_q * seqlen_k


def test_cli_02_flops_count_visible_pairs_only() -> None:
    assert visible_pairs(1024, 1024, causal=True) == 524_800
    lengths = [1, 1024]
    assert sum(visible_pairs(n, n, causal=False) for n in lengths) == 1_048_577
    flops = forward_flops(batch=2, nheads=3, seqlen_q=1024, seqlen_k=1024, head_dim=64, head_dim_v=32, causal=True)
    assert flops == 2 * (64 + 32) * 2 * 3 * 524_800
    assert backward_flops(flops) == flops * 2.5


def test_bytes_of_the_algorithms() -> None:
    shape = AttentionShape(
        batch=1, nheads=12, nheads_k=12, seqlen_q=300, seqlen_k=300, head_dim=32, head_dim_v=32, element_bytes=2
    )
    assert shape.input_output_bytes == 4 * 12 * 300 * 32 * 2
    assert shape.naive_bytes == shape.input_output_bytes + 4 * 12 * 300 * 300 * 2
    # Three query tiles of 128 rows read k and v three times; q, out and the fp32 lse move once.
    assert shape.tiled_bytes(128) == 2 * (2 * 12 * 300 * 32 + 3 * 2 * 12 * 300 * 32) + 4 * 12 * 300
    assert shape.tiled_bytes(300) == shape.input_output_bytes + 4 * 12 * 300


def test_an_fp8_output_has_16_bits() -> None:
    shape = AttentionShape(
        batch=1, nheads=2, nheads_k=2, seqlen_q=128, seqlen_k=128, head_dim=64, head_dim_v=64, element_bytes=1
    )
    assert shape.input_output_bytes == 2 * 128 * 64 * (1 + 1 + 1 + 2)
    assert shape.tiled_bytes(128) == shape.input_output_bytes + 4 * 2 * 128


@pytest.mark.parametrize("dtype", ["bf16", "e4m3", "e5m2"])
def test_timed_inputs_are_random_in_every_dtype(dtype: str) -> None:
    shape = TimedShape(dtype=dtype, batch=1, nheads=2, seqlen=33, head_dim=64, causal=False)
    q, k, v = random_inputs(shape, "cpu")
    assert q.dtype == torch_dtype(dtype) and q.shape == (1, 33, 2, 64)
    assert 0.9 < q.float().std() < 1.1
    assert not torch.equal(q.float(), k.float()) and not torch.equal(k.float(), v.float())


def test_a_provider_that_refuses_fp8_is_a_note() -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("No available kernel.\nmore")

    shape = TimedShape(dtype="e4m3", batch=1, nheads=1, seqlen=8, head_dim=64, causal=True)
    clock = StubClock(0.001)
    clock.synchronized = 0
    row = time_shape(shape, "cpu", {"ours": lambda *_: None, "sdpa": refuse}, clock)
    assert row["providers"]["sdpa"] == {"note": "No available kernel."}
    assert row["providers"]["ours"]["repeats"] >= 3
    assert (row["dtype"], row["head_dim"], row["causal"], row["seqlen"]) == ("e4m3", 64, True, 8)


class StubClock:
    """Returns given seconds; the first call of the measured function is slow, as a compilation would be."""

    def __init__(self, seconds: float) -> None:
        self.step = seconds
        self.synchronized = 0
        self.calls = 0

    def synchronize(self) -> None:
        self.synchronized += 1

    def seconds(self, function) -> float:
        assert self.synchronized == 1, "the warm-up must have ended before the first sample"
        function()
        self.calls += 1
        return self.step


def test_cli_04_warm_up_is_excluded_and_the_device_synchronized() -> None:
    called = []
    clock = StubClock(0.001)
    timing = measure(lambda: called.append(1), clock, warmup=3, max_repeats=10)
    assert (timing.repeats, clock.calls, len(called)) == (10, 10, 13)
    assert timing.median == pytest.approx(0.001)


def test_measure_stops_on_its_time_budget_after_at_least_three_repeats() -> None:
    assert measure(lambda: None, StubClock(10.0), max_seconds=0.5).repeats == 3
    assert measure(lambda: None, StubClock(0.2), max_seconds=1.0, max_repeats=50).repeats == 5


def test_cli_05_timing_reports_median_and_spread_not_the_best() -> None:
    timing = summarize([3.0, 1.0, 2.0, 100.0, 2.5])
    assert (timing.median, timing.minimum, timing.maximum, timing.repeats) == (2.5, 1.0, 100.0, 5)
    assert set(timing.to_dict()) == {"median", "minimum", "maximum", "p10", "p90", "repeats"}
    assert timing.tflops(int(5e12)) == pytest.approx(2.0)


@pytest.mark.parametrize("samples", [[], [0.0], [1.0, float("nan")], [float("inf")], [-1.0]])
def test_a_broken_clock_is_an_error(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="timing samples"):
        summarize(samples)
