# SPDX-License-Identifier: Apache-2.0
"""How attention is timed and counted: FLOPs by visible query-key pairs, bytes of the algorithms, and a timing loop.

The timing loop takes its clock as an argument, so that its rules (warm-up, synchronization, a bounded number of
repeats, median and spread instead of the best) are tested without a GPU. Not responsible for what is run.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


def visible_pairs(seqlen_q: int, seqlen_k: int, *, causal: bool) -> int:
    """Query-key pairs that take part; causal is bottom-right aligned: row i sees j <= i + seqlen_k - seqlen_q."""
    if not causal:
        return seqlen_q * seqlen_k
    offset = seqlen_k - seqlen_q
    first = max(0, -offset)  # first row that sees a key
    rows = seqlen_q - first
    if rows <= 0:
        return 0
    return rows * (first + offset + 1) + rows * (rows - 1) // 2


def forward_flops(
    *, batch: int, nheads: int, seqlen_q: int, seqlen_k: int, head_dim: int, head_dim_v: int | None = None, causal: bool
) -> int:
    """2 * (head_dim + head_dim_v) per visible pair, query head and batch: the two products, nothing else."""
    width = head_dim + (head_dim if head_dim_v is None else head_dim_v)
    return 2 * width * batch * nheads * visible_pairs(seqlen_q, seqlen_k, causal=causal)


def backward_flops(forward: int) -> int:
    """2.5 x forward: five products instead of two."""
    return forward * 5 // 2


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """The sizes that byte counts depend on."""

    batch: int
    nheads: int
    nheads_k: int
    seqlen_q: int
    seqlen_k: int
    head_dim: int
    head_dim_v: int
    element_bytes: int
    """Of q, k and v."""
    out_element_bytes: int = 2
    """Of the output: 16-bit for 8-bit inputs too."""

    @property
    def input_output_bytes(self) -> int:
        """q, k, v and out once each: no algorithm moves less."""
        q = self.batch * self.nheads * self.seqlen_q * self.head_dim
        k = self.batch * self.nheads_k * self.seqlen_k * self.head_dim
        v = self.batch * self.nheads_k * self.seqlen_k * self.head_dim_v
        out = self.batch * self.nheads * self.seqlen_q * self.head_dim_v
        return self.element_bytes * (q + k + v) + self.out_element_bytes * out

    @property
    def naive_bytes(self) -> int:
        """The three-step algorithm: q, k, v, out once, and S and P (nheads * seqlen_q * seqlen_k) written and read."""
        scores = self.batch * self.nheads * self.seqlen_q * self.seqlen_k
        return self.input_output_bytes + 4 * self.element_bytes * scores

    def tiled_bytes(self, block_m: int) -> int:
        """Full mask, tiled: k and v once per query tile and query head; q, out and lse (fp32) once."""
        tiles = -(-self.seqlen_q // block_m)
        heads = self.batch * self.nheads
        keys = heads * tiles * self.seqlen_k * (self.head_dim + self.head_dim_v)
        rows = heads * self.seqlen_q
        per_row = self.element_bytes * self.head_dim + self.out_element_bytes * self.head_dim_v + 4
        return self.element_bytes * keys + rows * per_row


def bytes_read(stats: Mapping[str, Any]) -> int:
    """From global memory, by a simulated launch's statistics: of loads, cp.async and TMA."""
    return int(stats["global_bytes_read"]) + int(stats.get("tma_bytes_read", 0))


def bytes_written(stats: Mapping[str, Any]) -> int:
    """To global memory, likewise."""
    return int(stats["global_bytes_written"]) + int(stats.get("tma_bytes_written", 0))


class Clock(Protocol):
    """Times one call of a function on a device."""

    def synchronize(self) -> None:
        """Wait until everything that was launched has finished."""

    def seconds(self, function: Callable[[], object]) -> float:
        """Seconds that one call takes on the device, complete: the work has finished when this returns."""


class WallClock:
    """Host time, for work that is finished when the call returns."""

    def synchronize(self) -> None:
        """Nothing runs behind the caller's back."""

    def seconds(self, function: Callable[[], object]) -> float:
        """Wall time of the call."""
        start = time.perf_counter()
        function()
        return time.perf_counter() - start


