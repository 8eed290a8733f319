# SPDX-License-Identifier: Apache-2.0
"""FP8 through the public functions on CPU tensors outside the simulator: types, descales, layouts, refusals."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attnsmith
import pytest
import torch
from attnsmith import checks, ops, reference
from attnsmith.errors import UnsupportedError
from torch import Tensor

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
DTYPES = pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=["e4m3", "e5m2"])
OUT_DTYPES = pytest.mark.parametrize(
    "out_dtype", [None, torch.bfloat16, torch.float16], ids=["default", "bf16", "fp16"]
)


def make(dtype: torch.dtype = E4M3, h: int = 4, hk: int = 2, d: int = 64, dv: int = 48) -> tuple[Tensor, ...]:
    """q, k, v over much of the type's range."""
    generator = torch.Generator().manual_seed(d + h)
    shapes = ((2, 9, h, d), (2, 13, hk, d), (2, 13, hk, dv))
    return tuple((torch.randn(*shape, generator=generator) * 20).to(dtype) for shape in shapes)


def make_descales(hk: int = 2) -> dict[str, Tensor]:
    """Another factor for each (batch, key head) of each tensor."""
    factors = (0.5 + 1.5 * torch.rand(3, 2, hk, generator=torch.Generator().manual_seed(1))) / 20
    return dict(zip(("q_descale", "k_descale", "v_descale"), factors, strict=True))


def attend(q: Tensor, k: Tensor, v: Tensor, out_dtype: torch.dtype | None = None, **options: Any) -> tuple[Tensor, ...]:
    if out_dtype is not None:
        options["out"] = torch.full((*q.shape[:3], v.shape[3]), float("nan"), dtype=out_dtype)
    result: tuple[Tensor, Tensor] = attnsmith.flash_attn_func(q, k, v, return_lse=True, **options)
    return result


@DTYPES
@OUT_DTYPES
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("hk", [1, 2, 4])
def test_values(dtype: torch.dtype, out_dtype: torch.dtype | None, causal: bool, hk: int) -> None:
    q, k, v = make(dtype, hk=hk)
    descales = make_descales(hk)
    out, lse = attend(q, k, v, out_dtype, causal=causal, **descales)
    ref_out, ref_lse = reference.attention(q, k, v, causal=causal, **descales)
    assert out.dtype == (out_dtype or torch.bfloat16) and lse.dtype == torch.float32
    rounding = ref_out.abs() * torch.finfo(out.dtype).eps + 1e-5
    assert ((out.double() - ref_out).abs() <= rounding).all()
    assert reference.compare_lse(lse, ref_lse).ok


@pytest.mark.parametrize("name", ["q_descale", "k_descale", "v_descale"])
def test_fp8_03_every_descale_counts_and_defaults_to_1(name: str) -> None:
    q, k, v = make()
    small = {"q_descale": torch.full((2, 2), 0.01), "softmax_scale": 0.1}
    plain = attend(q, k, v, **small)
    ones = {"q_descale": None, "k_descale": None, "v_descale": None, **small}
    ones = {key: torch.ones(2, 2) if x is None else x for key, x in ones.items()}
    assert all(torch.equal(a, b) for a, b in zip(attend(q, k, v, **ones), plain, strict=True))
    changed = attend(q, k, v, **{**small, name: make_descales()[name]})
    assert not torch.equal(changed[0], plain[0])
    assert torch.equal(changed[1], plain[1]) is (name == "v_descale")


def test_fp8_03_descales_are_linear_and_of_any_strides() -> None:
    q, k, v = make()
    wanted, wanted_lse = attend(q, k, v, **make_descales())
    doubled = {**make_descales(), "v_descale": 2 * make_descales()["v_descale"]}
    assert torch.equal(attend(q, k, v, **doubled)[0], 2 * wanted)
    moved = {**make_descales(), "q_descale": make_descales()["q_descale"] / 4}
    out, lse = attend(q, k, v, **moved, softmax_scale=4 * 64**-0.5)
    assert torch.equal(out, wanted) and torch.equal(lse, wanted_lse)
    whole = attend(q, k, v, v_descale=torch.full((2, 2), 0.5))
    assert torch.equal(attend(q, k, v, v_descale=torch.tensor(0.5).expand(2, 2))[0], whole[0])


def test_fp8_03_descales_belong_to_a_batch_and_a_key_head() -> None:
    """Each (batch, key head) alone gives the same as all together."""
    q, k, v = make()
    descales = make_descales()
    out, lse = attend(q, k, v, **descales)
    for b in range(2):
        for head in range(2):
            heads, key = slice(2 * head, 2 * head + 2), slice(head, head + 1)
            part = {name: x[b : b + 1, key] for name, x in descales.items()}
            got = attend(q[b : b + 1, :, heads], k[b : b + 1, :, key], v[b : b + 1, :, key], **part)
            torch.testing.assert_close(got[0], out[b : b + 1, :, heads], rtol=0.01, atol=1e-3)
            torch.testing.assert_close(got[1], lse[b : b + 1, heads])


