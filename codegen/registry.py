# SPDX-License-Identifier: Apache-2.0
"""Named kernel sets, expanded once per target, in a stable order and without duplicates.

Not responsible for building them (build.py) or for what a dispatch miss asks for (dispatch.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from itertools import product

from attnsmith.codegen.errors import SpecError
from attnsmith.codegen.resources import target_limits
from attnsmith.codegen.rules import DTYPES, HEAD_DIMS
from attnsmith.codegen.spec import Arch, DType, KernelSpec, Mask, ProblemKey
from attnsmith.codegen.tiles import default_tiles

KERNEL_SETS: dict[str, str] = {
    "minimal": "fp16 and bf16, head_dim 64 and 128, full and causal; the best tile of each",
    "default": "every head_dim that has a kernel, full and causal, with every default tile",
    "full": "default, and for each problem the kernel that also serves smaller head dims",
}
"""Set name -> what is in it."""


def family_of(target: str) -> Arch:
    """The kernel family that a target is built with."""
    return target_limits(target).archs[0]


def problem_keys(
    target: str, *, head_dims: Iterable[int] = HEAD_DIMS, dtypes: Iterable[DType] | None = None
) -> Iterator[ProblemKey]:
    """Every exact problem (head_dim_v == head_dim) of the target's family."""
    arch = family_of(target)
    for head_dim, dtype, mask in product(head_dims, dtypes or DTYPES[arch], Mask):
        yield ProblemKey(arch=arch, dtype=dtype, head_dim=head_dim, head_dim_v=head_dim, mask=mask)


def _best(key: ProblemKey, target: str) -> KernelSpec:
    return KernelSpec(key=key, tile=default_tiles(key, target)[0].tile)


def _expand(name: str, target: str) -> Iterator[KernelSpec]:
    if name == "minimal":
        yield from (_best(key, target) for key in problem_keys(target, head_dims=(64, 128)))
        return
    for key in problem_keys(target):
        yield from (KernelSpec(key=key, tile=row.tile) for row in default_tiles(key, target))
    if name == "full":
        yield from (_best(replace(key, pads_head_dim=True), target) for key in problem_keys(target))


@cache
def kernel_set(name: str, target: str) -> tuple[KernelSpec, ...]:
    """The specs of set `name` for `target`; no two are equal, and every one is legal (a unit test checks).

    Raises:
        SpecError: an unknown set or target.
    """
    if name not in KERNEL_SETS:
        raise SpecError(
            asked=f"expand kernel set {name}",
            got=repr(name),
            allowed=", ".join(KERNEL_SETS),
            do="Pass one of these sets, or single kernels by --head-dim, --dtype and --mask.",
        )
    return tuple(dict.fromkeys(_expand(name, target)))
