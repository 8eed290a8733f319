# SPDX-License-Identifier: Apache-2.0
"""A directory of build results that several processes share: published whole, verified when read, never trusted.

An entry is a folder named by its digest, with its files and a manifest.json that describes them (sha256 and size of
each, and whatever the builder adds). It is written in a temporary folder and appears by one rename; an entry that does
not match its manifest is a miss and is removed. Not responsible for what the files mean (build.py) or for the key
(digest.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import platformdirs
from attnsmith.codegen.errors import CacheError

_LOG = logging.getLogger(__name__)

MANIFEST = "manifest.json"
"""Written last into an entry."""

_WORK = "work-"

STALE_SECONDS = 24 * 3600
"""A temporary folder this old belongs to no running build, whatever its process id says."""


def default_root() -> Path:
    """ATTNSMITH_CACHE_DIR, else the user's cache folder of this platform. Not created here."""
    named = os.environ.get("ATTNSMITH_CACHE_DIR")
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("attnsmith", appauthor=False))


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A published, verified result."""

    directory: Path
    """Its folder."""
    manifest: Mapping[str, Any]
    """What the builder said, plus `files`: name -> {sha256, bytes}."""
    files: Mapping[str, bytes]
    """The files that `load` was asked for."""


@dataclass(frozen=True, kw_only=True)
class CleanReport:
    """What `clean` removed, or would."""

    removed: tuple[Path, ...]
    """Entries, temporary folders and failed sources."""
    num_bytes: int
    """Their size."""


class DirectoryCache:
    """Entries below `folder`, temporary folders and locks beside them. Nothing is created before the first write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, digest: str) -> Path:
        """Where an entry is, published or not."""
        return self.folder / digest

    # Reading

    def load(self, digest: str) -> Entry | None:
        """The verified entry with all its files, or None: absent, or damaged and therefore removed."""
        directory = self.path(digest)
        try:
            manifest = json.loads((directory / MANIFEST).read_bytes())
            files = {name: _verified(directory / name, facts) for name, facts in manifest["files"].items()}
            if manifest["digest"] != digest:
                raise ValueError(f"manifest of {manifest['digest']}")
        except (FileNotFoundError, NotADirectoryError) as error:
            if os.path.lexists(directory):
                self._discard(directory, f"{error.filename} is missing")
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._discard(directory, str(error))
            return None
        return Entry(directory=directory, manifest=manifest, files=files)

    def _discard(self, directory: Path, reason: str) -> None:
        """Out of the way by a rename first, so that no reader sees a half-removed entry."""
        _LOG.warning("cache entry %s is damaged (%s); it is rebuilt", directory, reason)
        with contextlib.suppress(OSError):
            grave = self._temporary("damaged")
            os.rename(directory, grave / "entry")
            shutil.rmtree(grave, ignore_errors=True)

    # Writing

    @contextlib.contextmanager
    def lock(self, digest: str, timeout: float = 900.0) -> Iterator[None]:
        """Held by the one process that builds `digest`; the system releases it when that process dies.

        Raises CacheError where locks cannot be made or `timeout` seconds pass. Publishing is safe without it: the lock
        only saves the second build.
        """
        lock = filelock.FileLock(str(self._lock_path(digest)))
        try:
            _make_folder(self.folder / "locks")
            try:
                lock.acquire(timeout=0)
            except filelock.Timeout:
                _LOG.info("waiting for another process that builds %s", digest[:12])
                lock.acquire(timeout=timeout)
        except (OSError, NotImplementedError) as error:
            raise _cache_error(self.folder, f"lock {digest[:12]}", error) from error
        try:
            yield
        finally:
            lock.release()

    def publish(self, digest: str, files: Mapping[str, bytes | Path], manifest: Mapping[str, Any]) -> Path:
        """Makes the entry appear whole and returns its folder; another process's entry of the same digest wins.

        A `files` value that is a path is moved in. Raises CacheError (full, read-only, not a folder); then nothing of
        it is left.
        """
        final = self.path(digest)
        temporary: Path | None = None
        try:
            temporary = self._temporary("new")
            for name, content in files.items():
                _place(content, temporary / name)
            facts = {name: _facts(temporary / name) for name in files}
            text = json.dumps({**manifest, "digest": digest, "files": facts}, indent=1, sort_keys=True)
            (temporary / MANIFEST).write_text(text, encoding="utf-8")
            _rename_or_yield(temporary, final)
        except OSError as error:
            raise _cache_error(self.folder, f"store {digest[:12]}", error) from error
        finally:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
        return final

    def resumable_folder(self, digest: str) -> Path:
        """A folder for the build of `digest`, with what an interrupted one left in it. Only for the lock's holder.

        The builder removes it in the end, and `clean` when nobody holds the lock. Raises CacheError.
        """
        path = self.folder / "tmp" / f"{_WORK}{digest}"
        try:
            _make_folder(path)
            os.utime(path)
        except OSError as error:
            raise _cache_error(self.folder, "make a work folder", error) from error
        return path

    def _temporary(self, purpose: str) -> Path:
        path = self.folder / "tmp" / f"{purpose}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        _make_folder(path)
        return path

    # Looking after

    def digests(self) -> list[str]:
        """Of all published entries."""
        if not self.folder.is_dir():
            return []
        return sorted(path.name for path in self.folder.iterdir() if (path / MANIFEST).is_file())

    def clean(self, older_than_seconds: float = 0.0, dry_run: bool = False) -> CleanReport:
        """Removes entries last built `older_than_seconds` ago or more, and leftovers of builds that no longer run."""
        now = time.time()
        doomed = [path for path in self._entries() if now - _age_mark(path) >= older_than_seconds]
        doomed += [path for path in _children(self.folder / "tmp") if self._is_stale(path, now)]
        doomed += [path for path in _children(self.folder / "failed") if now - _age_mark(path) >= older_than_seconds]
        num_bytes = sum(folder_bytes(path) for path in doomed)
        if not dry_run:
            for path in doomed:
                _remove(path)
            self._remove_free_locks()
        return CleanReport(removed=tuple(doomed), num_bytes=num_bytes)

    def _entries(self) -> list[Path]:
        reserved = ("tmp", "locks", "failed")
        folders = [path for path in _children(self.folder) if path.is_dir() and path.name not in reserved]
        return [path for path in folders if not path.name.startswith(".")]

    def _is_stale(self, path: Path, now: float) -> bool:
        """True where nobody builds in a temporary folder any more: its name has the builder's digest or process id."""
        if now - _age_mark(path) >= STALE_SECONDS:
            return True
        if path.name.startswith(_WORK):
            return not self._is_locked(path.name.removeprefix(_WORK))
        parts = path.name.split("-")
        return len(parts) == 3 and parts[1].isdigit() and not _is_running(int(parts[1]))

    def _lock_path(self, digest: str) -> Path:
        return self.folder / "locks" / f"{digest}.lock"

    def _is_locked(self, digest: str) -> bool:
        try:
            with filelock.FileLock(str(self._lock_path(digest))).acquire(timeout=0):
                return False
        except OSError:
            return True

    def _remove_free_locks(self) -> None:
        for path in _children(self.folder / "locks"):
            lock = filelock.FileLock(str(path))
            with contextlib.suppress(OSError, filelock.Timeout), lock.acquire(timeout=0):
                path.unlink(missing_ok=True)


