# SPDX-License-Identifier: Apache-2.0
"""The SM90 forward kernel as a test object: its specs, and its PTX launched with raw parameters on a simulated H100.

Tensor maps are encoded here from what sm90/params.hpp says of them, not by the launcher. Not responsible for what is
right: attnsmith.reference is.
"""

from __future__ import annotations

import ctypes
import functools
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from attnsmith.codegen.registry import kernel_set
from attnsmith.codegen.resources import num_threads, smem_bytes
from attnsmith.codegen.spec import KernelSpec, Mask, ProblemKey, Scheduler
from attnsmith.tools import ptxsim
from attnsmith.tools.check import CheckCase, make_descales, make_inputs, torch_dtype
from torch import Tensor

from tests.sim.fwd_kernel import FwdParams, built, extent_bytes, fwd_params

TARGET = "sm_90a"
SPECS = kernel_set("default", TARGET)
FULL_SPECS = kernel_set("full", TARGET)
ROWS = 64
"""Query rows of a consumer warpgroup."""
MANY_CTAS = 132


def spec_like(prefix: str, **changes: Any) -> KernelSpec:
    """The first spec of the full set whose name starts so, with fields of its key or tile changed."""
    spec = next(spec for spec in FULL_SPECS if spec.name.startswith(prefix))
    in_key = {name: value for name, value in changes.items() if name in ProblemKey.__dataclass_fields__}
    in_tile = {name: value for name, value in changes.items() if name not in in_key}
    return KernelSpec(key=replace(spec.key, **in_key), tile=replace(spec.tile, **in_tile))


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """The reference's tensors are small: on busy cores its threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def case_of(spec: KernelSpec, seqlen_q: int, seqlen_k: int, **options: Any) -> CheckCase:
    """A problem for `spec`, with inputs of its own; options are fields of CheckCase, `group` its nheads / nheads_k."""
    key, group = spec.key, options.pop("group", 1)
    nheads_k = options.pop("nheads_k", 1)
    fields: dict[str, Any] = {
        "device": "cpu",
        "dtype": key.dtype.value,
        "out_dtype": key.out_dtype.value if key.dtype.is_fp8 and key.out_dtype else None,
        "seqlen_q": seqlen_q,
        "seqlen_k": seqlen_k,
        "nheads": nheads_k * group,
        "nheads_k": nheads_k,
        "head_dim": key.head_dim,
        "head_dim_v": key.head_dim_v,
        "causal": key.mask is Mask.CAUSAL,
        "v_layout": "col" if key.v_is_col_major else "row",
    }
    case = CheckCase(**{**fields, **options})
    return replace(case, seed=zlib.crc32(case.label.encode()))


def inputs_of(case: CheckCase) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Tensor]]:
    """q, k, v and, for FP8, the descales."""
    cpu = torch.device("cpu")
    return make_inputs(case, cpu), make_descales(case, cpu)


class Descale(ctypes.Structure):
    """attnsmith::Descale."""

    _fields_ = (("ptr", ctypes.c_uint64), ("batch_stride", ctypes.c_int64), ("head_stride", ctypes.c_int64))


class FwdSm90Params(ctypes.Structure):
    """attnsmith::FwdSm90Params of templates/include/attnsmith/sm90/params.hpp."""

    _fields_ = (
        *((f"tma_{name}", ctypes.c_uint8 * 128) for name in "qkvo"),
        ("fwd", FwdParams),
        *((f"{name}_descale", Descale) for name in "qkv"),
        ("tile_counter", ctypes.c_uint64),
        ("num_tiles", ctypes.c_int32),
        ("num_heads_per_l2", ctypes.c_int32),
        ("padding", ctypes.c_uint8 * 48),  # the struct is aligned to 64 bytes
    )


assert ctypes.sizeof(FwdSm90Params) == 832


def box_row_bytes(tile_row_bytes: int) -> int:
    """The widest swizzle span that divides a tile's row."""
    return next(span for span in (128, 64, 32) if tile_row_bytes % span == 0)