class CudaClock:
    """Device time between two events, after writing a buffer larger than L2 so that every repeat starts cold."""

    def __init__(self, flush_bytes: int = 256 << 20) -> None:
        import torch

        self._torch = torch
        self._flush = torch.empty(flush_bytes, dtype=torch.uint8, device="cuda")
        self._start: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._stop: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def synchronize(self) -> None:
        """Wait for the current device."""
        self._torch.cuda.synchronize()

    def seconds(self, function: Callable[[], object]) -> float:
        """Seconds between the events around one call; the write to the buffer is outside."""
        self._flush.zero_()
        self._start.record()
        function()
        self._stop.record()
        self._stop.synchronize()
        return float(self._start.elapsed_time(self._stop)) * 1e-3


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Repeats of one measurement, in seconds: the median is the result, the rest says how far to trust it."""

    median: float
    minimum: float
    maximum: float
    p10: float
    p90: float
    repeats: int

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    def tflops(self, flops: int) -> float:
        """10^12 FLOP per second at the median."""
        return flops / self.median / 1e12


def summarize(samples: list[float]) -> Timing:
    """Median, extremes and deciles of at least one sample.

    Raises:
        ValueError: no samples, or one that is not a positive finite number: such a timing is a broken clock.
    """
    if not samples or not all(0.0 < sample < float("inf") for sample in samples):
        raise ValueError(f"timing samples: got {samples[:5]}; allowed: positive finite seconds. Check the clock.")
    ordered = sorted(samples)

    def at(fraction: float) -> float:
        return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]

    median = statistics.median(ordered)
    return Timing(
        median=median, minimum=ordered[0], maximum=ordered[-1], p10=at(0.1), p90=at(0.9), repeats=len(ordered)
    )


def measure(
    function: Callable[[], object],
    clock: Clock,
    *,
    warmup: int = 3,
    max_repeats: int = 50,
    max_seconds: float = 0.5,
) -> Timing:
    """Time a function that is already compiled and loaded, or gets so in the warm-up calls, which do not count.

    Stops after `max_repeats` or once `max_seconds` of device time are used, with at least three repeats.
    """
    for _ in range(warmup):
        function()
    clock.synchronize()
    samples: list[float] = []
    while len(samples) < max_repeats and (len(samples) < 3 or sum(samples) < max_seconds):
        samples.append(clock.seconds(function))
    return summarize(samples)


@dataclass(frozen=True, kw_only=True)
class TimedShape:
    """One row of the timing table."""

    dtype: str
    batch: int
    nheads: int
    seqlen: int
    head_dim: int
    causal: bool

    @property
    def label(self) -> str:
        """For example `bf16 b8 h16 s2048 d128 causal`."""
        mask = "causal" if self.causal else "full"
        return f"{self.dtype} b{self.batch} h{self.nheads} s{self.seqlen} d{self.head_dim} {mask}"

    @property
    def flops(self) -> int:
        """Of visible pairs only."""
        return forward_flops(
            batch=self.batch, nheads=self.nheads, seqlen_q=self.seqlen, seqlen_k=self.seqlen, head_dim=self.head_dim,
            causal=self.causal,
        )  # fmt: skip


def timed_shapes(tokens: int = 16384, width: int = 2048) -> Iterator[TimedShape]:
    """Batch x seqlen = 16k, heads x head_dim = 2048 as published tables have it, the most quoted first.

    e4m3 follows bf16 where figures are published for it.
    """
    for seqlen in (8192, 2048, 512, 16384):
        for head_dim in (128, 64, 256, 32, 96, 192):
            for dtype in ("bf16", "e4m3") if head_dim in FP8_HEAD_DIMS else ("bf16",):
                for causal in (True, False):
                    batch, nheads = max(1, tokens // seqlen), max(1, width // head_dim)
                    yield TimedShape(
                        dtype=dtype, batch=batch, nheads=nheads, seqlen=seqlen, head_dim=head_dim, causal=causal
                    )


FP8_HEAD_DIMS = (64, 128, 256)
"""Head dims that are timed in FP8 too."""


def random_inputs(shape: TimedShape, device: str) -> list[torch.Tensor]:
    """q, k, v, standard normal, (b, s, h, d); 8-bit types are rounded from bf16, which random numbers exist for."""
    import torch
    from attnsmith.tools.check import torch_dtype

    place = device if device.startswith("cuda") else "cpu"
    sizes = (shape.batch, shape.seqlen, shape.nheads, shape.head_dim)
    tensors = []
    for seed in range(3):
        generator = torch.Generator(place).manual_seed(seed)
        normal = torch.randn(*sizes, generator=generator, device=place, dtype=torch.bfloat16)
        tensors.append(normal.to(torch_dtype(shape.dtype)))
    return tensors


def time_shape(
    shape: TimedShape, device: str, providers: dict[str, Callable[..., object]], clock: Clock
) -> dict[str, Any]:
    """One row: each provider's Timing with its TFLOPS, or a note why it cannot run this shape.

    A provider is a function of (q, k, v, causal) in (b, s, h, d).
    """
    from attnsmith.codegen.errors import AttnsmithError

    tensors = random_inputs(shape, device)
    cells: dict[str, dict[str, Any]] = {}
    for name, attention in providers.items():
        try:
            with warnings.catch_warnings():  # SDPA says in one for each backend why it refuses; the note says it again
                warnings.simplefilter("ignore", UserWarning)
                timing = measure(partial(attention, *tensors, shape.causal), clock)
        except (AttnsmithError, RuntimeError) as error:
            cells[name] = {"note": str(error).splitlines()[0][:200]}
            continue
        cells[name] = {"tflops": round(timing.tflops(shape.flops), 1), **timing.to_dict()}
    facts = {"dtype": shape.dtype, "head_dim": shape.head_dim, "causal": shape.causal, "seqlen": shape.seqlen}
    return {"shape": shape.label, "flops": shape.flops, **facts, "providers": cells}


def sdpa_providers() -> dict[str, Callable[..., object]]:
    """Ours, and PyTorch's SDPA through each of its backends, forced one at a time."""
    import attnsmith
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> object:
        return attnsmith.flash_attn_func(q, k, v, causal=causal)

    def sdpa(backend: SDPBackend) -> Callable[..., object]:
        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> object:
            with sdpa_kernel(backend):
                heads_first = [x.transpose(1, 2) for x in (q, k, v)]
                return scaled_dot_product_attention(heads_first[0], heads_first[1], heads_first[2], is_causal=causal)

        return call

    return {
        "attnsmith": ours,
        "sdpa flash": sdpa(SDPBackend.FLASH_ATTENTION),
        "sdpa cudnn": sdpa(SDPBackend.CUDNN_ATTENTION),
        "sdpa efficient": sdpa(SDPBackend.EFFICIENT_ATTENTION),
    }
