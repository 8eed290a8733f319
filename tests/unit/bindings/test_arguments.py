# SPDX-License-Identifier: Apache-2.0
"""Every argument error of the public functions: the type that users expect, and a message that names the value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attnsmith
import numpy as np
import pytest
import torch
from attnsmith.codegen.errors import AttnsmithError
from torch import Tensor

HALF = torch.float16
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
DESCALES = ("q_descale", "k_descale", "v_descale")


def qkv(**changes: Any) -> dict[str, Any]:
    """Legal arguments with some replaced."""
    arguments: dict[str, Any] = {
        "q": torch.randn(2, 5, 4, 32).to(HALF),
        "k": torch.randn(2, 7, 2, 32).to(HALF),
        "v": torch.randn(2, 7, 2, 32).to(HALF),
    }
    return {**arguments, **changes}


def zeros(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    return torch.zeros(*shape, dtype=dtype)


def fp8() -> dict[str, Any]:
    """Legal FP8 arguments."""
    return {name: x.to(E4M3) for name, x in qkv().items()}


REFUSED: list[Any] = [
    # dtype and type
    pytest.param({"q": zeros(2, 5, 4, 32, dtype=torch.float32)}, TypeError, "q of dtype torch.float32", id="q-fp32"),
    pytest.param({"q": zeros(2, 5, 4, 32, dtype=torch.float64)}, TypeError, "dtype torch.float64", id="q-fp64"),
    pytest.param({"q": zeros(2, 5, 4, 32, dtype=torch.int8)}, TypeError, "dtype torch.int8", id="q-int8"),
    pytest.param({"k": zeros(2, 7, 2, 32, dtype=torch.bfloat16)}, TypeError, "k of dtype torch.bf", id="k-mixed"),
    pytest.param({"v": zeros(2, 7, 2, 32, dtype=torch.bfloat16)}, TypeError, "v of dtype torch.bf", id="v-mixed"),
    pytest.param({"q": [1.0]}, TypeError, "q of type list", id="q-list"),
    pytest.param({"v": None}, TypeError, "v of type NoneType", id="v-none"),
    pytest.param({"q": zeros(2, 5, 4, 32).to_sparse()}, ValueError, "layout", id="q-sparse"),
    pytest.param({"q": zeros(2, 5, 4, 32, dtype=E4M3)}, TypeError, "q of dtype torch.float8", id="q-alone-fp8"),
    pytest.param({**fp8(), "v": zeros(2, 7, 2, 32, dtype=E5M2)}, TypeError, "v of dtype torch.float8_e5", id="v-e5m2"),
    pytest.param({"q": zeros(2, 5, 4, 32, dtype=torch.float8_e4m3fnuz)}, TypeError, "float8_e4m3fnuz", id="q-fnuz"),
    # devices
    pytest.param({"k": torch.empty(2, 7, 2, 32, dtype=HALF, device="meta")}, ValueError, "k on meta", id="k-meta"),
    pytest.param({"v": torch.empty(2, 7, 2, 32, dtype=HALF, device="meta")}, ValueError, "v on meta", id="v-meta"),
    # shapes
    pytest.param({"q": zeros(5, 4, 32)}, ValueError, "q with 3 dims", id="q-3d"),
    pytest.param({"k": zeros(2, 7, 2, 32, 1)}, ValueError, "k with 5 dims", id="k-5d"),
    pytest.param({"k": zeros(3, 7, 2, 32)}, ValueError, "k with 3", id="k-batch"),
    pytest.param({"v": zeros(1, 7, 2, 32)}, ValueError, "v with 1", id="v-batch"),
    pytest.param({"v": zeros(2, 6, 2, 32)}, ValueError, "k with seqlen 7, v with seqlen 6", id="seqlen-k-v"),
    pytest.param({"v": zeros(2, 7, 1, 32)}, ValueError, "k with nheads 2, v with nheads 1", id="nheads-k-v"),
    pytest.param({"k": zeros(2, 7, 2, 64)}, ValueError, "k with head_dim 64", id="head-dim-q-k"),
    pytest.param({"q": zeros(2, 5, 3, 32)}, ValueError, "3 query heads .* 2 key heads", id="heads-3-2"),
    pytest.param({"q": zeros(2, 5, 33, 32)}, ValueError, "33 query heads .* 2 key heads", id="heads-33-2"),
    pytest.param({"q": zeros(2, 5, 1, 32)}, ValueError, "1 query heads .* 2 key heads", id="heads-1-2"),
    pytest.param(
        {"k": zeros(2, 7, 0, 32), "v": zeros(2, 7, 0, 32)}, ValueError, "4 query heads .* 0 key heads", id="heads-4-0"
    ),
    *(
        pytest.param(
            {"q": zeros(2, 5, 4, d), "k": zeros(2, 7, 2, d), "v": zeros(2, 7, 2, d)},
            ValueError, f"head_dim {d}", id=f"head-dim-{d}",
        )
        for d in (0, 257, 288, 512)
    ),
    pytest.param({"v": zeros(2, 7, 2, 320)}, ValueError, "v with head_dim 320", id="head-dim-v-320"),
    pytest.param({"v": zeros(2, 7, 2, 0)}, ValueError, "v with head_dim 0", id="head-dim-v-0"),
    # numbers
    pytest.param({"dropout_p": 1.0}, ValueError, "dropout_p 1.0", id="dropout-1"),
    pytest.param({"dropout_p": 1.5}, ValueError, "dropout_p 1.5", id="dropout-1.5"),
    pytest.param({"dropout_p": -0.1}, ValueError, "dropout_p -0.1", id="dropout-negative"),
    pytest.param({"dropout_p": math.nan}, ValueError, "dropout_p nan", id="dropout-nan"),
    pytest.param({"dropout_p": "0"}, TypeError, "dropout_p of type str", id="dropout-str"),
    pytest.param({"dropout_p": 0.1}, NotImplementedError, "dropout_p 0.1", id="dropout-0.1"),
    pytest.param({"softmax_scale": math.inf}, ValueError, "softmax_scale inf", id="scale-inf"),
    pytest.param({"softmax_scale": math.nan}, ValueError, "softmax_scale nan", id="scale-nan"),
    pytest.param({"softmax_scale": True}, TypeError, "softmax_scale of type bool", id="scale-bool"),
    pytest.param({"softmax_scale": torch.tensor(1.0)}, TypeError, "softmax_scale of type Tensor", id="scale-tensor"),
    pytest.param({"causal": "False"}, TypeError, "causal 'False' of type str", id="causal-str"),
    pytest.param({"causal": 2}, TypeError, "causal 2 of type int", id="causal-2"),
    pytest.param({"causal": None}, TypeError, "causal None", id="causal-none"),
    pytest.param({"causal": torch.tensor(True)}, TypeError, "of type Tensor", id="causal-tensor"),
    pytest.param({"softcap": -1.0}, ValueError, "softcap -1.0", id="softcap-negative"),
    pytest.param({"softcap": math.nan}, ValueError, "softcap nan", id="softcap-nan"),
    pytest.param({"softcap": None}, TypeError, "softcap of type NoneType", id="softcap-none"),
    pytest.param({"softcap": 30.0}, NotImplementedError, "softcap 30.0", id="softcap-30"),
    # windows
    pytest.param({"window_size": (-1, -3)}, ValueError, r"window_size \(-1, -3\)", id="window--1--3"),
    pytest.param({"window_size": (-64, 64)}, ValueError, "window", id="window--64-64"),
    pytest.param({"window_size": (-64, 0)}, ValueError, "window", id="window--64-0"),
    pytest.param({"window_size": 3}, TypeError, "window_size 3", id="window-int"),
    pytest.param({"window_size": (1, 2, 3)}, TypeError, "window_size", id="window-triple"),
    pytest.param({"window_size": (1.5, 0)}, TypeError, "window_size", id="window-float"),
    pytest.param({"window_size": (True, 0)}, TypeError, "window_size", id="window-bool"),
    pytest.param({"window_size": (3, 0)}, NotImplementedError, r"window_size \(3, 0\)", id="window-3-0"),
    pytest.param({"window_size": (-1, 2)}, NotImplementedError, "window", id="window--1-2"),
    pytest.param({"window_size": (5, -1)}, NotImplementedError, "window", id="window-5--1"),
    # features of later versions
    *(
        pytest.param({name: torch.ones(2, 2)}, NotImplementedError, name, id=name)
        for name in ("alibi_slopes", "learnable_sink", "seqused_q", "seqused_k")
    ),
    pytest.param({"num_splits": 4}, NotImplementedError, "num_splits 4", id="num-splits"),
    *(pytest.param({"pack_gqa": value}, TypeError, "pack_gqa", id=f"pack-gqa-{value!r}") for value in (1, "yes")),
    # FP8
    *(
        pytest.param({name: torch.ones(2, 2)}, ValueError, f"{name} with q, k and v of dtype torch.f", id=name)
        for name in DESCALES
    ),
    *(
        pytest.param({**fp8(), name: torch.ones(2, 4)}, ValueError, rf"{name} of shape \(2, 4\)", id=f"{name}-shape")
        for name in DESCALES
    ),
    pytest.param({**fp8(), "q_descale": torch.ones(2)}, ValueError, "q_descale of shape", id="descale-1d"),
    pytest.param({**fp8(), "v_descale": zeros(2, 2)}, TypeError, "v_descale of dtype torch.f", id="descale-fp16"),
    pytest.param({**fp8(), "k_descale": 1.0}, TypeError, "k_descale of type float", id="descale-float"),
    pytest.param({**fp8(), "k_descale": torch.ones(2, 2, device="meta")}, ValueError, "on meta", id="descale-device"),
    pytest.param({**fp8(), "out": zeros(2, 5, 4, 32, dtype=E4M3)}, TypeError, "out of dtype torch.fl", id="out-fp8"),
    pytest.param({**fp8(), "out": zeros(2, 5, 4, 32, dtype=torch.float32)}, TypeError, "bfloat16 or", id="fp8-out"),
    pytest.param(
        {**fp8(), "q_descale": torch.ones(2, 2, requires_grad=True)}, NotImplementedError, "forward only", id="fp8-grad"
    ),
    # out
    pytest.param({"out": zeros(2, 5, 4, 16)}, ValueError, r"out of shape \(2, 5, 4, 16\)", id="out-shape"),
    pytest.param({"out": zeros(2, 5, 4, 32, dtype=torch.float32)}, TypeError, "out of dtype torch.f", id="out-dtype"),
    pytest.param({"out": torch.empty(2, 5, 4, 32, dtype=HALF, device="meta")}, ValueError, "out on", id="out-device"),
    pytest.param({"out": zeros(2, 1, 4, 32).expand(2, 5, 4, 32)}, ValueError, "strides", id="out-expanded"),
    pytest.param({"out": 3}, TypeError, "out of type int", id="out-int"),
]  # fmt: skip


@pytest.mark.parametrize("changes,error,message", REFUSED)
def test_refused(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        attnsmith.flash_attn_func(**qkv(**changes))
    assert isinstance(caught.value, AttnsmithError)
    for part in ("asked", "got", "allowed", "do"):
        assert getattr(caught.value, part)


def test_out_under_autograd_is_refused() -> None:
    arguments = qkv(out=zeros(2, 5, 4, 32))
    arguments["k"].requires_grad_()
    with pytest.raises(ValueError, match="autograd"):
        attnsmith.flash_attn_func(**arguments)
    with torch.no_grad():
        attnsmith.flash_attn_func(**arguments)


@pytest.mark.parametrize(
    "call,message",
    [
        pytest.param(lambda: attnsmith.flash_attn_qkvpacked_func(zeros(2, 5, 2, 4, 32)), "qkv of shape", id="qkv-2"),
        pytest.param(lambda: attnsmith.flash_attn_qkvpacked_func(zeros(2, 5, 4, 32)), "qkv of shape", id="qkv-4d"),
        pytest.param(
            lambda: attnsmith.flash_attn_kvpacked_func(zeros(2, 5, 4, 32), zeros(2, 5, 3, 4, 32)), "kv of shape",
            id="kv-3",
        ),
    ],
)  # fmt: skip
def test_packed_shapes(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("entry", ["kvpacked", "qkvpacked"])
def test_packed_functions_check_the_same(entry: str) -> None:
    with pytest.raises(NotImplementedError, match="softcap"):
        if entry == "kvpacked":
            attnsmith.flash_attn_kvpacked_func(zeros(2, 5, 4, 32), zeros(2, 5, 2, 2, 32), softcap=1.0)
        else:
            attnsmith.flash_attn_qkvpacked_func(zeros(2, 5, 3, 4, 32), softcap=1.0)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"softmax_scale": np.float32(0.5)}, id="numpy-scale"),
        pytest.param({"softmax_scale": 1}, id="int-scale"),
        pytest.param({"window_size": [-1, -1]}, id="list-window"),
        pytest.param({"window_size": (None, None)}, id="none-window"),
        pytest.param({"window_size": (np.int64(7), np.int32(-1))}, id="numpy-window"),
        pytest.param({"deterministic": True}, id="deterministic"),
        pytest.param({"num_splits": 1}, id="one-split"),
        pytest.param({"pack_gqa": False}, id="no-packing"),
        pytest.param({"pack_gqa": True}, id="packing"),
        pytest.param(fp8(), id="fp8"),
        pytest.param({**fp8(), "v_descale": torch.ones(1, 1).expand(2, 2)}, id="fp8-expanded-descale"),
        pytest.param({"dropout_p": 0}, id="int-dropout"),
    ],
)
def test_accepted(changes: dict[str, Any]) -> None:
    assert attnsmith.flash_attn_func(**qkv(**changes)).shape == (2, 5, 4, 32)


@pytest.mark.parametrize(
    "causal,window,is_causal",
    [
        (False, (-1, -1), False),
        (True, (-1, -1), True),
        (False, (-1, 0), True),
        (True, (-1, 5), True),
        (False, (7, 0), True),
        (False, (6, 0), True),
        (True, (6, -1), True),
        (False, (6, 4), False),
        (False, (100, 100), False),
        (False, (-1, 4), False),
    ],
)
def test_windows_that_change_nothing(causal: bool, window: tuple[int, int], is_causal: bool) -> None:
    """seqlen_q 5, seqlen_k 7: 6 keys to the left and 4 to the right reach everything."""
    arguments = qkv()
    torch.testing.assert_close(
        attnsmith.flash_attn_func(**arguments, causal=causal, window_size=window),
        attnsmith.flash_attn_func(**arguments, causal=is_causal),
        rtol=0,
        atol=0,
    )
