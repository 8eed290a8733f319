# SPDX-License-Identifier: Apache-2.0
"""The public functions on CPU tensors outside the simulator: the reference with the op's semantics, in any layout."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import attnsmith
import pytest
import torch
from attnsmith import reference
from torch import Tensor


def make(
    b: int, sq: int, sk: int, h: int, hk: int, d: int, dv: int | None = None, dtype: torch.dtype = torch.bfloat16
) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(b + sq + sk + d)
    dv = d if dv is None else dv
    return torch.randn(b, sq, h, d).to(dtype), torch.randn(b, sk, hk, d).to(dtype), torch.randn(b, sk, hk, dv).to(dtype)


def assert_right(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None = None, **options: Any) -> None:
    ref_out, ref_lse = reference.attention(q, k, v, **options)
    found = reference.compare(out, ref_out, reference.same_dtype_attention(q, k, v, **options))
    assert found.ok, found
    if lse is not None:
        assert lse.dtype == torch.float32
        assert reference.compare_lse(lse, ref_lse).ok


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("d,dv", [(1, 1), (33, 33), (64, 64), (111, 40), (128, 96), (256, 256), (64, 128)])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_values_and_shapes(dtype: torch.dtype, d: int, dv: int, causal: bool) -> None:
    q, k, v = make(2, 9, 13, 4, 2, d, dv, dtype)
    out, lse, dmask = attnsmith.flash_attn_func(q, k, v, causal=causal, return_attn_probs=True)
    assert out.shape == (2, 9, 4, dv) and out.dtype == dtype
    assert lse.shape == (2, 4, 9) and dmask.numel() == 0
    assert_right(q, k, v, out, lse, causal=causal)


def test_return_values() -> None:
    q, k, v = make(1, 3, 3, 1, 1, 8)
    assert isinstance(attnsmith.flash_attn_func(q, k, v), Tensor)
    assert len(attnsmith.flash_attn_func(q, k, v, return_lse=True)) == 2
    assert len(attnsmith.flash_attn_func(q, k, v, return_attn_probs=True)) == 3
    assert len(attnsmith.flash_attn_func(q, k, v, return_attn_probs=True, return_lse=True)) == 3


def test_packed_equal_unpacked() -> None:
    torch.manual_seed(0)
    qkv = torch.randn(2, 6, 3, 4, 16).half()
    q, k, v = qkv.unbind(2)
    wanted = attnsmith.flash_attn_func(q, k, v, causal=True, softmax_scale=0.3)
    assert torch.equal(attnsmith.flash_attn_qkvpacked_func(qkv, causal=True, softmax_scale=0.3), wanted)
    kv = torch.stack([k, v], dim=2)
    assert torch.equal(attnsmith.flash_attn_kvpacked_func(q, kv, causal=True, softmax_scale=0.3), wanted)
    out, lse = attnsmith.flash_attn_kvpacked_func(q, kv, causal=True, softmax_scale=0.3, return_lse=True)
    assert torch.equal(out, wanted) and lse.shape == (2, 4, 6)


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (0, 0)], ids=["b0", "sq0", "both"])
def test_empty_results(shape: tuple[int, int]) -> None:
    b, sq = shape
    q, k, v = make(b, sq, 7, 4, 2, 40)
    out, lse = attnsmith.flash_attn_func(q, k, v, causal=True, return_lse=True)
    assert out.shape == (b, sq, 4, 40) and lse.shape == (b, 4, sq)


def test_no_heads_and_no_keys() -> None:
    q, k, v = make(2, 5, 7, 0, 0, 32)
    assert attnsmith.flash_attn_func(q, k, v).shape == (2, 5, 0, 32)
    q, k, v = make(2, 5, 0, 4, 2, 32)
    out, lse = attnsmith.flash_attn_func(q, k, v, return_lse=True)
    assert (out == 0).all() and (lse == -float("inf")).all()


def test_decode_sees_the_whole_cache() -> None:
    """Bottom-right alignment: one query row, causal, sees all keys; two rows see 4 and 5 of 5."""
    v = torch.eye(8).reshape(1, 8, 1, 8).half()
    q, k = torch.zeros(1, 1, 1, 8).half(), torch.zeros(1, 8, 1, 8).half()
    assert (attnsmith.flash_attn_func(q, k, v, causal=True) > 0).sum() == 8
    q, k, v = torch.zeros(1, 2, 1, 8).half(), k[:, :5], v[:, :5]
    assert (attnsmith.flash_attn_func(q, k, v, causal=True) > 0).sum(-1).flatten().tolist() == [4, 5]


@pytest.mark.parametrize("scale", [0.0, -0.5, 1.0, 0])
def test_scale_of_any_sign(scale: float) -> None:
    q, k, v = make(1, 7, 7, 2, 2, 16)
    assert_right(q, k, v, attnsmith.flash_attn_func(q, k, v, softmax_scale=scale), softmax_scale=scale)


LAYOUTS = {
    "bhsd": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "last-dim-strided": lambda x: torch.stack([x, x], dim=-1)[..., 0],
    "last-dim-transposed": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "offset": lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape),
    "odd-row-stride": lambda x: torch.nn.functional.pad(x, (0, 3))[..., : x.shape[-1]],
    "fused": lambda x: torch.stack([x, x, x], dim=2)[:, :, 1],
    "expanded-batch": lambda x: x[:1].expand(x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("which", ["q", "k", "v", "all"])
def test_any_strides(layout: str, which: str) -> None:
    tensors = dict(zip("qkv", make(2, 9, 9, 2, 2, 32), strict=True))
    if layout == "expanded-batch":
        tensors = {name: x[:1].repeat(2, 1, 1, 1) for name, x in tensors.items()}
    wanted = attnsmith.flash_attn_func(**tensors)
    changed = {name: LAYOUTS[layout](x) if which in (name, "all") else x for name, x in tensors.items()}
    assert all(torch.equal(changed[name], tensors[name]) for name in "qkv")
    assert torch.equal(attnsmith.flash_attn_func(**changed), wanted)


def test_out_is_written_in_place_and_only_there() -> None:
    q, k, v = make(2, 5, 7, 2, 2, 33)
    wanted, wanted_lse = attnsmith.flash_attn_func(q, k, v, return_lse=True)
    buffer = torch.full((2, 5, 4, 70), 7.0).bfloat16()
    out = buffer[:, :, 1:3, 2:68:2]
    got, lse = attnsmith.flash_attn_func(q, k, v, out=out, return_lse=True)
    assert got is out and torch.equal(out, wanted) and torch.equal(lse, wanted_lse)
    out.fill_(7.0)
    assert (buffer == 7.0).all()


def test_autocast_casts_float32_only_inside() -> None:
    q, k, v = make(1, 5, 5, 2, 2, 16)
    wanted = attnsmith.flash_attn_func(q, k, v)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            out = attnsmith.flash_attn_func(q.float(), k.float(), v.float())
        assert out.dtype == dtype
        if dtype == torch.bfloat16:
            assert torch.equal(out, wanted)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False), pytest.raises(TypeError, match="dtype"):
        attnsmith.flash_attn_func(q.float(), k.float(), v.float())


def test_grad_modes_agree() -> None:
    q, k, v = make(1, 5, 5, 2, 2, 59)
    wanted = attnsmith.flash_attn_func(q, k, v)
    with torch.inference_mode():
        assert torch.equal(attnsmith.flash_attn_func(q, k, v), wanted)
    v.requires_grad_()
    out = attnsmith.flash_attn_func(q, k, v)
    assert torch.equal(out.detach(), wanted) and out.requires_grad
    with torch.no_grad():
        assert not attnsmith.flash_attn_func(q, k, v).requires_grad


def test_backward_raises_naming_itself() -> None:
    q, k, v = (x.requires_grad_() for x in make(1, 5, 5, 2, 2, 32))
    out = attnsmith.flash_attn_func(q, k, v)
    with pytest.raises(NotImplementedError, match="backward"):
        out.sum().backward()


def test_backward_of_an_empty_result_is_zero() -> None:
    q, k, v = (x.requires_grad_() for x in make(0, 5, 7, 4, 2, 32))
    attnsmith.flash_attn_func(q, k, v).sum().backward()
    assert q.grad.shape == q.shape and k.grad.shape == k.shape and v.grad.shape == v.shape
    q, k, v = (x.requires_grad_() for x in make(1, 0, 7, 4, 2, 32))
    attnsmith.flash_attn_func(q, k, v).sum().backward()
    assert (k.grad == 0).all() and (v.grad == 0).all()


def test_reference_path_builds_and_launches_nothing(tmp_path: Any) -> None:
    """No compiler on PATH, a cache that does not exist: the reference needs neither."""
    code = (
        "import torch, attnsmith\n"
        "x = torch.randn(1, 4, 2, 16).half()\n"
        "attnsmith.flash_attn_func(x, x, x)\n"
        "from attnsmith import launcher\n"
        "assert launcher.loaded() is None and attnsmith.last_launch() is None\n"
    )
    environment = {"PATH": "/nonexistent", "ATTNSMITH_CACHE_DIR": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, cwd=tmp_path, timeout=120)
    assert not (tmp_path / "cache").exists()


def test_signature_is_that_of_flash_attn() -> None:
    """Positional names, order and defaults of flash_attn 2.x."""
    names = ["dropout_p", "softmax_scale", "causal", "window_size", "softcap", "alibi_slopes", "deterministic"]
    defaults = [0.0, None, False, (-1, -1), 0.0, None, False, False]
    for function, tensors in (
        (attnsmith.flash_attn_func, ["q", "k", "v"]),
        (attnsmith.flash_attn_kvpacked_func, ["q", "kv"]),
        (attnsmith.flash_attn_qkvpacked_func, ["qkv"]),
    ):
        parameters = inspect.signature(function).parameters.values()
        positional = [p for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        assert [p.name for p in positional] == [*tensors, *names, "return_attn_probs"]
        assert [p.default for p in positional][len(tensors) :] == defaults
