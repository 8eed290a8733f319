# SPDX-License-Identifier: Apache-2.0
"""Strict mypy over a checkout: shows mypy the four folders as the one package `attnsmith`, which it cannot see itself.

mypy does not follow setuptools' editable finder, so a temporary tree of links stands in for the installed package.
Arguments are packages to check, by default the whole package. Not responsible for mypy's
settings: pyproject.toml is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
SUBPACKAGES = ("codegen", "templates", "tools")
DEFAULT_PACKAGES = ("attnsmith",)


def link_tree(root: Path) -> None:
    """Make `root`/attnsmith: links to every entry of bindings/ and to the other three folders."""
    package = root / "attnsmith"
    package.mkdir()
    for entry in sorted((CHECKOUT / "bindings").iterdir()):
        if entry.name != "__pycache__":
            (package / entry.name).symlink_to(entry)
    for name in SUBPACKAGES:
        (package / name).symlink_to(CHECKOUT / name)


def main(packages: Sequence[str]) -> int:
    """Run mypy --strict on `packages`; its exit status."""
    with tempfile.TemporaryDirectory(prefix="attnsmith-typecheck-") as folder:
        link_tree(Path(folder))
        chosen = [argument for package in packages or DEFAULT_PACKAGES for argument in ("-p", package)]
        command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(CHECKOUT / "pyproject.toml")]
        command += ["--cache-dir", str(CHECKOUT / ".mypy_cache"), *chosen]
        return subprocess.run(command, cwd=folder, env={**os.environ, "MYPYPATH": folder}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
