# SPDX-License-Identifier: Apache-2.0
"""The public functions on a simulated GPU: real kernels against the reference, any layout, launches, torch.compile."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import attnsmith
import pytest
import torch
from attnsmith import reference
from attnsmith.tools import ptxsim
from torch import Tensor


@pytest.fixture(autouse=True)
def a100() -> Iterator[None]:
    with attnsmith.simulate("a100"):
        yield


def make(
    b: int, sq: int, sk: int, h: int, hk: int, d: int, dv: int | None = None, dtype: torch.dtype = torch.bfloat16
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(b + 10 * sq + 100 * sk + d)
    shapes = ((b, sq, h, d), (b, sk, hk, d), (b, sk, hk, d if dv is None else dv))
    return tuple(torch.randn(*shape, generator=generator).to(dtype) for shape in shapes)  # type: ignore[return-value]


def assert_close_to_reference(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, **options: Any) -> None:
    ref_out, ref_lse = reference.attention(q, k, v, **options)
    found = reference.compare(out, ref_out, reference.same_dtype_attention(q, k, v, **options))
    assert found.ok, found
    found = reference.compare_lse(lse, ref_lse)
    assert found.ok, found


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param((2, 113, 203, 4, 2, 64), id="gqa"),
        pytest.param((1, 203, 113, 2, 1, 64), id="more-queries"),
        pytest.param((2, 1, 257, 3, 1, 64), id="decode"),
        pytest.param((1, 5, 0, 2, 2, 64), id="no-keys"),
        pytest.param((2, 9, 70, 2, 1, 40), id="d40-no-copy"),
        pytest.param((1, 9, 33, 2, 2, 33), id="d33-copy"),
        pytest.param((1, 9, 33, 2, 2, 64, 20), id="d64-dv20"),
        pytest.param((1, 9, 33, 2, 2, 5, 64), id="d5-dv64"),
    ],
)
def test_equals_reference_on_poisoned_memory(shape: tuple[int, ...], causal: bool) -> None:
    q, k, v = make(*shape)
    out = torch.full((*q.shape[:3], v.shape[3]), float("nan"), dtype=q.dtype)
    got, lse = attnsmith.flash_attn_func(q, k, v, causal=causal, out=out, return_lse=True)
    assert got is out
    assert_close_to_reference(q, k, v, out, lse, causal=causal)
    allocated, lse_again = attnsmith.flash_attn_func(q, k, v, causal=causal, return_lse=True)
    assert torch.equal(allocated, out) and torch.equal(lse_again, lse)


@pytest.mark.parametrize("scale", [0.0, -0.5, 1.0])
def test_scale_of_any_sign(scale: float) -> None:
    q, k, v = make(1, 9, 70, 2, 2, 64)
    out, lse = attnsmith.flash_attn_func(q, k, v, softmax_scale=scale, causal=True, return_lse=True)
    assert_close_to_reference(q, k, v, out, lse, softmax_scale=scale, causal=True)


LAYOUTS = {
    "bhsd": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "last-dim-strided": lambda x: torch.stack([x, x], dim=-1)[..., 0],
    "offset": lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape),
    "odd-row-stride": lambda x: torch.nn.functional.pad(x, (0, 3))[..., : x.shape[-1]],
    "fused": lambda x: torch.stack([x, x, x], dim=2)[:, :, 1],
    "padded-rows": lambda x: torch.nn.functional.pad(x, (0, 8))[..., : x.shape[-1]],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_is_bitwise_equal_to_contiguous(layout: str) -> None:
    tensors = dict(zip("qkv", make(2, 70, 70, 2, 2, 64), strict=True))
    wanted = attnsmith.flash_attn_func(**tensors, causal=True)
    for names in ("q", "k", "v", "qkv"):
        changed = {name: LAYOUTS[layout](x) if name in names else x for name, x in tensors.items()}
        assert torch.equal(attnsmith.flash_attn_func(**changed, causal=True), wanted), names


def copies(*tensors: Tensor, **options: Any) -> int:
    """How many tensors a call copies."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        attnsmith.flash_attn_func(*tensors, **options)
    return sum(event.name == "aten::copy_" for event in profile.events())


