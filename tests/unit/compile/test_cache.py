# SPDX-License-Identifier: Apache-2.0
"""The shared cache: damage, interruption, two processes, full and read-only folders, cleaning."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from attnsmith.codegen import cache as cache_module
from attnsmith.codegen.cache import MANIFEST, DirectoryCache, KernelCache, clean_root, default_root
from attnsmith.codegen.errors import CacheError

DIGEST = "d" * 64
FILES: dict[str, bytes | Path] = {"kernel.cubin": b"\x7fELF" * 100, "kernel.ptx": b".version 9.0\n"}


@pytest.fixture
def cache(tmp_path: Path) -> DirectoryCache:
    """An empty cache in a folder that does not exist yet."""
    return DirectoryCache(tmp_path / "cache root" / "kernels")


def leftovers(cache: DirectoryCache) -> list[Path]:
    """Temporary folders."""
    return sorted((cache.folder / "tmp").glob("*")) if (cache.folder / "tmp").is_dir() else []


def test_round_trip(cache: DirectoryCache) -> None:
    assert cache.load(DIGEST) is None
    assert not cache.folder.exists(), "a look-up must not create anything"
    directory = cache.publish(DIGEST, FILES, {"name": "kernel"})
    entry = cache.load(DIGEST)
    assert entry is not None
    assert entry.files == FILES
    assert entry.directory == directory == cache.folder / DIGEST
    assert entry.manifest["name"] == "kernel" and entry.manifest["digest"] == DIGEST
    assert entry.manifest["files"]["kernel.ptx"]["bytes"] == len(FILES["kernel.ptx"])  # type: ignore[arg-type]
    assert cache.digests() == [DIGEST]
    assert leftovers(cache) == []


def test_a_path_is_moved_in(cache: DirectoryCache, tmp_path: Path) -> None:
    built = tmp_path / "lib.so"
    built.write_bytes(b"library")
    directory = cache.publish(DIGEST, {"lib.so": built}, {})
    assert (directory / "lib.so").read_bytes() == b"library"
    assert not built.exists()


def truncate(directory: Path) -> None:
    """As a full disk leaves a file."""
    (directory / "kernel.cubin").write_bytes(b"\x7fELF")


def flip(directory: Path) -> None:
    """One changed byte, same size."""
    content = bytearray((directory / "kernel.cubin").read_bytes())
    content[17] ^= 1
    (directory / "kernel.cubin").write_bytes(content)


def remove_file(directory: Path) -> None:
    """A missing file."""
    (directory / "kernel.ptx").unlink()


def remove_manifest(directory: Path) -> None:
    """A folder that nothing describes."""
    (directory / MANIFEST).unlink()


def cut_manifest(directory: Path) -> None:
    """Half a manifest."""
    text = (directory / MANIFEST).read_text()
    (directory / MANIFEST).write_text(text[: len(text) // 2])


def wrong_manifest(directory: Path) -> None:
    """JSON of another shape."""
    (directory / MANIFEST).write_text("[1, 2, 3]")


def other_digest(directory: Path) -> None:
    """A folder that was renamed by hand."""
    manifest = json.loads((directory / MANIFEST).read_text())
    (directory / MANIFEST).write_text(json.dumps({**manifest, "digest": "e" * 64}))


@pytest.mark.parametrize(
    "damage", [truncate, flip, remove_file, remove_manifest, cut_manifest, wrong_manifest, other_digest]
)
def test_damaged_entry_is_a_miss_and_can_be_published_again(
    cache: DirectoryCache, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(cache.publish(DIGEST, FILES, {}))
    assert cache.load(DIGEST) is None
    assert "is damaged" in caplog.text
    cache.publish(DIGEST, FILES, {})
    entry = cache.load(DIGEST)
    assert entry is not None and entry.files == FILES
    assert leftovers(cache) == []


def test_a_file_where_the_entry_belongs_is_damage(cache: DirectoryCache, caplog: pytest.LogCaptureFixture) -> None:
    cache.folder.mkdir(parents=True)
    cache.path(DIGEST).write_text("no folder")
    assert cache.load(DIGEST) is None
    assert "is damaged" in caplog.text
    cache.publish(DIGEST, FILES, {})
    assert cache.load(DIGEST) is not None


def test_a_root_that_is_a_file_holds_no_entries(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "root").write_text("no folder")
    assert DirectoryCache(tmp_path / "root" / "kernels").load(DIGEST) is None
    assert "damaged" not in caplog.text


def test_the_first_publisher_wins(cache: DirectoryCache) -> None:
    cache.publish(DIGEST, {"file": b"first"}, {})
    cache.publish(DIGEST, {"file": b"second"}, {})
    entry = cache.load(DIGEST)
    assert entry is not None and entry.files == {"file": b"first"}
    assert leftovers(cache) == []


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_failed_write_leaves_nothing(cache: DirectoryCache, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    def fail(self: Path, *_: object, **__: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(CacheError, match=os.strerror(error)):
        cache.publish(DIGEST, FILES, {})
    monkeypatch.undo()
    assert cache.load(DIGEST) is None
    assert leftovers(cache) == []


def test_failed_rename_leaves_nothing(cache: DirectoryCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(cache_module.os, "rename", fail)
    with pytest.raises(CacheError, match="ATTNSMITH_CACHE_DIR"):
        cache.publish(DIGEST, FILES, {})
    monkeypatch.undo()
    assert not cache.path(DIGEST).exists()
    assert leftovers(cache) == []


def test_root_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = DirectoryCache(tmp_path / "file" / "kernels")
    assert cache.load(DIGEST) is None
    with pytest.raises(CacheError):
        cache.publish(DIGEST, FILES, {})
    with pytest.raises(CacheError), cache.lock(DIGEST):
        pass
    assert cache.digests() == []


def test_interrupted_build_is_invisible_and_cleaned_when_its_process_is_gone(cache: DirectoryCache) -> None:
    script = (
        "import os, sys, pathlib\n"
        "from attnsmith.codegen.cache import DirectoryCache\n"
        "class Stop(bytes): pass\n"
        f"cache = DirectoryCache(pathlib.Path({str(cache.folder)!r}))\n"
        "import attnsmith.codegen.cache as module\n"
        "module._facts = lambda path: os._exit(9)\n"  # killed between writing files and the manifest
        f"cache.publish({DIGEST!r}, {{'file': b'half'}}, {{}})\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    assert len(leftovers(cache)) == 1
    assert cache.load(DIGEST) is None and cache.digests() == []
    mine = cache._temporary("new")
    report = cache.clean(older_than_seconds=3600)
    assert len(report.removed) == 1 and leftovers(cache) == [mine], "a running build keeps its folder"


def test_lock_is_exclusive_between_processes_and_freed_by_death(cache: DirectoryCache, tmp_path: Path) -> None:
    script = (
        "import pathlib, time\n"
        "from attnsmith.codegen.cache import DirectoryCache\n"
        f"with DirectoryCache(pathlib.Path({str(cache.folder)!r})).lock({DIGEST!r}):\n"
        f"    pathlib.Path({str(tmp_path / 'held')!r}).touch()\n"
        "    time.sleep(60)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", script])
    try:
        deadline = time.monotonic() + 30
        while not (tmp_path / "held").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        with pytest.raises(CacheError, match="lock"), cache.lock(DIGEST, timeout=0.2):
            pass
    finally:
        holder.kill()
        holder.wait()
    with cache.lock(DIGEST, timeout=10):
        pass


def test_folder_of_an_interrupted_library_build_is_kept_for_its_next_attempt_until_cleaned(
    cache: DirectoryCache,
) -> None:
    with cache.lock(DIGEST):
        folder = cache.resumable_folder(DIGEST)
        (folder / "unit_0.ptx").write_text("half")
        assert cache.clean(older_than_seconds=3600).removed == (), "its builder runs"
    assert cache.resumable_folder(DIGEST) == folder and (folder / "unit_0.ptx").is_file()
    assert cache.clean(older_than_seconds=3600).removed == (folder,)
    assert not folder.exists()


def test_clean_by_age_and_dry_run(tmp_path: Path) -> None:
    root = tmp_path / "root"
    caches = KernelCache(root)
    old = caches.publish("0" * 64, FILES, {})
    os.utime(old, (time.time() - 10 * 86400,) * 2)
    new = caches.publish("1" * 64, FILES, {})
    dry = clean_root(root, older_than_seconds=5 * 86400, dry_run=True)
    assert [path for report in dry for path in report.removed] == [old] and old.is_dir()
    assert sum(report.num_bytes for report in dry) > 400
    clean_root(root, older_than_seconds=5 * 86400)
    assert not old.exists() and new.is_dir()
    clean_root(root)
    assert caches.kernels.digests() == []


def test_clean_of_nothing(tmp_path: Path) -> None:
    assert all(report.removed == () for report in clean_root(tmp_path / "absent"))


def test_root_is_the_variable_else_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ATTNSMITH_CACHE_DIR", str(tmp_path))
    assert default_root() == tmp_path
    monkeypatch.delenv("ATTNSMITH_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_root().name == "attnsmith"
