# SPDX-License-Identifier: Apache-2.0
"""attnsmith: FlashAttention kernels generated, built and run for your shapes.

Public names load on first use, so that `import attnsmith.codegen` neither imports torch nor touches a GPU.
Not responsible for any behaviour: each name's module is.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_EXPORTS = {
    "flash_attn_func": "interface",
    "flash_attn_kvpacked_func": "interface",
    "flash_attn_qkvpacked_func": "interface",
    "scaled_dot_product_attention": "sdpa",
    "quantize_fp8": "quantize",
    "incoherent_rotation": "hadamard",
    "simulate": "simulation",
    "last_launch": "simulation",
    "record_launches": "simulation",
    "dispatch_table": "dispatch",
    "explain": "dispatch",
    "load_library": "dispatch",
    "register_kernel": "dispatch",
}
"""Public name -> module of this package that defines it."""

_SUBMODULES = (
    "codegen",
    "errors",
    "integrations",
    "interface",
    "launcher",
    "ops",
    "quantize",
    "reference",
    "simulation",
    "tools",
)

__all__ = [
    "__version__",
    "dispatch_table",
    "explain",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "incoherent_rotation",
    "last_launch",
    "load_library",
    "quantize_fp8",
    "record_launches",
    "register_kernel",
    "scaled_dot_product_attention",
    "simulate",
]

if TYPE_CHECKING:
    from attnsmith.dispatch import dispatch_table, explain, load_library, register_kernel
    from attnsmith.hadamard import incoherent_rotation
    from attnsmith.interface import flash_attn_func, flash_attn_kvpacked_func, flash_attn_qkvpacked_func
    from attnsmith.quantize import quantize_fp8
    from attnsmith.sdpa import scaled_dot_product_attention
    from attnsmith.simulation import last_launch, record_launches, simulate


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        value = getattr(importlib.import_module(f"attnsmith.{_EXPORTS[name]}"), name)
        globals()[name] = value
        return value
    if name in _SUBMODULES:
        return importlib.import_module(f"attnsmith.{name}")
    raise AttributeError(f"module 'attnsmith' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS, *_SUBMODULES})