def encode(x: Tensor, row_bytes: int, dims: tuple[tuple[int, int], ...], box: tuple[int, ...]) -> bytes:
    """The map of x as (extent, stride in elements) of each dim from the innermost one on, whose stride is 1; `box`
    leaves out the innermost dim. Nothing for a tensor without elements, which is never read."""
    if x.numel() == 0:
        return bytes(128)
    size = x.element_size()
    return ptxsim.encode_tensor_map(
        x.data_ptr(),
        {1: "uint8", 2: "uint16"}[size],
        [extent for extent, _ in dims],
        [stride * size for _, stride in dims[1:]],
        [row_bytes // size, *box],
        swizzle=row_bytes,
    )


def map_of_queries(x: Tensor, kernel_dim: int, packed_group: int | None) -> bytes:
    """Q or O."""
    (batch, seqlen, nheads, head_dim), stride = x.shape, x.stride()
    row_bytes = box_row_bytes(kernel_dim * x.element_size())
    if packed_group is None:
        dims = ((head_dim, 1), (seqlen, stride[1]), (nheads, stride[2]), (batch, stride[0]))
        return encode(x, row_bytes, dims, (ROWS, 1, 1))
    heads = ((packed_group, stride[2]), (seqlen, stride[1]), (nheads // packed_group, stride[2] * packed_group))
    box = (packed_group, ROWS // packed_group, 1, 1)
    return encode(x, row_bytes, ((head_dim, 1), *heads, (batch, stride[0])), box)


def map_of_keys(x: Tensor, kernel_dim: int, rows: int) -> bytes:
    """K or V, row-major."""
    (batch, seqlen, nheads, head_dim), stride = x.shape, x.stride()
    dims = ((head_dim, 1), (seqlen, stride[1]), (nheads, stride[2]), (batch, stride[0]))
    return encode(x, box_row_bytes(kernel_dim * x.element_size()), dims, (rows, 1, 1))


def map_of_columns(v: Tensor, block_n: int, columns: int) -> bytes:
    """V, column-major."""
    (batch, seqlen, nheads, head_dim), stride = v.shape, v.stride()
    dims = ((seqlen, 1), (head_dim, stride[3]), (nheads, stride[2]), (batch, stride[0]))
    return encode(v, box_row_bytes(block_n), dims, (columns, 1, 1))


@dataclass(frozen=True)
class Launch:
    """One problem as a kernel sees it."""

    spec: KernelSpec
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor
    counter: Tensor
    descales: Mapping[str, Tensor]

    def params(self, scale: float) -> FwdSm90Params:
        key, tile, q, k = self.spec.key, self.spec.tile, self.q, self.k
        group = q.shape[2] // k.shape[2]
        rows = tile.block_m // ROWS * (ROWS // group) if key.packs_gqa else tile.block_m
        params = FwdSm90Params(fwd=fwd_params(q, k, self.v, self.out, self.lse, scale, rows))
        params.fwd.num_m_blocks = -(-params.fwd.num_m_blocks // tile.cluster_size) * tile.cluster_size
        params.num_tiles = params.fwd.num_m_blocks * q.shape[0] * k.shape[2] * (1 if key.packs_gqa else group)
        params.num_heads_per_l2 = 3
        params.tile_counter = self.counter.data_ptr()
        for name, x in self.descales.items():
            setattr(params, name, Descale(x.data_ptr(), *x.stride()))
        self._set_maps(params, group if key.packs_gqa else None)
        return params

    def _set_maps(self, params: FwdSm90Params, packed_group: int | None) -> None:
        key, tile = self.spec.key, self.spec.tile
        params.tma_q[:] = map_of_queries(self.q, key.head_dim, packed_group)
        params.tma_o[:] = map_of_queries(self.out, key.head_dim_v, packed_group)
        rows = tile.block_n // tile.cluster_size
        params.tma_k[:] = map_of_keys(self.k, key.head_dim, rows)
        if key.v_is_col_major:
            params.fwd.v_row = self.v.stride(3)  # of a column
            params.tma_v[:] = map_of_columns(self.v, tile.block_n, key.head_dim_v // tile.cluster_size)
        else:
            params.tma_v[:] = map_of_keys(self.v, key.head_dim_v, rows)

    def allocations(self) -> list[tuple[int, int, str, bool]]:
        inputs = {"q": self.q, "k": self.k, "v": self.v, **self.descales}
        outputs = {"out": self.out, "lse": self.lse, "counter": self.counter}
        rows = [(x, name, False) for name, x in inputs.items()] + [(x, name, True) for name, x in outputs.items()]
        return [(x.data_ptr(), extent_bytes(x), name, is_writable) for x, name, is_writable in rows]


@functools.lru_cache(maxsize=4)
def loaded(text: str) -> ptxsim.Module:
    return ptxsim.load(text)


@dataclass(frozen=True)
class Sm90Ptx:
    """A kernel's PTX, perhaps changed, and how to launch it."""

    spec: KernelSpec
    text: str

    def run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        softmax_scale: float | None = None,
        descales: Mapping[str, Tensor] | None = None,
        out: Tensor | None = None,
        num_ctas: int = MANY_CTAS,
        **options: Any,
    ) -> tuple[Tensor, Tensor, ptxsim.Stats]:
        """(out, lse, stats); outputs are poisoned before, and the tile counter is found zero afterwards.

        At most `num_ctas` CTAs where the scheduler is persistent. Options go to ptxsim's launch.
        """
        key, tile = self.spec.key, self.spec.tile
        if out is None:
            out = torch.empty(*q.shape[:3], v.shape[3], dtype=torch_dtype(key.out_dtype.value if key.out_dtype else ""))
        out.fill_(float("nan"))
        lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), float("nan"))
        counter = torch.zeros(2, dtype=torch.int32)
        launch = Launch(self.spec, q, k, v, out, lse, counter, descales or {})
        params = launch.params(q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
        grid = params.num_tiles
        if tile.scheduler is not Scheduler.SINGLE:
            grid = max(min(grid, num_ctas) // tile.cluster_size, 1) * tile.cluster_size
        stats = loaded(self.text).launch(
            self.spec.name,
            grid,
            num_threads(self.spec),
            bytes(params),
            shared_bytes=smem_bytes(self.spec),
            device="h100",
            cluster=(tile.cluster_size, 1, 1),
            allocations=launch.allocations(),
            **options,
        )
        assert not counter.any(), f"the tile counter is {counter.tolist()}"
        return out, lse, stats


def ptx_of(spec: KernelSpec) -> Sm90Ptx:
    return Sm90Ptx(spec, built(spec, TARGET).ptx)


def op_of(spec: KernelSpec, **options: Any) -> Callable[[CheckCase, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """What run_check takes: the kernel under test; options as Sm90Ptx.run's."""

    def op(case: CheckCase, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, lse, _ = ptx_of(spec).run(
            q, k, v, softmax_scale=case.softmax_scale, descales=make_descales(case, q.device), **options
        )
        return out, lse

    return op
