# SPDX-License-Identifier: Apache-2.0
"""The torch ops on CPU tensors: opcheck, fake results that equal the real ones, one graph under torch.compile."""

from __future__ import annotations

from typing import Any

import attnsmith
import attnsmith.ops
import pytest
import torch
from attnsmith.errors import UnsupportedError
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

SHAPES = {
    "gqa": (2, 5, 7, 4, 2, 64, 64),
    "odd-head-dims": (2, 5, 7, 4, 1, 33, 20),
    "batch-0": (0, 5, 7, 4, 2, 64, 64),
    "seqlen-q-0": (1, 0, 7, 2, 2, 40, 40),
    "seqlen-k-0": (1, 3, 0, 2, 2, 64, 33),
}


def make(b: int, sq: int, sk: int, h: int, hk: int, d: int, dv: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    shapes = ((b, sq, h, d), (b, sk, hk, d), (b, sk, hk, dv))
    return tuple(torch.randn(*shape).bfloat16() for shape in shapes)  # type: ignore[return-value]


def strided(x: Tensor) -> Tensor:
    """The same values, not contiguous in any dim."""
    return torch.stack([x, x], dim=-1)[..., 0].transpose(1, 2).contiguous().transpose(1, 2)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_opcheck_fwd(shape: str, causal: bool) -> None:
    torch.library.opcheck(torch.ops.attnsmith.fwd.default, (*make(*SHAPES[shape]), 0.3, causal))


def test_opcheck_fwd_strided() -> None:
    q, k, v = make(*SHAPES["gqa"])
    torch.library.opcheck(torch.ops.attnsmith.fwd.default, (strided(q), k.transpose(1, 1), strided(v), 0.3, True))


@pytest.mark.parametrize("shape", SHAPES)
def test_opcheck_fwd_out(shape: str) -> None:
    q, k, v = make(*SHAPES[shape])
    out = torch.zeros(*q.shape[:3], v.shape[3], 2).bfloat16()[..., 0]
    torch.library.opcheck(torch.ops.attnsmith.fwd_out.default, (q, k, v, 0.3, True, out))


def make_fp8(*shape: int) -> tuple[Tensor, ...]:
    """q, k, v and their descales."""
    tensors = tuple(x.to(torch.float8_e4m3fn) for x in make(*shape))
    return (*tensors, *torch.rand(3, shape[0], shape[4]).unbind())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", [{}, {"out_dtype": torch.float16, "pack_gqa": True}], ids=["default", "options"])
def test_opcheck_fp8(shape: str, options: dict[str, Any]) -> None:
    """All but test_schema, which multiplies the inputs: torch cannot multiply FP8."""
    q, k, v, *descales = make_fp8(*SHAPES[shape])
    tests = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    fwd, fwd_out = torch.ops.attnsmith.fwd.default, torch.ops.attnsmith.fwd_out.default
    torch.library.opcheck(fwd, (q, k, v, 0.3, True, *descales), options, test_utils=tests)
    out = torch.zeros(*q.shape[:3], v.shape[3]).half()
    torch.library.opcheck(fwd_out, (q, k, v, 0.3, True, out, None, *descales[1:]), test_utils=tests)


@pytest.mark.parametrize("out_dtype", [None, torch.bfloat16, torch.float16])
def test_the_op_writes_the_type_that_is_asked(out_dtype: torch.dtype | None) -> None:
    q, k, v, *descales = make_fp8(*SHAPES["gqa"])
    out, _ = torch.ops.attnsmith.fwd(q, k, v, 0.3, True, *descales, out_dtype=out_dtype)
    assert out.dtype == (out_dtype or torch.bfloat16)
    with pytest.raises(TypeError, match="float32"):
        torch.ops.attnsmith.fwd(q, k, v, 0.3, True, *descales, out_dtype=torch.float32)
    with pytest.raises(TypeError, match="float16"):
        torch.ops.attnsmith.fwd(q.bfloat16(), k.bfloat16(), v.bfloat16(), 0.3, True, out_dtype=torch.float16)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("is_fp8", [False, True], ids=["bf16", "fp8"])
def test_fake_equals_real_in_layout(shape: str, is_fp8: bool) -> None:
    tensors = make_fp8(*SHAPES[shape])[:3] if is_fp8 else make(*SHAPES[shape])
    real = torch.ops.attnsmith.fwd(*tensors, 0.3, True)
    with FakeTensorMode() as mode:
        fake = torch.ops.attnsmith.fwd(*(mode.from_tensor(x) for x in tensors), 0.3, True)
    for a, b in zip(real, fake, strict=True):
        assert (a.shape, a.stride(), a.dtype, a.device) == (b.shape, b.stride(), b.dtype, b.device)


def test_the_op_itself_checks_cpu_tensors() -> None:
    q, k, v = make(*SHAPES["gqa"])
    with pytest.raises(ValueError, match="seqlen"):
        torch.ops.attnsmith.fwd(q, k, v[:, 1:], 0.3, False)
    with pytest.raises(TypeError, match="dtype"):
        torch.ops.attnsmith.fwd(q.float(), k.float(), v.float(), 0.3, False)


def test_meta_tensors_give_shapes() -> None:
    q, k, v = (x.to("meta") for x in make(*SHAPES["gqa"]))
    out, lse = attnsmith.flash_attn_func(q, k, v, return_lse=True)
    assert out.is_meta and out.shape == (2, 5, 4, 64) and lse.shape == (2, 4, 5)


@pytest.mark.parametrize("dynamic", [False, True])
def test_one_graph_under_compile(dynamic: bool) -> None:
    torch._dynamo.reset()

    def call(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return attnsmith.flash_attn_func(q * 1.0, k, v, causal=True, window_size=(-1, 0), return_lse=True)

    compiled = torch.compile(call, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for seqlen in (5, 6, 1):
        q, k, v = make(2, seqlen, 7, 4, 2, 40, 33)
        for a, b in zip(compiled(q, k, v), call(q, k, v), strict=True):
            assert torch.equal(a, b)


def test_fp8_under_compile() -> None:
    torch._dynamo.reset()
    q, k, v, *factors = make_fp8(*SHAPES["gqa"])
    descales = dict(zip(("q_descale", "k_descale", "v_descale"), factors, strict=True))

    def call(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return attnsmith.flash_attn_func(q, k, v, causal=True, **descales, pack_gqa=True)

    assert torch.equal(torch.compile(call, fullgraph=True, backend="aot_eager")(q, k, v), call(q, k, v))


def test_out_under_compile() -> None:
    torch._dynamo.reset()
    q, k, v = make(*SHAPES["odd-head-dims"])

    @torch.compile(fullgraph=True, backend="aot_eager")
    def call(q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> Any:
        return attnsmith.flash_attn_func(q, k, v, out=out)

    buffer = torch.zeros(*q.shape[:3], v.shape[3], 2).bfloat16()
    out = buffer[..., 0]
    got = call(q, k, v, out)
    assert got.data_ptr() == out.data_ptr()
    assert torch.equal(out, attnsmith.flash_attn_func(q, k, v)) and (buffer[..., 1] == 0).all()


def test_other_devices_are_refused_by_name() -> None:
    """The implementation for backends without kernels of their own, called as the dispatcher would."""
    from attnsmith import ops

    q = torch.empty(1, 1, 1, 8, device="meta")
    with pytest.raises(UnsupportedError, match="meta"):
        ops._fwd_any(q, q, q, 1.0, False)


def test_cuda_has_an_implementation_before_the_launcher_is_loaded() -> None:
    """A CUDA call through torch.ops alone must find something that loads the launcher."""
    for name in ("attnsmith::fwd", "attnsmith::fwd_out"):
        keys = ("CUDA", "CompositeExplicitAutograd")
        assert any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys)