CACHES = ("kernels", "libraries", "launcher", "ptxsim")
"""Folders below the root whose folders are entries. The last two belong to the launcher and the simulator."""


def clean_root(root: Path, older_than_seconds: float = 0.0, dry_run: bool = False) -> list[CleanReport]:
    """`DirectoryCache.clean` for every cache below `root`."""
    return [DirectoryCache(root / name).clean(older_than_seconds, dry_run) for name in CACHES]


class KernelCache:
    """The caches of one root: single kernels, and AOT libraries."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = default_root() if root is None else root
        self.kernels = DirectoryCache(self.root / "kernels")
        self.libraries = DirectoryCache(self.root / "libraries")

    def load(self, digest: str) -> Entry | None:
        """A kernel's entry."""
        return self.kernels.load(digest)

    def publish(self, digest: str, files: Mapping[str, bytes | Path], manifest: Mapping[str, Any]) -> Path:
        """Stores a kernel's entry. Raises CacheError."""
        return self.kernels.publish(digest, files, manifest)

    def lock(self, digest: str) -> contextlib.AbstractContextManager[None]:
        """Lock of a kernel's entry."""
        return self.kernels.lock(digest)


def folder_bytes(path: Path) -> int:
    """Size of all files below `path`; what vanishes meanwhile counts nothing."""
    total = 0
    for child in [path, *path.rglob("*")]:
        with contextlib.suppress(OSError):
            total += child.stat().st_size if child.is_file() else 0
    return total


def _verified(path: Path, facts: Mapping[str, Any]) -> bytes:
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != facts["sha256"]:
        raise ValueError(f"{path.name} has {len(content)} bytes that do not match the manifest's sha256")
    return content


def is_as_published(path: Path) -> bool:
    """False where the manifest beside a file describes other bytes. True without one: a copy outside the cache."""
    try:
        facts = json.loads((path.parent / MANIFEST).read_bytes())["files"][path.name]
    except (OSError, ValueError, KeyError, TypeError):
        return True
    try:
        _verified(path, facts)
    except ValueError:
        return False
    return True


def _facts(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


def _place(content: bytes | Path, path: Path) -> None:
    if isinstance(content, Path):
        shutil.move(content, path)
    else:
        path.write_bytes(content)


def _rename_or_yield(temporary: Path, final: Path) -> None:
    try:
        os.rename(temporary, final)
    except OSError:
        if not (final / MANIFEST).is_file():
            raise


def _make_folder(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _age_mark(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return time.time()


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _cache_error(folder: Path, asked: str, error: BaseException) -> CacheError:
    return CacheError(
        asked=f"{asked} in {folder}",
        got=str(error) or type(error).__name__,
        allowed="a writable folder with free space",
        do="Set ATTNSMITH_CACHE_DIR to another folder, or run `attnsmith clean`.",
    )