def test_layouts_and_packing_change_nothing() -> None:
    q, k, v = make(dv=64)
    wanted = attnsmith.flash_attn_func(q, k, v, **make_descales())
    col = v.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert col.stride(1) == 1
    kv = torch.stack([k, v], dim=2)
    calls = (
        attnsmith.flash_attn_func(q, k, col, **make_descales()),
        attnsmith.flash_attn_func(q, k, v, **make_descales(), pack_gqa=True),
        attnsmith.flash_attn_func(q, k, v, **make_descales(), pack_gqa=False),
        attnsmith.flash_attn_kvpacked_func(q, kv, **make_descales()),
    )
    assert all(torch.equal(out, wanted) for out in calls)
    qkv = torch.stack([k, k, v], dim=2)
    packed = attnsmith.flash_attn_qkvpacked_func(qkv, **make_descales())
    assert torch.equal(packed, attnsmith.flash_attn_func(k, k, v, **make_descales()))


def test_sdpa_takes_fp8() -> None:
    q, k, v = (x.transpose(1, 2) for x in make(h=2, hk=2))
    out = attnsmith.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.001)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), is_causal=True, scale=0.001
    )
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), wanted, rtol=0.01, atol=0.01)


@DTYPES
def test_nan_stays_in_the_rows_that_see_it(dtype: torch.dtype) -> None:
    q, k, v = make(dtype)
    clean = attnsmith.flash_attn_func(q, k, v, causal=True, softmax_scale=1e-4)
    v = v.float()
    v[:, -1] = float("nan")
    out = attnsmith.flash_attn_func(q, k, v.to(dtype), causal=True, softmax_scale=1e-4)
    assert out[:, -1].isnan().all() and torch.equal(out[:, :-1], clean[:, :-1])


def test_rows_without_keys_and_empty_results() -> None:
    q, k, v = make()
    out, lse = attend(q, k[:, :2], v[:, :2], causal=True, **make_descales())
    assert (out[:, :7] == 0).all() and (lse[:, :, :7] == -float("inf")).all() and (out[:, 7:] != 0).any()
    assert attnsmith.flash_attn_func(q[:, :0], k, v, **make_descales()).shape == (2, 0, 4, 48)
    assert attnsmith.flash_attn_func(q[:0], k[:0], v[:0]).dtype == torch.bfloat16


@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_fp8_05_gradients_are_refused_before_any_work(which: str) -> None:
    arguments = dict(zip("qkv", make(), strict=True))
    arguments[which].requires_grad_()
    with pytest.raises(NotImplementedError, match=r"forward only.*no_grad"):
        attnsmith.flash_attn_func(**arguments)
    with torch.no_grad():
        assert attnsmith.flash_attn_func(**arguments).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "dtypes", [(E4M3, E5M2, E5M2), (torch.bfloat16, E4M3, E4M3), (E4M3, E4M3, torch.bfloat16)], ids=lambda d: str(d[0])
)
def test_fp8_08_mixed_formats_are_refused(dtypes: tuple[torch.dtype, ...]) -> None:
    q, k, v = (x.float().to(dtype) for x, dtype in zip(make(), dtypes, strict=True))
    with pytest.raises(TypeError, match="one dtype for q, k and v"):
        attnsmith.flash_attn_func(q, k, v)


def test_fp8_08_an_fp8_result_is_refused() -> None:
    q, k, v = make()
    with pytest.raises(TypeError, match=r"out of dtype torch\.float8_e4m3fn.*bfloat16 or torch\.float16"):
        attnsmith.flash_attn_func(q, k, v, out=torch.zeros(2, 9, 4, 48).to(E4M3))


def test_descales_with_16_bit_inputs_say_what_to_do() -> None:
    q, k, v = (x.bfloat16() for x in make())
    with pytest.raises(ValueError, match=r"k_descale with q, k and v of dtype torch\.bfloat16.*quantize_fp8"):
        attnsmith.flash_attn_func(q, k, v, k_descale=torch.ones(2, 2))


@pytest.mark.parametrize("target,refused", [("sm_80", True), ("sm_89", True), ("sm_90", False), ("sm_90a", False)])
def test_simulated_gpus_without_fp8_are_refused(target: str, refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No simulator runs here: what would is replaced."""
    options = SimpleNamespace(target=target, device="a-gpu")
    monkeypatch.setattr(ops.simulation, "run", lambda options, op, *args: op(*args))
    q = make()[0]
    assert ops._simulated(options, lambda x, **_: x, q.half(), pack_gqa=True).dtype == torch.float16
    if not refused:
        assert ops._simulated(options, lambda x, **_: x, q, pack_gqa=True).dtype == E4M3
        return
    with pytest.raises(NotImplementedError, match=r"simulated GPU a-gpu.*SM90 \(H100") as caught:
        ops._simulated(options, lambda x: x, q)
    assert isinstance(caught.value, UnsupportedError)


def test_gpus_without_fp8_are_refused() -> None:
    with pytest.raises(NotImplementedError, match=r"cuda:0 of compute capability 8\.0.*h100"):
        checks.check_has_fp8(E4M3, "cuda:0 of compute capability 8.0", has_fp8=False)
    checks.check_has_fp8(torch.float16, "cuda:0", has_fp8=False)
