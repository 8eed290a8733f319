# SPDX-License-Identifier: Apache-2.0
"""Failures that people reported of other implementations, where host code alone decides: arguments, shapes, imports.

Each test is named by the report's id (docs/field-reports.md). No kernel runs: CPU tensors outside a simulation get the
reference, whose arguments, shapes and strides are those of the kernels. tests/sim repeats what a kernel can get wrong.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import attnsmith
import pytest
import torch
from attnsmith import reference
from attnsmith.codegen.registry import KERNEL_SETS, kernel_set
from attnsmith.codegen.resources import TARGETS, smem_bytes
from attnsmith.tools.cli import COMMANDS
from torch import Tensor

BF16, FP16 = torch.bfloat16, torch.float16


def normal(*shape: int, dtype: torch.dtype = BF16, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def qkv(seqlen_q: int, seqlen_k: int, *, batch: int = 2, nheads: int = 2, nheads_k: int | None = None,
        head_dim: int = 64, dtype: torch.dtype = BF16) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    heads_k = nheads if nheads_k is None else nheads_k
    q = normal(batch, seqlen_q, nheads, head_dim, dtype=dtype, seed=1)
    k, v = (normal(batch, seqlen_k, heads_k, head_dim, dtype=dtype, seed=seed) for seed in (2, 3))
    return q, k, v


def assert_close(out: Tensor, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> None:
    ref, _ = reference.attention(q, k, v, **options)
    found = reference.compare(out, ref, reference.same_dtype_attention(q, k, v, **options))
    assert found.ok, found


@pytest.mark.parametrize("scale", [0.0, -0.5, -1.0])
def test_num_06_softmax_scale_of_zero_and_below(scale: float) -> None:
    q, k, v = qkv(130, 130)
    out = attnsmith.flash_attn_func(q, k, v, causal=True, softmax_scale=scale)
    assert_close(out, q, k, v, causal=True, softmax_scale=scale)
    assert not torch.equal(out, attnsmith.flash_attn_func(q, k, v, causal=True))


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_num_06_a_scale_that_is_no_number_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="softmax_scale"):
        attnsmith.flash_attn_func(*qkv(4, 4), softmax_scale=scale)


@pytest.mark.parametrize(("seqlen_q", "seqlen_k", "flash", "sdpa"), [(1, 8, [8], [1]), (2, 5, [4, 5], [1, 2])])
def test_mask_03_causal_alignment(seqlen_q: int, seqlen_k: int, flash: list[int], sdpa: list[int]) -> None:
    q, k, _ = qkv(seqlen_q, seqlen_k, batch=1, nheads=1)
    v = torch.eye(seqlen_k, 64, dtype=BF16).reshape(1, seqlen_k, 1, 64)
    out = attnsmith.flash_attn_func(q, k, v, causal=True)
    assert (out != 0).sum(dim=-1).flatten().tolist() == flash
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = attnsmith.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert (out != 0).sum(dim=-1).flatten().tolist() == sdpa
    torch_out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert (torch_out != 0).sum(dim=-1).flatten().tolist() == sdpa


def test_mask_05_four_spellings_of_the_causal_mask() -> None:
    q, k, v = qkv(257, 257, batch=1, head_dim=128, dtype=FP16)
    expected = attnsmith.flash_attn_func(q, k, v, causal=True)
    for window in ((-1, 0), (257, 0), (256, 0)):
        assert torch.equal(attnsmith.flash_attn_func(q, k, v, window_size=window), expected), window


@pytest.mark.parametrize("window", [(-1, -3), (-64, 64), (-64, 0)])
def test_mask_09_negative_windows_are_refused(window: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="window"):
        attnsmith.flash_attn_func(*qkv(8, 8), window_size=window)


def test_mask_09_a_window_that_this_version_cannot_do_is_never_ignored() -> None:
    with pytest.raises(NotImplementedError, match="window"):
        attnsmith.flash_attn_func(*qkv(8, 8), window_size=(2, 0))


def test_shp_01_batch_of_zero_has_gradients_too() -> None:
    q = normal(0, 3952, 10, 64, dtype=FP16).requires_grad_()
    k, v = (normal(0, 16, 10, 64, dtype=FP16).requires_grad_() for _ in range(2))
    out = attnsmith.flash_attn_func(q, k, v)
    assert out.shape == q.shape and out.requires_grad
    out.sum().backward()
    assert [x.grad.shape for x in (q, k, v)] == [x.shape for x in (q, k, v)]


@pytest.mark.parametrize("shape", [(2, 0), (0, 64)], ids=["seqlen-q-0", "batch-0"])
@pytest.mark.parametrize("causal", [False, True])
def test_shp_02_empty_queries(shape: tuple[int, int], causal: bool) -> None:
    batch, seqlen_q = shape
    q = normal(batch, seqlen_q, 16, 128)
    k = normal(batch, 4096, 16, 128)
    out, lse, _ = attnsmith.flash_attn_func(q, k, k, causal=causal, return_attn_probs=True)
    assert out.shape == (batch, seqlen_q, 16, 128)
    assert lse.shape == (batch, 16, seqlen_q) and lse.dtype == torch.float32


@pytest.mark.parametrize("head_dim", [0, 257, 288, 512])
def test_shp_05_unsupported_head_dims(head_dim: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNSMITH_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(ValueError, match=rf"head_dim {head_dim}.*256"):
        attnsmith.flash_attn_func(*qkv(4, 4, head_dim=head_dim))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(("nheads", "nheads_k"), [(3, 2), (33, 2), (2, 4), (4, 0)])
def test_shp_06_query_heads_not_divisible_by_key_heads(nheads: int, nheads_k: int) -> None:
    q, k, v = qkv(4, 4, nheads=nheads, nheads_k=nheads_k)
    calls = {
        "dense": lambda: attnsmith.flash_attn_func(q, k, v),
        "kvpacked": lambda: attnsmith.flash_attn_kvpacked_func(q, torch.stack([k, v], dim=2)),
        "sdpa": lambda: attnsmith.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (q, k, v)), enable_gqa=True
        ),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=rf"\b{nheads}\b.*\b{nheads_k}\b"):
            pytest.fail(f"{name} accepted it: {call()}")


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ((1, 1, 3, 8), (1, 1, 5, 8), (1, 1, 6, 8)),
        ((1, 2, 3, 8), (1, 2, 5, 8), (1, 1, 5, 8)),
        ((1, 1, 3, 8), (1, 1, 5, 16), (1, 1, 5, 8)),
        ((2, 1, 3, 8), (1, 1, 5, 8), (1, 1, 5, 8)),
    ],
    ids=["lengths", "heads", "head-dims", "batches"],
)
def test_shp_08_keys_and_values_that_do_not_fit(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> None:
    tensors = [normal(*shape) for shape in (q, k, v)]
    with pytest.raises(ValueError, match="allowed"):
        attnsmith.scaled_dot_product_attention(*tensors, enable_gqa=True)
    with pytest.raises(ValueError, match="allowed"):
        attnsmith.flash_attn_func(*(x.transpose(1, 2) for x in tensors))


@pytest.mark.parametrize("target", TARGETS)
def test_shp_11_shared_memory_of_every_kernel_fits(target: str) -> None:
    limit = TARGETS[target].smem_per_block
    for name in KERNEL_SETS:
        for spec in kernel_set(name, target):
            assert smem_bytes(spec) <= limit, spec.name


def test_lay_02_strides_are_those_that_the_fake_kernel_announced() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    q, v = normal(2, 51, 16, 64), normal(2, 51, 16, 64, seed=1)
    k = normal(2, 16, 51, 64, seed=2).transpose(1, 2)
    out, lse = attnsmith.flash_attn_func(q, k, v, return_lse=True)
    assert_close(out, q, k, v)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) for x in (q, k, v)]
        fake_out, fake_lse = attnsmith.flash_attn_func(*fakes, return_lse=True)
    for real, fake in ((out, fake_out), (lse, fake_lse)):
        assert (real.shape, real.stride(), real.dtype) == (fake.shape, fake.stride(), fake.dtype)


def test_lay_07_last_dimension_not_contiguous() -> None:
    q, k, v = qkv(9, 9)
    expected = attnsmith.flash_attn_func(q, k, v)
    spread = torch.stack([q, q], dim=-1).flatten(-2)[..., ::2]
    turned = v.transpose(2, 3).contiguous().transpose(2, 3)
    assert spread.stride(-1) == 2 and turned.stride(-1) != 1
    assert torch.equal(attnsmith.flash_attn_func(spread, k, turned), expected)


def test_lay_07_dimensions_of_size_one_may_have_any_stride() -> None:
    q, k, v = qkv(1, 5, batch=1, nheads=1)
    odd = torch.as_strided(q, q.shape, (7, 3, 5, 1))
    assert torch.equal(attnsmith.flash_attn_func(odd, k, v), attnsmith.flash_attn_func(q, k, v))
    one = qkv(5, 5, head_dim=1)
    strided = [torch.as_strided(x, x.shape, (*x.stride()[:3], 9)) for x in one]
    assert torch.equal(attnsmith.flash_attn_func(*strided), attnsmith.flash_attn_func(*one))


@pytest.mark.parametrize("needs_grad", [(), (2,), (0, 1, 2)], ids=["none", "only-v", "all"])
def test_grd_07_grad_free_paths_give_the_same_forward(needs_grad: tuple[int, ...]) -> None:
    tensors = qkv(20, 20, head_dim=59)
    with torch.no_grad():
        expected = attnsmith.flash_attn_func(*tensors)
    with torch.inference_mode():
        assert torch.equal(attnsmith.flash_attn_func(*tensors), expected)
    out = attnsmith.flash_attn_func(*(x.clone().requires_grad_(i in needs_grad) for i, x in enumerate(tensors)))
    assert torch.equal(out.detach(), expected) and out.shape[-1] == 59
    assert out.requires_grad == bool(needs_grad)


def test_grd_07_a_missing_backward_says_so() -> None:
    q, k, v = (x.requires_grad_() for x in qkv(4, 4))
    with pytest.raises(NotImplementedError, match="backward"):
        attnsmith.flash_attn_func(q, k, v).sum().backward()


@pytest.mark.parametrize("dropout_p", [1.0, 1.5, -0.1, float("nan")])
def test_grd_11_dropout_probability_out_of_range(dropout_p: float) -> None:
    with pytest.raises(ValueError, match="dropout_p"):
        attnsmith.flash_attn_func(*qkv(4, 4), dropout_p=dropout_p)


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_int_01_autocast_casts_fp32_to_its_dtype(dtype: torch.dtype) -> None:
    q, k, v = qkv(9, 9, dtype=torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        out = attnsmith.flash_attn_func(q, k, v)
    assert out.dtype == dtype
    assert torch.equal(out, attnsmith.flash_attn_func(*(x.to(dtype) for x in (q, k, v))))


def test_int_01_fp32_outside_autocast_names_what_is_allowed() -> None:
    tensors = qkv(9, 9, dtype=torch.float32)
    with pytest.raises(TypeError, match=r"float32.*float16 or bfloat16"):
        attnsmith.flash_attn_func(*tensors)
    with torch.autocast("cpu", dtype=BF16, enabled=False), pytest.raises(TypeError, match="float32"):
        attnsmith.flash_attn_func(*tensors)


@pytest.mark.parametrize("dynamic", [False, True])
def test_int_03_compile_makes_one_graph(dynamic: bool) -> None:
    q, k, v = qkv(9, 12)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attnsmith.flash_attn_func(q * 2, k, v, causal=True) + 1

    expected = attend(q, k, v)
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    assert torch.equal(compiled(q, k, v), expected)
    torch._dynamo.reset()
    assert torch._dynamo.explain(attend)(q, k, v).graph_break_count == 0


@pytest.mark.parametrize(
    "tensors",
    [
        qkv(9, 12),
        qkv(9, 12, head_dim=33),
        qkv(9, 12, nheads=4, nheads_k=1),
        qkv(9, 12, batch=0),
        tuple(x.transpose(1, 2) for x in qkv(3, 3, nheads=3)),
    ],
    ids=["plain", "odd-head-dim", "gqa", "batch-0", "strided"],
)
def test_int_04_opcheck(tensors: tuple[Tensor, Tensor, Tensor]) -> None:
    torch.library.opcheck(torch.ops.attnsmith.fwd.default, (*tensors, 0.125, True))


def test_int_06_out_is_written_in_place_and_its_neighbours_are_not() -> None:
    q, k, v = qkv(9, 12)
    expected = attnsmith.flash_attn_func(q, k, v)
    wide = torch.full((2, 9, 6, 64), 7.0, dtype=BF16)
    view = wide[:, :, 2:4]
    result = attnsmith.flash_attn_func(q, k, v, out=view)
    assert result.data_ptr() == view.data_ptr() and torch.equal(view, expected)
    assert (wide[:, :, :2] == 7).all() and (wide[:, :, 4:] == 7).all()
    compiled = torch.compile(
        lambda q, k, v, out: attnsmith.flash_attn_func(q, k, v, out=out), backend="aot_eager", fullgraph=True
    )
    buffer = torch.full_like(expected, float("nan"))
    assert torch.equal(compiled(q, k, v, buffer), expected) and torch.equal(buffer, expected)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (torch.empty(2, 9, 2, 32, dtype=BF16), ValueError),
        (torch.empty(2, 9, 2, 64, dtype=FP16), TypeError),
        (torch.empty(2, 9, 2, 64, dtype=BF16, device="meta"), ValueError),
        (torch.empty(1, 9, 2, 64, dtype=BF16).expand(2, -1, -1, -1), ValueError),
    ],
    ids=["shape", "dtype", "device", "overlapping"],
)
def test_int_06_a_wrong_out_is_refused(wrong: Tensor, error: type[Exception]) -> None:
    with pytest.raises(error, match="out"):
        attnsmith.flash_attn_func(*qkv(9, 12), out=wrong)


def test_int_12_inputs_on_different_devices() -> None:
    q, k, v = qkv(4, 4)
    with pytest.raises(ValueError, match=r"cpu.*k on meta.*simulate"):
        attnsmith.flash_attn_func(q, k.to("meta"), v)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"attn_mask": torch.ones(4, 4, dtype=torch.bool), "is_causal": True}, ValueError),
        ({"attn_mask": torch.ones(4, 4, dtype=torch.bool)}, NotImplementedError),
        ({"attn_mask": torch.zeros(2, 1, 4, 4, dtype=BF16)}, NotImplementedError),
        ({"dropout_p": 0.1}, NotImplementedError),
    ],
    ids=["both", "bool-mask", "float-mask", "dropout"],
)
def test_hf_10_what_cannot_be_done_is_refused(changes: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        attnsmith.scaled_dot_product_attention(*qkv(2, 2), **changes)


def test_hf_10_scale_is_honoured() -> None:
    q, k, v = (x.transpose(1, 2) for x in qkv(9, 9))
    scaled = attnsmith.scaled_dot_product_attention(q, k, v, scale=0.3)
    assert not torch.equal(scaled, attnsmith.scaled_dot_product_attention(q, k, v))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    assert_close(scaled.transpose(1, 2), q, k, v, softmax_scale=0.3)


def test_hf_12_grouped_heads_in_sdpa_layout() -> None:
    q, k, v = (x.transpose(1, 2) for x in qkv(5, 5, nheads=32, nheads_k=8))
    with pytest.raises(ValueError, match="enable_gqa"):
        attnsmith.scaled_dot_product_attention(q, k, v)
    out = attnsmith.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert_close(out.transpose(1, 2), *(x.transpose(1, 2) for x in (q, k, v)))
    with pytest.raises(ValueError, match="k with nheads 8, v with nheads 4"):
        attnsmith.scaled_dot_product_attention(q, k, v[:, :4], enable_gqa=True)


@pytest.mark.parametrize("shape", [(2, 5, 64), (2, 2, 2, 5, 64)], ids=["3-D", "5-D"])
def test_hf_13_other_numbers_of_dimensions(shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    with pytest.raises(ValueError, match="4-D"):
        attnsmith.scaled_dot_product_attention(x, x, x)
    with pytest.raises(ValueError, match="4-D"):
        attnsmith.flash_attn_func(x, x, x)


def test_hf_07_arity_of_the_results() -> None:
    q, k, v = qkv(4, 4)
    assert isinstance(attnsmith.flash_attn_func(q, k, v), Tensor)
    out, lse, probabilities = attnsmith.flash_attn_func(q, k, v, return_attn_probs=True)
    assert (out.shape, lse.shape, probabilities.numel()) == ((2, 4, 2, 64), (2, 2, 4), 0)
    packed = torch.stack([q, k, v], dim=2)
    assert len(attnsmith.flash_attn_qkvpacked_func(packed, return_attn_probs=True)) == 3
    assert len(attnsmith.flash_attn_kvpacked_func(q, packed[:, :, 1:], return_attn_probs=True)) == 3


def test_bld_28_no_import_touches_cuda() -> None:
    script = (
        "import importlib, pkgutil, attnsmith, torch\n"
        "roots = ['attnsmith'] + [f'attnsmith.{n}' for n in ('codegen', 'integrations', 'templates', 'tools')]\n"
        "seen = 0\n"
        "for root in roots:\n"
        "    package = importlib.import_module(root)\n"
        "    for info in pkgutil.walk_packages(package.__path__, root + '.'):\n"
        "        if not info.name.endswith('__main__'):\n"
        "            importlib.import_module(info.name)\n"
        "            seen += 1\n"
        "assert seen > 20, seen\n"
        "assert not torch.cuda.is_initialized()\n"
    )
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("target", TARGETS)
def test_bld_23_names_are_short_and_unique(target: str) -> None:
    specs = [spec for name in KERNEL_SETS for spec in kernel_set(name, target)]
    names = {spec.name for spec in specs}
    assert len(names) == len(set(specs))
    assert max(len(name) for name in names) <= 128


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_cli_01_help_needs_no_gpu_and_no_compiler(command: str) -> None:
    scrubbed = {"PATH": "/nonexistent", "HOME": os.environ.get("HOME", "/"), "CUDA_VISIBLE_DEVICES": ""}
    arguments = [sys.executable, "-m", "attnsmith.tools.cli", command, "--help"]
    done = subprocess.run(arguments, env=scrubbed, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout
