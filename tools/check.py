# SPDX-License-Identifier: Apache-2.0
"""One comparison of the op with the fp64 reference on a device: random inputs, poisoned output, the tolerance rule.

`run_check(CheckCase(...))` is the core that `attnsmith check`, `attnsmith gpu-check` and the test grids share. Not
responsible for the reference or the rule: attnsmith.reference is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from attnsmith.codegen.errors import AttnsmithError

if TYPE_CHECKING:
    import torch

SIMULATED = "sim:"


class CheckError(AttnsmithError, ValueError):
    """A check that cannot run as asked: unknown device, no GPU, or a combination that no kernel serves."""


@dataclass(frozen=True, kw_only=True)
class CheckCase:
    """What to check. The defaults are those of `attnsmith check`."""

    device: str
    """`cuda` (or `cuda:1`), `sim:NAME` with a simulated GPU's name, or `cpu`: the reference implementation itself."""
    dtype: str = "bf16"
    """fp16, bf16, e4m3 or e5m2."""
    batch: int = 1
    """Sequences."""
    seqlen_q: int = 128
    """Query rows of each sequence."""
    seqlen_k: int = 128
    """Keys of each sequence."""
    nheads: int = 2
    """Query heads."""
    nheads_k: int | None = None
    """Key heads; None is as many as query heads."""
    head_dim: int = 64
    """Head dim of q and k."""
    head_dim_v: int | None = None
    """Head dim of v and the output; None is head_dim."""
    causal: bool = False
    """Bottom-right aligned causal mask."""
    softmax_scale: float | None = None
    """None is head_dim ** -0.5."""
    v_layout: str = "row"
    """How v lies in memory: row, its head dim contiguous, or col, its keys."""
    out_dtype: str | None = None
    """Of the output; None is dtype, bf16 for FP8, which may also have fp16."""
    pack_gqa: bool | None = None
    """Whether the query heads of one key head share a tile's rows; None lets the dispatch choose."""
    seed: int = 0
    """Of the random inputs."""

    @property
    def kv_heads(self) -> int:
        """Key heads, default resolved."""
        return self.nheads if self.nheads_k is None else self.nheads_k

    @property
    def dim_v(self) -> int:
        """Head dim of v, default resolved."""
        return self.head_dim if self.head_dim_v is None else self.head_dim_v

    @property
    def is_fp8(self) -> bool:
        """Whether the inputs are of an 8-bit type, and so have descales."""
        return self.dtype in ("e4m3", "e5m2")

    @property
    def result_dtype(self) -> str:
        """Element type of the output, default resolved."""
        return self.out_dtype or ("bf16" if self.is_fp8 else self.dtype)

    @property
    def label(self) -> str:
        """For example `sim:a100 bf16 b1 sq113 sk203 h4/2 d64 causal`, then what is not at its default."""
        dims = f"d{self.head_dim}" if self.dim_v == self.head_dim else f"d{self.head_dim}x{self.dim_v}"
        mask = "causal" if self.causal else "full"
        sizes = f"b{self.batch} sq{self.seqlen_q} sk{self.seqlen_k} h{self.nheads}/{self.kv_heads}"
        options = " vcol" * (self.v_layout == "col")
        options += f" out {self.out_dtype}" if self.out_dtype else ""
        options += "" if self.pack_gqa is None else " packed" if self.pack_gqa else " unpacked"
        return f"{self.device} {self.dtype} {sizes} {dims} {mask}{options}"


