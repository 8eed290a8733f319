# SPDX-License-Identifier: Apache-2.0
"""From a spec to source text (pure), and source files on disk (atomic).

Jinja chooses which declarations exist; a name that a template uses and the context lacks is an error.
Not responsible for legality (rules.py): any spec whose template exists renders.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnsmith.codegen import resources_sm90
from attnsmith.codegen.errors import AttnsmithError, UnsupportedError
from attnsmith.codegen.resources import entry_registers, num_threads, smem_bytes, smem_members
from attnsmith.codegen.spec import Arch, DType, KernelSpec, Mask, Op, ProblemKey, Scheduler

if TYPE_CHECKING:
    from jinja2 import Environment

SOURCE_SUFFIX = ".cu"


def template_dir() -> Path:
    """The folder of the templates, in a checkout or an installation."""
    import attnsmith.templates

    return Path(attnsmith.templates.__path__[0])


def include_dir() -> Path:
    """The include folder that a compiler needs for `#include <attnsmith/...>`."""
    return template_dir() / "include"


def template_name(op: Op, arch: Arch) -> str:
    """File name of the kernel template of `op` and `arch`."""
    return f"{op.value}_{arch.value}.cu.j2"


def has_template(op: Op, arch: Arch) -> bool:
    """True when this version can render `op` for the kernel family `arch`."""
    return (template_dir() / template_name(op, arch)).is_file()


@cache
def environment() -> Environment:
    """The one Jinja environment of every template."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(template_dir()),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )


def render_template(name: str, context: dict[str, Any]) -> str:
    """The text of template `name` for `context`; raises jinja2.UndefinedError for a name the context lacks."""
    return environment().get_template(name).render(context)


def template_context(spec: KernelSpec) -> dict[str, Any]:
    """What a kernel template sees: the spec and what is derived from it, never the compile target.

    `members` are the bytes of each SharedStorage member; the enums allow comparisons. SM90 templates see registers and
    warpgroups besides.
    """
    context: dict[str, Any] = {
        "spec": spec,
        "key": spec.key,
        "tile": spec.tile,
        "name": spec.name,
        "smem_bytes": smem_bytes(spec),
        "members": smem_members(spec),
        "num_threads": num_threads(spec),
        "Mask": Mask,
        "DType": DType,
        "Scheduler": Scheduler,
    }
    return {**context, **_sm90_context(spec)} if spec.key.arch is Arch.SM90 else context


def _sm90_context(spec: KernelSpec) -> dict[str, Any]:
    return {
        "entry_registers": entry_registers(spec),
        "producer_registers": resources_sm90.producer_registers(spec),
        "consumer_registers": resources_sm90.consumer_registers(spec),
        "num_consumer_warpgroups": resources_sm90.num_consumer_warpgroups(spec),
        "transposes_v": resources_sm90.transposes_v(spec),
        "min_ctas_per_sm": resources_sm90.min_ctas_per_sm(spec),
    }


def _require_template(key: ProblemKey) -> str:
    if not has_template(key.op, key.arch):
        available = [arch.value for arch in Arch if has_template(key.op, arch)]
        raise UnsupportedError(
            asked=f"render {key.op.value} for arch {key.arch.value}",
            got=f"no template {template_name(key.op, key.arch)}",
            allowed=", ".join(available) or "no arch: the installation has no kernel template",
            do="Use one of these archs." if available else "Reinstall attnsmith.",
        )
    return template_name(key.op, key.arch)


def render(spec: KernelSpec) -> str:
    """The CUDA source of one kernel: equal specs give equal text, on any machine."""
    return render_template(_require_template(spec.key), template_context(spec))


def source_name(spec: KernelSpec) -> str:
    """File name of a rendered kernel."""
    return spec.name + SOURCE_SUFFIX


def write_atomic(path: Path, text: str) -> None:
    """Write `text` to `path` so that a reader or an interruption sees the old file or the new one, never a part."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        Path(temporary).chmod(0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_texts(texts: Mapping[str, str], out_dir: Path) -> list[Path]:
    """Write each file name's text into `out_dir`; returns the paths in order. A file that is right is not touched.

    Raises:
        AttnsmithError: the folder cannot be made or written to.
    """
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            if _read(out_dir / name) != text.encode():
                write_atomic(out_dir / name, text)
    except OSError as error:
        raise AttnsmithError(
            asked=f"write sources to {out_dir}",
            got=error.strerror or str(error),
            allowed="a folder that you can write to",
            do="Pass another folder with --out.",
        ) from error
    return [out_dir / name for name in texts]


def write_sources(specs: Iterable[KernelSpec], out_dir: Path) -> list[Path]:
    """Render every spec to `out_dir/NAME.cu`; returns the paths in order.

    Raises:
        AttnsmithError: the folder cannot be made or written to.
    """
    return write_texts({source_name(spec): render(spec) for spec in specs}, out_dir)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
