# SPDX-License-Identifier: Apache-2.0
"""The torch ops: schemas, fake implementations, autograd, and the implementation for CPU tensors.

CUDA tensors go straight to the launcher's C++. CPU tensors run the kernels on the simulated GPU where a simulation is
in effect, and the reference otherwise. Not responsible for argument errors (checks.py) or for user-facing defaults.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from attnsmith import checks, launcher, reference, simulation
from attnsmith.capi import SimulationOptions
from attnsmith.errors import UnsupportedError
from torch import Tensor

ALIGN_ELEMENTS = 8
"""Rows of a result are padded to this many elements: 16 bytes."""

_ARGUMENTS = "Tensor q, Tensor k, Tensor v, float softmax_scale, bool causal"
_DESCALES = "Tensor? q_descale=None, Tensor? k_descale=None, Tensor? v_descale=None"

_library = torch.library.Library("attnsmith", "DEF")  # type: ignore[no-untyped-call]
for _schema in (
    f"fwd({_ARGUMENTS}, {_DESCALES}, *, ScalarType? out_dtype=None, bool? pack_gqa=None) -> (Tensor out, Tensor lse)",
    f"fwd_out({_ARGUMENTS}, Tensor(a!) out, {_DESCALES}, *, bool? pack_gqa=None) -> Tensor lse",
):
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]

# In the implementations, `descales` and `options` are the schema's arguments with defaults, positional and by keyword;
# torch leaves out trailing ones that are at their default.


def _empty_out(q: Tensor, head_dim_v: int, out_dtype: torch.dtype | None) -> Tensor:
    """(b, sq, h, dv) as the kernels leave it: a slice of rows of a multiple of 8 elements."""
    default = checks.FP8_OUT_DTYPES[0] if q.dtype in checks.FP8_DTYPES else q.dtype
    width = (head_dim_v + ALIGN_ELEMENTS - 1) // ALIGN_ELEMENTS * ALIGN_ELEMENTS
    shape = (q.shape[0], q.shape[1], q.shape[2], width)
    return q.new_empty(shape, dtype=out_dtype or default).narrow(3, 0, head_dim_v)


def _empty_lse(q: Tensor) -> Tensor:
    return q.new_empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32)


def _named(descales: tuple[Tensor | None, ...]) -> dict[str, Any]:
    return dict(zip(("q_descale", "k_descale", "v_descale"), descales, strict=False))


def _reference_out(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float, causal: bool, out: Tensor, *descales: Tensor | None
) -> Tensor:
    simulation.forget_last_launch()
    checks.check_tensors(q, k, v)
    checks.check_descales(q, k, **_named(descales))
    checks.check_out_dtype(out.dtype, q)
    result, lse = reference.attention(
        q, k, v, softmax_scale=softmax_scale, causal=causal, compute_dtype=torch.float32, **_named(descales)
    )
    out.copy_(result)
    return lse.contiguous()


def _simulated(simulated: SimulationOptions, op: Any, *args: Any, **options: Any) -> Any:
    """A launcher op on the simulated GPU."""
    has_fp8 = simulated.target.startswith("sm_90")
    checks.check_has_fp8(args[0].dtype, f"the simulated GPU {simulated.device}", has_fp8)
    return simulation.run(simulated, functools.partial(op, **options), *args)


def _fwd_cpu(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float, causal: bool, *descales: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor]:
    simulated = simulation.current()
    if simulated is not None:
        options.update(_named(descales))
        result: tuple[Tensor, Tensor] = _simulated(
            simulated, torch.ops.attnsmith.simulated_fwd, q, k, v, softmax_scale, causal, **options
        )
        return result
    out = _empty_out(q, v.shape[3], options.get("out_dtype"))
    return out, _reference_out(q, k, v, softmax_scale, causal, out, *descales)


def _fwd_out_cpu(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float, causal: bool, out: Tensor, *descales: Any, **options: Any
) -> Tensor:
    simulated = simulation.current()
    if simulated is not None:
        options.update(_named(descales))
        lse: Tensor = _simulated(
            simulated, torch.ops.attnsmith.simulated_fwd_out, q, k, v, softmax_scale, causal, out, **options
        )
        return lse
    return _reference_out(q, k, v, softmax_scale, causal, out, *descales)


def _load_launcher(q: Tensor) -> None:
    """For a device whose kernels are not registered yet: CUDA until the launcher is loaded, others for ever."""
    if not q.is_cuda:
        raise UnsupportedError(
            asked=f"attention on {q.device.type}", got=f"q on {q.device}", allowed="cuda, cpu", do="Move q, k and v."
        )
    launcher.load()


def _fwd_any(q: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
    _load_launcher(q)
    result: tuple[Tensor, Tensor] = torch.ops.attnsmith.fwd(q, *args, **options)
    return result


def _fwd_out_any(q: Tensor, *args: Any, **options: Any) -> Tensor:
    _load_launcher(q)
    result: Tensor = torch.ops.attnsmith.fwd_out(q, *args, **options)
    return result


def _fwd_fake(q: Tensor, k: Tensor, v: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
    return _empty_out(q, v.shape[3], options.get("out_dtype")), _empty_lse(q)


def _fwd_out_fake(q: Tensor, *args: Any, **options: Any) -> Tensor:
    return _empty_lse(q)


def _setup_context(
    ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: tuple[Tensor, Tensor]
) -> None:
    q, k, v = inputs[:3]
    ctx.num_inputs = len(inputs)
    ctx.has_work = output[0].numel() > 0
    ctx.save_for_backward(*(() if ctx.has_work else (q, k, v)))


def _backward(ctx: Any, dout: Tensor, dlse: Tensor) -> tuple[Tensor | None, ...]:
    """Zeros for an empty result; else this version has no backward kernel."""
    if ctx.has_work:
        raise UnsupportedError(
            asked="the backward pass of attnsmith attention", got="a call of backward()",
            allowed="the forward pass in this version: backward kernels do not exist yet",
            do="Call under torch.no_grad(), or use another attention implementation for training.",
        )  # fmt: skip
    return (*(torch.zeros_like(x) for x in ctx.saved_tensors), *(None,) * (ctx.num_inputs - 3))


# CompositeExplicitAutograd serves any backend without a kernel of its own: it loads the launcher, whose C++ then does.
for _name, _function, _key in (
    ("fwd", _fwd_cpu, "CPU"),
    ("fwd_out", _fwd_out_cpu, "CPU"),
    ("fwd", _fwd_any, "CompositeExplicitAutograd"),
    ("fwd_out", _fwd_out_any, "CompositeExplicitAutograd"),
):
    _library.impl(_name, _function, _key)  # type: ignore[no-untyped-call]
torch.library.register_fake("attnsmith::fwd", _fwd_fake, lib=_library)
torch.library.register_fake("attnsmith::fwd_out", _fwd_out_fake, lib=_library)
torch.library.register_autograd("attnsmith::fwd", _backward, setup_context=_setup_context, lib=_library)