@dataclass(frozen=True, kw_only=True)
class TensorCheck:
    """The rule applied to one tensor."""

    max_abs_err: float
    """Largest error against the reference; infinite where a NaN or an infinity stands in the wrong place."""
    allowed: float
    """Largest error that the rule allows."""

    @property
    def ok(self) -> bool:
        """Within the rule; a NaN never is."""
        return self.max_abs_err <= self.allowed


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """Outcome of one check."""

    case: CheckCase
    """What was asked."""
    kernels: tuple[str, ...]
    """Names of the kernels that were launched; none for an empty problem or the device `cpu`."""
    tensors: Mapping[str, TensorCheck]
    """By name: out, lse."""
    stats: Mapping[str, Any] | None = None
    """Statistics of the simulated launch."""
    seconds: float = 0.0
    """Of the op's call alone, kernel build included where it was the first."""
    outputs: Mapping[str, torch.Tensor] = field(default_factory=dict, compare=False, repr=False)
    """The tensors themselves, for comparing devices with each other."""

    @property
    def ok(self) -> bool:
        """Every tensor is within the rule."""
        return all(tensor.ok for tensor in self.tensors.values())

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `attnsmith check`; an infinite error is the string "inf", since JSON has no infinity."""
        row: dict[str, Any] = {"ok": self.ok, "kernels": list(self.kernels)}
        row.update({name: _json_tensor(tensor) for name, tensor in self.tensors.items()})
        if self.stats is not None:
            row["stats"] = dict(self.stats)
        row["case"] = asdict(self.case)
        row["seconds"] = self.seconds
        return row


def _json_tensor(tensor: TensorCheck) -> dict[str, Any]:
    error = tensor.max_abs_err if math.isfinite(tensor.max_abs_err) else "inf"
    return {"max_abs_err": error, "allowed": tensor.allowed, "ok": tensor.ok}


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of fp16, bf16, e4m3, e5m2."""
    import torch

    types = {
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
        "e4m3": torch.float8_e4m3fn,
        "e5m2": torch.float8_e5m2,
    }
    if name not in types:
        raise CheckError(asked="check a dtype", got=name, allowed=", ".join(types), do="Pass one of these as --dtype.")
    return types[name]


@contextmanager
def open_device(name: str) -> Iterator[torch.device]:
    """Where tensors live for a device name; for `sim:NAME` the simulated GPU is active inside the block.

    Raises:
        CheckError: the name is none of cuda, cuda:N, cpu, sim:NAME, or there is no such GPU.
    """
    import attnsmith
    import torch

    if name.startswith(SIMULATED):
        with attnsmith.simulate(name[len(SIMULATED) :]):
            yield torch.device("cpu")
        return
    if name != "cpu" and name.split(":")[0] != "cuda":
        do = "Pass one of these as --device; the simulated GPUs are a100, rtx3090, rtx4090, h100, h200."
        raise CheckError(asked="open a device", got=repr(name), allowed="cuda, cuda:N, cpu, sim:NAME", do=do)
    if name != "cpu" and not torch.cuda.is_available():
        do = "Use --device sim:a100, which runs the same kernels without a GPU."
        raise CheckError(asked=f"open the device {name}", got="no CUDA GPU", allowed="a machine with one", do=do)
    yield torch.device(name)


