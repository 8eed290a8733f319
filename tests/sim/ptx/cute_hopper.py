# SPDX-License-Identifier: Apache-2.0
"""Turns CUTLASS's CuTe tutorials wgmma_sm90.cu and wgmma_tma_sm90.cu into kernels that NVRTC compiles.

Nothing of the tutorials is kept here: their text is read from the installed nvidia-cutlass package when the tests run.
The device template stays as it is (only __global__ becomes __device__, and the tensor maps are passed by reference);
each host function's set-up of layouts becomes a function that the entry calls.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

VARIANTS = ("nt", "tn")
"""Both operands M- or N-major, or both K-major."""


def tutorial_text(name: str) -> str:
    """Source of one Hopper tutorial."""
    spec = importlib.util.find_spec("cutlass_library")
    assert spec is not None and spec.submodule_search_locations, "nvidia-cutlass is not installed"
    root = Path(next(iter(spec.submodule_search_locations)))
    return (root / "source" / "examples" / "cute" / "tutorial" / "hopper" / f"{name}.cu").read_text()


def _parts(name: str) -> tuple[str, dict[str, str]]:
    """The device template and the set-up text per variant."""
    text = tutorial_text(name)
    start = text.index("template <class ElementA,")
    end = text.index("// Setup params for a")
    device, count = re.subn(
        r"__global__ static\s+__launch_bounds__\([^\n]*\)\s+void", "__device__ void", text[start:end]
    )
    assert count == 1, "the tutorial's kernel looks different: adapt this extraction"
    device = re.sub(r"CUTLASS_GRID_CONSTANT (Tma[AB]) const", r"\1 const&", device)
    setups = {}
    for variant in VARIANTS:
        function = text[text.index(f"\ngemm_{variant}(") :]
        setups[variant] = function[function.index("// Define shapes") : function.index("// Setup and Launch")]
    return device, setups


_INCLUDES = """
#include <cute/tensor.hpp>
#include <cutlass/arch/barrier.h>
#include <cutlass/pipeline/sm90_pipeline.hpp>
using namespace cute;
using TA = cute::half_t; using TB = cute::half_t; using TC = cute::half_t;
"""


def wgmma_source() -> str:
    """Entries wgmma_nt and wgmma_tn, and wgmma_VARIANT_info, which writes shared bytes and threads."""
    device, setups = _parts("wgmma_sm90")
    return "\n".join([_INCLUDES, device, *(_wgmma_entry(name, text) for name, text in setups.items())])


def _wgmma_entry(variant: str, setup: str) -> str:
    return f"""
extern "C" __global__ void __launch_bounds__(128) wgmma_{variant}(int m, int n, int k, float alpha_value,
    TA const* A, int ldA, TB const* B, int ldB, float beta_value, TC* C, int ldC) {{
  TC alpha(alpha_value), beta(beta_value);
  {setup}
  gemm_device(prob_shape, cta_tiler, A, dA, sA, copyA, B, dB, sB, copyB, C, dC, tiled_mma, alpha, beta);
}}
extern "C" __global__ void wgmma_{variant}_info(int* out) {{
  int m = 0, n = 0, k = 0, ldA = 0, ldB = 0, ldC = 0;
  {setup}
  out[0] = int(sizeof(SharedStorage<TA, TB, decltype(sA), decltype(sB)>));
  out[1] = int(size(tiled_mma));
}}
"""


def tma_source() -> str:
    """Entries tma_nt and tma_tn, and tma_VARIANT_info, which writes shared bytes, threads and both tensor maps."""
    device, setups = _parts("wgmma_tma_sm90")
    return "\n".join([_INCLUDES, device, _MAP_INFO, *(_tma_entry(name, text) for name, text in setups.items())])


# Rank, then extents, byte strides and box of each dimension: what make_tma_copy_desc gives to the driver's encoder.
_MAP_INFO = """
template <class Tensor_, class Smem, class Tiler>
__device__ void write_map(Tensor_ const& gtensor, Smem const& smem, Tiler const& tiler, unsigned long long* out) {
  auto cta_v_tile = make_identity_layout(shape(gtensor)).compose(tiler);
  auto basis = cute::detail::construct_tma_gbasis<TA>(gtensor, get_nonswizzle_portion(smem), cta_v_tile);
  constexpr int rank_ = decltype(rank(basis))::value;
  cute::array<uint64_t, 5> extent = {1, 1, 1, 1, 1}, step = {0, 0, 0, 0, 0};
  cute::detail::fill_tma_gmem_shape_stride(gtensor, stride(basis), extent, step);
  out[0] = rank_;
  for (int i = 0; i < 5; ++i) out[1 + i] = extent[i], out[6 + i] = step[i] * sizeof(TA), out[11 + i] = 1;
  for_each(make_seq<rank_>{}, [&](auto i) { out[11 + i] = size<i>(basis); });
}
"""


def _tma_entry(variant: str, setup: str) -> str:
    params = "int m, int n, int k, TA const* A, int ldA, TB const* B, int ldB, int ldC"
    return f"""
__device__ auto setup_{variant}({params}) {{
  {setup}
  return cute::make_tuple(tmaA, tmaB);
}}
using Maps_{variant} = decltype(setup_{variant}(0, 0, 0, nullptr, 0, nullptr, 0, 0));
using MapA_{variant} = cute::remove_cvref_t<decltype(get<0>(Maps_{variant}{{}}))>;
using MapB_{variant} = cute::remove_cvref_t<decltype(get<1>(Maps_{variant}{{}}))>;
extern "C" __global__ void __launch_bounds__(128) tma_{variant}(int m, int n, int k, float alpha_value,
    TA const* A, int ldA, TB const* B, int ldB, float beta_value, TC* C, int ldC,
    const __grid_constant__ MapA_{variant} map_a, const __grid_constant__ MapB_{variant} map_b) {{
  TC alpha(alpha_value), beta(beta_value);
  {setup}
  gemm_device<decltype(prob_shape), decltype(cta_tiler), TA, decltype(sA), MapA_{variant}, TB, decltype(sB),
              MapB_{variant}>(prob_shape, cta_tiler, A, map_a, B, map_b, C, dC, tiled_mma, alpha, beta);
}}
extern "C" __global__ void tma_{variant}_info(int m, int n, int k, int ldA, int ldB, unsigned long long* out) {{
  int ldC = 0;
  TA const* A = nullptr; TB const* B = nullptr;
  {setup}
  out[0] = sizeof(SharedStorage<TA, TB, decltype(sA), decltype(sB)>);
  out[1] = size(tiled_mma);
  write_map(mA, sA(_,_,0), make_shape(bM,bK), out + 2);
  write_map(mB, sB(_,_,0), make_shape(bN,bK), out + 18);
}}
"""