def test_only_what_a_kernel_cannot_read_is_copied() -> None:
    q, k, v = make(2, 9, 33, 2, 2, 64)
    assert copies(q, k, v) == 0
    assert copies(*make(2, 9, 33, 2, 2, 40)) == 0
    assert copies(*make(2, 9, 33, 2, 2, 64, 40)) == 0
    assert copies(*(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))) == 0
    assert copies(*(torch.stack([x, x], dim=2)[:, :, 1] for x in (q, k, v))) == 0
    assert copies(q, k, v, out=torch.empty(2, 9, 4, 64).bfloat16()[:, :, :2]) == 0
    assert copies(*make(2, 9, 33, 2, 2, 33)) == 3
    assert copies(LAYOUTS["last-dim-strided"](q), k, LAYOUTS["offset"](v)) == 2
    assert copies(q, k, v, out=torch.empty(2, 9, 2, 65).bfloat16()[..., 1:]) == 1


def test_strides_of_size_1_dims_are_no_reason_to_copy() -> None:
    q, k, v = make(1, 9, 9, 1, 1, 64)
    odd = [x.as_strided(x.shape, (3, 64, 5, 1)) for x in (q, k, v)]
    wanted = attnsmith.flash_attn_func(q, k, v)
    assert copies(*odd) == 0
    assert torch.equal(attnsmith.flash_attn_func(*odd), wanted)


def test_qkvpacked_reads_interleaved_memory() -> None:
    qkv = torch.randn(2, 70, 3, 2, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    q, k, v = (x.contiguous() for x in qkv.unbind(2))
    wanted = attnsmith.flash_attn_func(q, k, v, causal=True)
    assert torch.equal(attnsmith.flash_attn_qkvpacked_func(qkv, causal=True), wanted)


def test_out_slice_leaves_its_neighbours_alone() -> None:
    q, k, v = make(2, 9, 33, 2, 2, 64)
    wanted = attnsmith.flash_attn_func(q, k, v)
    for view in (lambda x: x[:, 1:10, 1:3, 8:72], lambda x: x[:, :9, :2, 1:65], lambda x: x[:, :9, :2, ::2][..., :64]):
        buffer = torch.full((2, 12, 4, 136), 7.0).bfloat16()
        out = view(buffer)
        assert attnsmith.flash_attn_func(q, k, v, out=out) is out and torch.equal(out, wanted)
        out.fill_(7.0)
        assert (buffer == 7.0).all()


def test_sdpa_shape_on_the_simulator() -> None:
    q, k, v = (x.transpose(1, 2) for x in make(1, 70, 9, 2, 2, 64))
    out = attnsmith.scaled_dot_product_attention(q, k, v, is_causal=True)
    mask = torch.ones(70, 9, dtype=torch.bool).tril()
    ref = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), attn_mask=mask)
    torch.testing.assert_close(out.double(), ref, rtol=0, atol=0.02)


# Launches and settings


def test_launches_are_recorded_in_order() -> None:
    q, k, v = make(2, 9, 33, 2, 2, 64)
    with attnsmith.record_launches() as launches:
        attnsmith.flash_attn_func(q, k, v)
        attnsmith.flash_attn_func(q, k, v, causal=True)
    assert [("causal" in launch.kernel, launch.device) for launch in launches] == [
        (False, "sim:a100"), (True, "sim:a100"),
    ]  # fmt: skip
    assert all(launch.grid == 4 and launch.stats["ctas"] == 4 for launch in launches)
    minimum = 2 * (q.numel() + k.numel() + v.numel())
    assert minimum <= launches[0].stats["global_bytes_read"] <= 1.05 * minimum
    assert attnsmith.last_launch() == launches[-1]