def make_inputs(case: CheckCase, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v in the case's dtype: normal from the seed, the same on every device.

    Their standard deviation is 1; for FP8 an eighth of the type's largest number, as quantized tensors have it.

    Raises:
        CheckError: they do not fit memory, or v_layout is neither row nor col.
    """
    import torch
    from attnsmith.quantize import to_col_major

    generator = torch.Generator().manual_seed(case.seed)
    dtype = torch_dtype(case.dtype)
    unit = _unit(case)
    if case.v_layout not in ("row", "col"):
        do = "Pass one of these as --v-layout."
        raise CheckError(asked="lay out v", got=repr(case.v_layout), allowed="row, col", do=do)

    def normal(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * unit).to(dtype).to(device)

    try:
        q = normal(case.batch, case.seqlen_q, case.nheads, case.head_dim)
        k = normal(case.batch, case.seqlen_k, case.kv_heads, case.head_dim)
        v = normal(case.batch, case.seqlen_k, case.kv_heads, case.dim_v)
        v = to_col_major(v) if case.v_layout == "col" else v
    except RuntimeError as error:  # torch's allocators raise it on the CPU, a subclass of it on a GPU
        raise CheckError(
            asked=f"make random q, k and v for {case.label}",
            got=str(error).splitlines()[0],
            allowed=f"tensors that fit the memory of the host and of {case.device}",
            do="Lower --batch, --nheads or the sequence lengths.",
        ) from error
    return q, k, v


def _unit(case: CheckCase) -> float:
    """What the number 1 is in the case's inputs."""
    import torch

    return torch.finfo(torch_dtype(case.dtype)).max / 8 if case.is_fp8 else 1.0


def make_descales(case: CheckCase, device: torch.device) -> dict[str, torch.Tensor]:
    """FP8: q_descale, k_descale, v_descale that give the inputs standard deviations from 0.5 to 2, another one for each
    (batch, key head) and tensor, so that a swapped index shows. None for other types."""
    import torch

    if not case.is_fp8:
        return {}
    generator = torch.Generator().manual_seed(case.seed)
    factors = 0.5 + 1.5 * torch.rand(3, case.batch, case.kv_heads, generator=generator)
    return dict(zip(("q_descale", "k_descale", "v_descale"), (factors / _unit(case)).to(device), strict=True))


def call_op(case: CheckCase, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of the public function, written over a buffer of NaN, so that an element nobody wrote shows."""
    import attnsmith
    import torch

    shape = (*q.shape[:3], v.shape[-1])
    out = torch.full(shape, float("nan"), dtype=torch_dtype(case.result_dtype), device=q.device)
    result, lse, _ = attnsmith.flash_attn_func(
        q,
        k,
        v,
        softmax_scale=case.softmax_scale,
        causal=case.causal,
        return_attn_probs=True,
        out=out,
        pack_gqa=case.pack_gqa,
        **make_descales(case, q.device),
    )
    return result, lse


Op = Callable[["CheckCase", "torch.Tensor", "torch.Tensor", "torch.Tensor"], "tuple[torch.Tensor, torch.Tensor]"]


def run_check(case: CheckCase, op: Op = call_op) -> CheckResult:
    """Run one case and judge out and lse by the rule.

    Args:
        case: what to run.
        op: what computes (out, lse); tests plant a wrong one here.

    Raises:
        AttnsmithError: the case cannot run as asked (device, dtype or sizes).
        ValueError, TypeError, NotImplementedError: the op refused its arguments.
    """
    import attnsmith

    with open_device(case.device) as device:
        q, k, v = make_inputs(case, device)
        start = time.perf_counter()
        with attnsmith.record_launches() as launches:
            out, lse = op(case, q, k, v)
        synchronize(device)
        seconds = time.perf_counter() - start
        tensors = compare_with_reference(case, (q, k, v), out, lse)
    return CheckResult(
        case=case,
        kernels=tuple(launch.kernel for launch in launches),
        tensors=tensors,
        stats=sum_stats([launch.stats for launch in launches if launch.stats is not None]),
        seconds=seconds,
        outputs={"out": out, "lse": lse},
    )


def synchronize(device: torch.device) -> None:
    """Wait for a GPU's work; nothing on the CPU."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def sum_stats(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Statistics of several simulated launches as one; None where nothing was simulated."""
    if not rows:
        return None
    if len(rows) == 1:
        return dict(rows[0])
    from attnsmith.tools.ptxsim.stats import Stats

    total = Stats.from_dict(rows[0])
    for row in rows[1:]:
        total = total + Stats.from_dict(row)
    return total.to_dict()


def compare_with_reference(
    case: CheckCase, inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor], out: torch.Tensor, lse: torch.Tensor
) -> dict[str, TensorCheck]:
    """out by the tolerance rule, lse within 1e-3 relative, both against fp64 of the same rounded inputs."""
    from attnsmith import reference

    options: dict[str, Any] = {"softmax_scale": case.softmax_scale, "causal": case.causal}
    options.update(make_descales(case, out.device))
    ref_out, ref_lse = reference.attention(*inputs, **options)
    same_dtype = reference.same_dtype_attention(*inputs, **options, out_dtype=out.dtype)
    found = {
        "out": reference.compare(out, ref_out, same_dtype),
        "lse": reference.compare_lse(lse, ref_lse),
    }
    return {name: TensorCheck(max_abs_err=row.max_abs_err, allowed=row.allowed) for name, row in found.items()}
