# SPDX-License-Identifier: Apache-2.0
"""Errors of the public functions: four parts (asked, got, allowed, do) and the built-in type that Python users expect.

Not responsible for the generator's errors (codegen/errors.py) or the simulator's (tools/ptxsim/errors.py).
"""

from __future__ import annotations

from attnsmith.codegen.errors import AttnsmithError, UnsupportedError

__all__ = ["ArgumentError", "ArgumentTypeError", "DispatchError", "UnsupportedError"]


class ArgumentError(AttnsmithError, ValueError):
    """An argument whose value, shape, strides or device is not allowed."""


class ArgumentTypeError(AttnsmithError, TypeError):
    """An argument of a type or dtype that is not allowed."""


class DispatchError(AttnsmithError, RuntimeError):
    """No kernel serves the call: its device has none, or the missing one may not be built now."""
