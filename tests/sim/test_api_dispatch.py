# SPDX-License-Identifier: Apache-2.0
"""The kernel table at work: misses, JIT off, pinned kernels, AOT libraries, and a choice that history cannot change."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import attnsmith
import pytest
import torch
from attnsmith import dispatch, launcher
from attnsmith.codegen import build
from attnsmith.codegen.compile import library
from attnsmith.codegen.dispatch import entry, spec_for
from attnsmith.codegen.errors import CompileError
from attnsmith.codegen.render import include_dir
from attnsmith.codegen.spec import DType, KernelSpec, Mask
from torch import Tensor

SHORT, LONG = 9, 70


@pytest.fixture(autouse=True)
def empty_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test starts and ends with an empty table, inside the simulated A100."""
    monkeypatch.delenv("ATTNSMITH_JIT", raising=False)
    with attnsmith.simulate("a100"):
        launcher.load().clear_kernels()
        yield
        launcher.load().clear_kernels()


def tensors(seqlen: int, head_dim: int = 64, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(1, seqlen, 2, head_dim, generator=torch.Generator().manual_seed(seqlen)).to(dtype)
    return x, x.flip(1), x.flip(2)


def run(seqlen: int, **options: Any) -> str:
    """Name of the kernel that served a call."""
    attnsmith.flash_attn_func(*tensors(seqlen), **options)
    launch = attnsmith.last_launch()
    assert launch is not None
    return launch.kernel


def wanted(seqlen: int, mask: Mask = Mask.FULL, target: str = "sm_80") -> KernelSpec:
    return spec_for(dtype=DType.BF16, head_dim=64, mask=mask, target=target, seqlen_q=seqlen)


def names() -> list[str]:
    return [row.kernel for row in attnsmith.dispatch_table()]


def test_a_miss_builds_what_explain_says_and_registers_it() -> None:
    assert names() == []
    name = run(LONG)
    assert name == wanted(LONG).name == attnsmith.explain(dtype="bf16", head_dim=64, seqlen_q=LONG)["kernel"]["name"]
    (row,) = attnsmith.dispatch_table()
    assert (row.kernel, row.key, row.tile) == (name, wanted(LONG).key, wanted(LONG).tile)
    assert (row.source, row.target, row.max_seqlen_q) == ("JIT", "sm_80", None)
    assert row.to_dict()["key"]["dtype"] == "bf16"
    assert attnsmith.explain(dtype="bf16", head_dim=64, seqlen_q=LONG)["loaded"] == [name]


@pytest.mark.parametrize("first,second", [(SHORT, LONG), (LONG, SHORT)], ids=["short-first", "long-first"])
def test_the_choice_does_not_depend_on_history(first: int, second: int) -> None:
    found = {first: run(first), second: run(second)}
    assert found == {SHORT: wanted(SHORT).name, LONG: wanted(LONG).name}
    assert found[SHORT] != found[LONG]
    assert run(first) == found[first] and len(names()) == 2


def test_one_causal_row_uses_the_full_kernel() -> None:
    q, k, v = tensors(SHORT)
    out = attnsmith.flash_attn_func(q[:, :1], k, v, causal=True)
    assert "_full_" in attnsmith.last_launch().kernel
    assert torch.equal(out, attnsmith.flash_attn_func(q[:, :1], k, v))


def test_jit_off_names_the_nearest_kernels_and_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    run(LONG)
    monkeypatch.setenv("ATTNSMITH_JIT", "0")
    assert run(LONG) == wanted(LONG).name
    with pytest.raises(RuntimeError, match="ATTNSMITH_JIT=0") as caught:
        run(LONG, causal=True)
    text = str(caught.value)
    assert wanted(LONG).name in text and wanted(LONG, Mask.CAUSAL).name in text
    assert "attnsmith build --aot --arch sm_80 --dtype bf16 --head-dim 64 --mask causal" in text
    assert names() == [wanted(LONG).name]


def test_jit_off_uses_a_kernel_meant_for_shorter_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    short = run(SHORT)
    reference = attnsmith.flash_attn_func(*tensors(LONG))
    launcher.load().clear_kernels()
    attnsmith.register_kernel(build.build_kernel(wanted(SHORT), "sm_80"))
    monkeypatch.setenv("ATTNSMITH_JIT", "0")
    assert run(LONG) == short
    torch.testing.assert_close(attnsmith.flash_attn_func(*tensors(LONG)), reference, rtol=0, atol=0.02)


def test_a_pinned_kernel_serves_every_length() -> None:
    attnsmith.register_kernel(build.build_kernel(wanted(SHORT), "sm_80"), priority=-1)
    assert run(SHORT) == run(LONG) == wanted(SHORT).name
    assert names() == [wanted(SHORT).name]


def test_a_failed_build_raises_and_leaves_the_table_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise CompileError(asked="compile", got="a planted failure", allowed="none", do="Nothing.", log="log")

    with monkeypatch.context() as patch:
        patch.setattr(build, "build_kernel", fail)
        with pytest.raises(CompileError, match="a planted failure") as caught:
            run(LONG)
        assert caught.value.log == "log"
        with pytest.raises(CompileError, match="a planted failure"):
            run(LONG)
    assert names() == []
    assert run(LONG) == wanted(LONG).name


def test_a_failed_build_warns_where_another_kernel_serves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run(LONG)

    def fail(*arguments: Any, **options: Any) -> Any:
        raise CompileError(asked="compile", got="a planted failure", allowed="none", do="Nothing.")

    monkeypatch.setattr(build, "build_kernel", fail)
    assert run(SHORT) == wanted(LONG).name
    assert "a planted failure" in caplog.text


def test_an_interrupt_during_a_build_is_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "build_kernel", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(LONG)


def make_library(folder: Path, specs: list[KernelSpec], target: str) -> Path:
    """An AOT library as compile/extension.py links it, from cached images instead of nvcc's."""
    for spec in specs:
        built = build.build_kernel(spec, target)
        (folder / f"{spec.name}.cubin").write_bytes(built.cubin)
        (folder / f"{spec.name}.ptx").write_text(built.ptx)
    (folder / "table.cpp").write_text(library.table_source([entry(spec, target) for spec in specs]))
    path = folder / "libkernels.so"
    command = ["g++", "-shared", "-fPIC", f"-I{include_dir()}", "table.cpp", "-o", str(path)]
    subprocess.run(command, cwd=folder, check=True)
    return path


def test_aot_kernels_serve_without_any_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_library(tmp_path, [wanted(LONG), wanted(LONG, Mask.CAUSAL)], "sm_80")
    assert attnsmith.load_library(path) == 2
    assert [row.source for row in attnsmith.dispatch_table()] == ["AOT", "AOT"]

    def fail(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("a build was started")

    monkeypatch.setattr(build, "build_kernel", fail)
    assert run(LONG) == wanted(LONG).name
    assert run(SHORT, causal=True) == wanted(LONG, Mask.CAUSAL).name


def test_aot_kernels_of_sm90_keep_what_sizes_their_grid(tmp_path: Path) -> None:
    spec = wanted(LONG, Mask.CAUSAL, "sm_90a")
    attnsmith.load_library(make_library(tmp_path, [spec], "sm_90a"))
    (row,) = attnsmith.dispatch_table()
    assert (row.tile.scheduler, row.tile.cluster_size) == (spec.tile.scheduler, spec.tile.cluster_size)
    assert row.ctas_per_sm == entry(spec, "sm_90a")["ctas_per_sm"]
    with attnsmith.simulate("h100"):
        assert run(LONG, causal=True) == spec.name
    assert len(names()) == 1


def test_a_better_family_is_built_though_a_kernel_of_another_was_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    attnsmith.register_kernel(build.build_kernel(wanted(LONG, target="sm_90"), "sm_90"), source="AOT")
    with attnsmith.simulate("h100"):
        with monkeypatch.context() as patch:
            patch.setenv("ATTNSMITH_JIT", "0")
            assert run(LONG) == wanted(LONG, target="sm_90").name
        assert run(LONG) == wanted(LONG, target="sm_90a").name


def test_a_pinned_kernel_goes_before_one_of_a_better_key() -> None:
    q, k, v = (x[:, :, :1].expand(1, 3, n, 64).contiguous() for x, n in zip(tensors(3), (8, 1, 1), strict=True))
    with attnsmith.simulate("h100"):
        attnsmith.flash_attn_func(q, k, v)
        packed = attnsmith.last_launch().kernel
        plain = wanted(3, target="sm_90a")
        attnsmith.register_kernel(build.build_kernel(plain, "sm_90a"), priority=-1)
        attnsmith.flash_attn_func(q, k, v)
        assert "packgqa" in packed and attnsmith.last_launch().kernel == plain.name


def test_the_environment_names_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNSMITH_LIBRARY", str(make_library(tmp_path, [wanted(LONG)], "sm_80")))
    dispatch.attach(launcher.load())
    assert [(row.kernel, row.source) for row in attnsmith.dispatch_table()] == [(wanted(LONG).name, "AOT")]


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.so"
    path.write_bytes(b"\x7fELF broken")
    with pytest.raises(OSError, match="attnsmith build --aot"):
        attnsmith.load_library(path)
    assert names() == []


def test_a_kernel_without_ptx_cannot_be_simulated() -> None:
    built = replace(build.build_kernel(wanted(LONG), "sm_80"), ptx="")
    attnsmith.register_kernel(built, priority=-1)
    with pytest.raises(RuntimeError, match="without PTX"):
        run(LONG)
