# SPDX-License-Identifier: Apache-2.0
"""The options that choose kernels (`--set`, `--target`, `--dtype`, ...), the same for every command that takes them.

Not responsible for what they mean: registry.Selection expands them.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import wraps
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def _flag(option: str, name: str, text: str) -> Callable[[F], F]:
    """--OPTION/--no-OPTION; None where neither is given."""
    return click.option(f"--{option}/--no-{option}", name, default=None, help=text)


_OPTIONS: tuple[Callable[[F], F], ...] = (
    click.option("--set", "set_name", metavar="NAME", help="Kernel set: minimal, default or full."),
    click.option(
        "--target",
        "--arch",
        "target",
        metavar="TARGET",
        default="sm_80",
        show_default=True,
        help="Compile target: sm_80, sm_86, sm_89, sm_90a, or sm_90 for SM80 kernels (8.0 and sm80 are understood).",
    ),
    click.option("--dtype", "dtypes", metavar="fp16|bf16|e4m3|e5m2", multiple=True, help="Element type; repeatable."),
    click.option("--head-dim", "head_dims", type=int, metavar="D", multiple=True, help="Head dim of q, k; repeatable."),
    click.option("--head-dim-v", "head_dims_v", type=int, metavar="D", multiple=True, help="Head dim of v, if not D."),
    click.option("--mask", "masks", metavar="full|causal", multiple=True, help="Mask; repeatable."),
    click.option("--block-m", type=int, metavar="N", help="Query rows per CTA."),
    click.option("--block-n", type=int, metavar="N", help="Keys per iteration."),
    click.option("--num-warps", type=int, metavar="N", help="Warps per CTA that compute."),
    click.option("--num-stages", type=int, metavar="N", help="Shared-memory buffers for K and for V."),
    click.option("--scheduler", metavar="single|static|dynamic", help="How CTAs come by tiles (SM90)."),
    click.option("--cluster-size", type=int, metavar="N", help="CTAs that share K and V loads (SM90)."),
    _flag("ping-pong", "is_ping_pong", "Consumer warpgroups take turns at the tensor cores (SM90)."),
    _flag("overlap", "overlaps_softmax", "Softmax runs under the P V product of the block before (SM90)."),
    _flag("p-in-smem", "p_in_smem", "P goes through shared memory instead of registers (SM90)."),
    _flag("skip-rescale", "skips_rescale", "O is rescaled only when a row maximum grew by more than 2^8 (SM90)."),
    click.option("--exp2-fma-eighths", type=int, metavar="N", help="Of 8 weights, how many by polynomial (SM90)."),
    click.option("--out-dtype", metavar="fp16|bf16", help="Element type of the output, for FP8 inputs (SM90)."),
    _flag("v-col-major", "v_is_col_major", "V's keys are contiguous; FP8 (SM90)."),
    _flag("pack-gqa", "packs_gqa", "A tile's rows are query rows and heads of a group (SM90)."),
)


def selection_options(function: F) -> F:
    """Add the options to a click command; its function gets one keyword argument `selection` (registry.Selection)."""

    @wraps(function)
    def call(**arguments: Any) -> Any:
        from attnsmith.codegen.registry import KEY_OPTIONS, TILE_FIELDS, Selection
        from attnsmith.codegen.spec import DType, Mask, Scheduler, parse_enum
        from attnsmith.codegen.targets import parse_target

        enums: dict[str, type[Enum]] = {"scheduler": Scheduler, "out_dtype": DType}

        def given(names: tuple[str, ...]) -> dict[str, Any]:
            values = {name: arguments.pop(name) for name in names}
            return {
                name: parse_enum(enums[name], value) if name in enums else value
                for name, value in values.items()
                if value is not None
            }

        tile, key = given(TILE_FIELDS), given(KEY_OPTIONS)
        selection = Selection(
            target=parse_target(arguments.pop("target")),
            set_name=arguments.pop("set_name"),
            dtypes=tuple(parse_enum(DType, text) for text in arguments.pop("dtypes")),
            head_dims=arguments.pop("head_dims"),
            head_dims_v=arguments.pop("head_dims_v"),
            masks=tuple(parse_enum(Mask, text) for text in arguments.pop("masks")),
            tile=tile,
            key=key,
        )
        return function(selection=selection, **arguments)

    decorated: Any = call
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    result: F = decorated
    return result