def test_nothing_is_launched_for_empty_inputs() -> None:
    q, k, v = make(2, 9, 33, 2, 2, 64)
    attnsmith.flash_attn_func(q, k, v)
    for shape in ((0, 9, 33, 2, 2, 64), (2, 0, 33, 2, 2, 64), (2, 9, 33, 0, 0, 64)):
        with attnsmith.record_launches() as launches:
            out = attnsmith.flash_attn_func(*make(*shape))
        assert not launches and attnsmith.last_launch() is None and out.numel() == 0


def test_leaving_the_simulation_means_the_reference() -> None:
    q, k, v = make(1, 9, 33, 2, 2, 64)
    attnsmith.flash_attn_func(q, k, v)
    from attnsmith import simulation

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "_active", [])
        patch.delenv(simulation.ENVIRONMENT_VARIABLE, raising=False)
        attnsmith.flash_attn_func(q, k, v)
        assert attnsmith.last_launch() is None


def test_innermost_simulation_wins() -> None:
    q, k, v = make(1, 9, 33, 2, 2, 64)
    with attnsmith.simulate("sim:a100", schedule="random"), attnsmith.record_launches() as launches:
        attnsmith.flash_attn_func(q, k, v)
    assert launches[0].device == "sim:a100"


def test_other_threads_are_simulated_too() -> None:
    q, k, v = make(1, 9, 33, 2, 2, 64)
    wanted = attnsmith.flash_attn_func(q, k, v)
    found: list[Any] = []

    def work() -> None:
        found.append(attnsmith.flash_attn_func(q, k, v))
        found.append(attnsmith.last_launch())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert torch.equal(found[0], wanted) and found[1].device == "sim:a100"


def test_environment_variable_simulates() -> None:
    code = (
        "import torch, attnsmith\n"
        "x = torch.randn(1, 9, 2, 64).bfloat16()\n"
        "attnsmith.flash_attn_func(x, x, x)\n"
        "assert attnsmith.last_launch().device == 'sim:a100'\n"
    )
    import os

    environment = {**os.environ, "ATTNSMITH_SIMULATE": "a100"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=300)


@pytest.mark.parametrize("schedule", ["round_robin", "random"])
@pytest.mark.parametrize("async_mode", ["late", "random"])
def test_schedules_do_not_change_a_bit(schedule: str, async_mode: str) -> None:
    q, k, v = make(1, 113, 203, 2, 1, 64)
    wanted = attnsmith.flash_attn_func(q, k, v, causal=True, return_lse=True)
    for seed in range(3):
        with attnsmith.simulate("a100", seed=seed, schedule=schedule, async_mode=async_mode):
            got = attnsmith.flash_attn_func(q, k, v, causal=True, return_lse=True)
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_simulator_errors_keep_their_type() -> None:
    q, k, v = make(1, 9, 33, 2, 2, 64)
    with attnsmith.simulate("a100", step_budget=10), pytest.raises(ptxsim.StepBudgetExceeded):
        attnsmith.flash_attn_func(q, k, v)
    assert attnsmith.last_launch() is None
    assert torch.isfinite(attnsmith.flash_attn_func(q, k, v)).all()


@pytest.mark.parametrize("device", ["h100", "rtx4090"])
def test_other_gpus_run_kernels_of_their_own_target(device: str) -> None:
    from attnsmith.simulation import DEVICE_TARGETS

    q, k, v = make(1, 9, 33, 2, 2, 64)
    with attnsmith.simulate(device), attnsmith.record_launches() as launches:
        out, lse = attnsmith.flash_attn_func(q, k, v, return_lse=True)
    assert_close_to_reference(q, k, v, out, lse)
    assert launches[0].device == f"sim:{device}"
    rows = [row for row in attnsmith.dispatch_table() if row.kernel == launches[0].kernel]
    assert DEVICE_TARGETS[device] in [row.target for row in rows]


