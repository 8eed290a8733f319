# SPDX-License-Identifier: Apache-2.0
"""Adapters to other libraries, one module each; a module loads (and imports its library) on first use."""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = ("transformers",)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"attnsmith.integrations.{name}")
    raise AttributeError(f"module 'attnsmith.integrations' has no attribute {name!r}")
