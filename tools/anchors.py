# SPDX-License-Identifier: Apache-2.0
"""The kernels to beat, as numbers: what FlashAttention's unmasked main loops consist of, compiled with CUDA 13.0.

And their published speeds. Not responsible for counting ours (inspect.py) or for measuring (bench.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from attnsmith.codegen.spec import Arch, KernelSpec, Mask

SPLIT_NAMES = ("scale", "exp", "max", "sum", "cvt", "rescale", "other")


@dataclass(frozen=True, kw_only=True)
class Anchor:
    """The unmasked main loop of one kernel, per thread and iteration."""

    tile: str
    """block_m x block_n, on SM80 x warps."""
    instructions: int
    """Of the loop."""
    tensor: int
    """Of these, HMMA, HGMMA or QGMMA."""
    per_score: float
    """Non-tensor instructions per score; every iteration executes all of them, for its rescale is not skipped."""
    spill_bytes: str
    """Of the whole kernel, over its variants."""
    split: dict[str, int] | None = None
    """Non-tensor instructions: scale FFMA, exp MUFU, max FMNMX, sum FADD, cvt F2FP, rescale FMUL, other; "not_listed"
    is what the published split leaves out of the loop. None where no split was published."""


def _row(tile: str, instructions: int, tensor: int, per_score: float, spills: str, split: str = "") -> Anchor:
    counts: dict[str, int] | None = None
    if split:
        counts = dict(zip(SPLIT_NAMES, map(int, split.split()), strict=True))
        counts["not_listed"] = instructions - tensor - sum(counts.values())
    return Anchor(
        tile=tile, instructions=instructions, tensor=tensor, per_score=per_score, spill_bytes=spills, split=counts
    )


_D256 = _row("128x80", 466, 21, 11.1, "12 / 0", "42 42 44 40 20 132 110")
_FP8_D128 = _row("128x224", 679, 11, 5.9, "12 / 28", "116 114 116 112 56 66 70")

ANCHORS: dict[tuple[Arch, int, int, Mask], Anchor] = {
    # FlashAttention-2, bf16, both masks
    **{
        (Arch.SM80, 2, head_dim, mask): row
        for head_dim, row in {
            64: _row("128x128x4", 1146, 256, 7.0, "248-328"),
            128: _row("128x64x4", 910, 256, 10.2, "156-504"),
            256: _row("128x64x8", 728, 256, 14.8, "0-76"),
        }.items()
        for mask in Mask
    },
    # FlashAttention-3
    (Arch.SM90, 2, 64, Mask.FULL): _row("192x192", 632, 16, 6.4, "28 / 0", "98 98 100 96 48 36 108"),
    (Arch.SM90, 2, 64, Mask.CAUSAL): _row("192x128", 431, 12, 6.6, "28 / 0", "66 66 68 64 32 36 67"),
    (Arch.SM90, 2, 128, Mask.FULL): _row("128x176", 594, 19, 6.5, "12 / 0", "90 90 92 88 44 68 85"),
    (Arch.SM90, 2, 128, Mask.CAUSAL): _row("128x128", 469, 16, 7.1, "12 / 0", "66 66 68 64 32 68 71"),
    (Arch.SM90, 2, 256, Mask.FULL): _D256,
    (Arch.SM90, 2, 256, Mask.CAUSAL): _D256,
    (Arch.SM90, 1, 128, Mask.FULL): _FP8_D128,
    (Arch.SM90, 1, 128, Mask.CAUSAL): _FP8_D128,
}
"""By family, bytes of an element, head dim and mask; none was measured for the others."""


SHORT_ROWS_SM90 = 64
"""Query rows of a tile for short queries, one consumer warpgroup: the anchors are tiles of 128 rows and more."""


def anchor_of(spec: KernelSpec) -> Anchor | None:
    """What a kernel is compared with: v has q's head dim, and on SM90 more than one warpgroup computes."""
    key = spec.key
    is_short = key.arch is Arch.SM90 and spec.tile.block_m <= SHORT_ROWS_SM90
    if is_short or key.head_dim != key.head_dim_v:
        return None
    return ANCHORS.get((key.arch, key.dtype.num_bytes, key.head_dim, key.mask))


@dataclass(frozen=True, kw_only=True)
class PublicSpeed:
    """A published forward figure in TFLOPS; a causal mask counts half of the FLOPs."""

    gpu: str
    """A word of the GPU's name."""
    dtypes: tuple[str, ...]
    """Element types that it is for."""
    head_dim: int
    """Of q, k and v."""
    full: float
    """Full mask."""
    causal: float | None
    """Causal mask; None where it was not published."""
    source: str
    """Whose, and for what sizes."""

    def tflops(self, is_causal: bool) -> float | None:
        """For a mask."""
        return self.causal if is_causal else self.full


_16_BIT, _FP8 = ("fp16", "bf16"), ("e4m3", "e5m2")
_FA3, _CUDNN = "FlashAttention-3, S=16k", "cuDNN 9.19, 64/8 heads"

PUBLIC_SPEEDS = tuple(
    PublicSpeed(gpu=gpu, dtypes=dtypes, head_dim=head_dim, full=full, causal=causal, source=source)
    for gpu, dtypes, head_dim, full, causal, source in (
        ("H100", _16_BIT, 64, 497.0, 473.0, _FA3),
        ("H100", _16_BIT, 128, 648.0, 616.0, _FA3),
        ("H100", _16_BIT, 256, 756.0, 642.0, _FA3),
        ("H100", _FP8, 64, 613.0, None, _FA3),
        ("H100", _FP8, 128, 1008.0, None, _FA3),
        ("H100", _FP8, 256, 1171.0, None, _FA3),
        ("H200", _16_BIT, 128, 702.0, 688.0, _CUDNN),
        ("H200", _FP8, 128, 1062.0, 1042.0, _CUDNN),
    )
)
"""Other people's measurements, on their machines. On an H200, where none was published, an H100's stand in."""


def public_speed(gpu: str, dtype: str, head_dim: int) -> PublicSpeed | None:
    """The published figure for a GPU by its full name ("NVIDIA H200"), an element type and a head dim."""
    preferred = ("H200", "H100") if "H200" in gpu else ("H100",) if "H100" in gpu else ()
    rows = [row for row in PUBLIC_SPEEDS if row.gpu in preferred and dtype in row.dtypes and row.head_dim == head_dim]
    return min(rows, key=lambda row: preferred.index(row.gpu), default=None)