# PyTorch


@pytest.mark.parametrize(
    "shapes,message",
    [
        (((1, 5, 2, 64), (1, 5, 2, 64), (1, 6, 2, 64)), "one seqlen"),
        (((1, 5, 2, 64), (1, 5, 2, 32), (1, 5, 2, 64)), "one head_dim"),
        (((1, 5, 3, 64), (1, 5, 2, 64), (1, 5, 2, 64)), "multiple of nheads_k"),
        (((1, 5, 2, 64), (1, 5, 0, 64), (1, 5, 0, 64)), "multiple of nheads_k"),
        (((1, 5, 2, 264), (1, 5, 2, 264), (1, 5, 2, 264)), "head dims from 1 to 256"),
        (((5, 2, 64), (5, 2, 64), (5, 2, 64)), "4-D"),
        (((2, 5, 2, 64), (1, 5, 2, 64), (1, 5, 2, 64)), "one batch size"),
    ],
)
def test_the_op_itself_refuses_what_the_interface_would(shapes: Any, message: str) -> None:
    tensors = [torch.zeros(*shape).bfloat16() for shape in shapes]
    with pytest.raises(RuntimeError, match=message):
        torch.ops.attnsmith.fwd(*tensors, 1.0, False)


def test_the_op_itself_refuses_other_dtypes() -> None:
    x = torch.zeros(1, 5, 2, 64)
    with pytest.raises(RuntimeError, match="float16, bfloat16"):
        torch.ops.attnsmith.fwd(x, x, x, 1.0, False)
    with pytest.raises(RuntimeError, match="one dtype"):
        torch.ops.attnsmith.fwd(x.half(), x.half(), x.bfloat16(), 1.0, False)


def test_opcheck_in_the_simulator() -> None:
    for shape in ((1, 9, 33, 2, 2, 64, 64), (1, 9, 33, 2, 2, 33, 20)):
        q, k, v = make(*shape)
        torch.library.opcheck(torch.ops.attnsmith.fwd.default, (q, k, v, 0.3, False))
        out = torch.zeros(*q.shape[:3], v.shape[3], 2).bfloat16()[..., 0]
        torch.library.opcheck(torch.ops.attnsmith.fwd_out.default, (q, k, v, 0.3, False, out))


@pytest.mark.parametrize("dynamic", [False, True])
def test_one_graph_under_compile(dynamic: bool) -> None:
    torch._dynamo.reset()

    def call(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return attnsmith.flash_attn_func(q * 1.0, k, v, causal=True, return_lse=True)

    compiled = torch.compile(call, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for seqlen in (9, 12):
        q, k, v = make(1, seqlen, 33, 2, 2, 64)
        for a, b in zip(compiled(q, k, v), call(q, k, v), strict=True):
            assert torch.equal(a, b)
    assert attnsmith.last_launch() is not None


def test_autocast() -> None:
    q, k, v = make(1, 9, 33, 2, 2, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attnsmith.flash_attn_func(q.float(), k.float(), v.float())
    assert torch.equal(out, attnsmith.flash_attn_func(q, k, v))


def test_tiny_encoder_through_transformers() -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra `demo`")
    from attnsmith.integrations.transformers import register

    name = register()
    config = transformers.BertConfig(
        vocab_size=100, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    torch.manual_seed(0)
    ours = transformers.BertModel._from_config(config, attn_implementation=name, dtype=torch.bfloat16).eval()
    ids = torch.randint(1, 99, (2, 9))
    with torch.no_grad(), attnsmith.record_launches() as launches:
        got = ours(ids).last_hidden_state
    ours.set_attn_implementation("eager")
    with torch.no_grad():
        wanted = ours(ids).last_hidden_state
    assert len(launches) == 2 and "hdim64_full" in launches[0].kernel
    torch.testing.assert_close(got, wanted, rtol=0, atol=0.03)
