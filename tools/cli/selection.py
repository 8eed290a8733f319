# SPDX-License-Identifier: Apache-2.0
"""The options that choose kernels (`--set`, `--target`, `--dtype`, ...), the same for every command that takes them.

Not responsible for what they mean: registry.Selection expands them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: tuple[Callable[[F], F], ...] = (
    click.option("--set", "set_name", metavar="NAME", help="Kernel set: minimal, default or full."),
    click.option(
        "--target",
        "--arch",
        "target",
        metavar="TARGET",
        default="sm_80",
        show_default=True,
        help="Compile target: sm_80, sm_86, sm_89, sm_90 (8.0 and sm80 are understood).",
    ),
    click.option("--dtype", "dtypes", metavar="fp16|bf16", multiple=True, help="Element type; repeatable."),
    click.option("--head-dim", "head_dims", type=int, metavar="D", multiple=True, help="Head dim of q, k; repeatable."),
    click.option("--head-dim-v", "head_dims_v", type=int, metavar="D", multiple=True, help="Head dim of v, if not D."),
    click.option("--mask", "masks", metavar="full|causal", multiple=True, help="Mask; repeatable."),
    click.option("--block-m", type=int, metavar="N", help="Query rows per CTA."),
    click.option("--block-n", type=int, metavar="N", help="Keys per iteration."),
    click.option("--num-warps", type=int, metavar="N", help="Warps per CTA."),
    click.option("--num-stages", type=int, metavar="N", help="Shared-memory buffers for K and for V."),
)


def selection_options(function: F) -> F:
    """Add the options to a click command; its function gets one keyword argument `selection` (registry.Selection)."""

    @wraps(function)
    def call(**arguments: Any) -> Any:
        from attnsmith.codegen.registry import TILE_FIELDS, Selection
        from attnsmith.codegen.spec import DType, Mask, parse_enum
        from attnsmith.codegen.targets import parse_target

        tile = {name: arguments.pop(name) for name in TILE_FIELDS}
        selection = Selection(
            target=parse_target(arguments.pop("target")),
            set_name=arguments.pop("set_name"),
            dtypes=tuple(parse_enum(DType, text) for text in arguments.pop("dtypes")),
            head_dims=arguments.pop("head_dims"),
            head_dims_v=arguments.pop("head_dims_v"),
            masks=tuple(parse_enum(Mask, text) for text in arguments.pop("masks")),
            tile={name: value for name, value in tile.items() if value is not None},
        )
        return function(selection=selection, **arguments)

    decorated: Any = call
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    result: F = decorated
    return result
