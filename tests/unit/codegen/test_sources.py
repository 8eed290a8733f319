# SPDX-License-Identifier: Apache-2.0
"""Generated folders: whole files only, checked against a fresh render, and nothing of the user's removed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from attnsmith.codegen import render as render_module
from attnsmith.codegen import sources
from attnsmith.codegen.errors import AttnsmithError
from attnsmith.codegen.registry import Selection, kernel_set
from attnsmith.codegen.render import render, write_atomic, write_sources
from attnsmith.codegen.sources import compare_folder, default_output_dir, write_folder

SPECS = kernel_set("minimal", "sm_80")


def test_writes_kernels_manifest_and_header(tmp_path):
    written = write_folder(SPECS, "sm_80", tmp_path / "out")
    assert [path.stem for path in written.kernels] == [spec.name for spec in SPECS]
    assert all(path.read_text() == render(spec) for path, spec in zip(written.kernels, SPECS, strict=True))
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *(f"{spec.name}.cu" for spec in SPECS),
        "manifest.json",
        "dispatch_table.inc",
    }
    assert len(json.loads((tmp_path / "out" / "manifest.json").read_text())["kernels"]) == len(SPECS)
    assert compare_folder(SPECS, "sm_80", tmp_path / "out") == {}


def test_write_sources_returns_paths_in_order(tmp_path):
    assert write_sources(SPECS, tmp_path) == [tmp_path / f"{spec.name}.cu" for spec in SPECS]


def test_a_file_that_is_right_is_not_touched(tmp_path):
    first = write_folder(SPECS, "sm_80", tmp_path).kernels[0]
    os.utime(first, (1, 1))
    write_folder(SPECS, "sm_80", tmp_path)
    assert first.stat().st_mtime == 1


def test_differences_are_named(tmp_path):
    kernels = write_folder(SPECS, "sm_80", tmp_path).kernels
    kernels[0].unlink()
    kernels[1].write_bytes(b"\xff\xfe not text")
    assert compare_folder(SPECS, "sm_80", tmp_path) == {kernels[0].name: "missing", kernels[1].name: "differs"}
    assert compare_folder(SPECS[:-1], "sm_80", tmp_path)[kernels[-1].name] == "stale"
    assert compare_folder(SPECS, "sm_86", tmp_path)["manifest.json"] == "differs"


def test_only_own_stale_kernels_are_removed(tmp_path):
    write_folder(SPECS, "sm_80", tmp_path)
    (tmp_path / "mine.cu").write_text("// not ours")
    written = write_folder(SPECS[:2], "sm_80", tmp_path)
    assert len(written.removed) == len(SPECS) - 2
    assert sorted(path.name for path in tmp_path.glob("*.cu")) == sorted(
        ["mine.cu", *(f"{spec.name}.cu" for spec in SPECS[:2])]
    )


DAMAGE = [b"", b"{", b"\xff", b"[]", b'{"kernels": [{"name": "../../x"}]}', b'{"kernels": 3}']


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_manifest_removes_nothing_and_is_rewritten(tmp_path, damage):
    write_folder(SPECS, "sm_80", tmp_path)
    (tmp_path / "manifest.json").write_bytes(damage)
    assert "manifest.json" in compare_folder(SPECS, "sm_80", tmp_path)
    assert write_folder(SPECS, "sm_80", tmp_path).removed == ()
    assert compare_folder(SPECS, "sm_80", tmp_path) == {}


def test_an_interrupted_write_leaves_the_old_file_and_no_rest(tmp_path, monkeypatch):
    path = tmp_path / "kernel.cu"
    path.write_text("old")

    def interrupt(source, destination):
        raise KeyboardInterrupt

    monkeypatch.setattr(render_module.os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(AttnsmithError, match="--out"):
        write_folder(SPECS, "sm_80", blocked / "out")


def test_an_illegal_selection_writes_nothing(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(AttnsmithError):
        write_folder(Selection(target="sm_80", tile={"num_stages": 9}).to_specs(), "sm_80", out)
    assert not out.exists()


def test_default_output_is_generated_in_a_checkout_and_the_cache_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "checkout_dir", lambda: tmp_path)
    (tmp_path / "generated").mkdir()
    assert default_output_dir() == tmp_path / "generated"
    monkeypatch.setattr(sources, "checkout_dir", lambda: None)
    monkeypatch.setenv("ATTNSMITH_CACHE_DIR", str(tmp_path / "cache"))
    assert default_output_dir() == tmp_path / "cache" / "generated"
    monkeypatch.delenv("ATTNSMITH_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_output_dir().name == "generated"
    assert Path(render_module.__file__).parent not in default_output_dir().parents
