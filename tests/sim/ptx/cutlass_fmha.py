# SPDX-License-Identifier: Apache-2.0
"""Turns CUTLASS's example 88_hopper_fmha (warp-specialized forward attention) into a kernel that NVRTC compiles.

Nothing of the example is kept here: its headers are read from the installed nvidia-cutlass package when the tests run.
The parameter block that the example's host code makes is made by a second entry, `info`; only the tensor maps are left
to the caller.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path


def include_flags() -> list[str]:
    """Where the example's headers are."""
    spec = importlib.util.find_spec("cutlass_library")
    assert spec is not None and spec.submodule_search_locations, "nvidia-cutlass is not installed"
    root = Path(next(iter(spec.submodule_search_locations))) / "source"
    return [f"-I{root / 'examples' / '88_hopper_fmha'}", f"-I{root / 'tools' / 'util' / 'include'}"]


# What the example takes from the host's standard library.
_STANDARD = """
#include <cuda/std/type_traits>
#include <cuda/std/utility>
#define INFINITY __int_as_float(0x7f800000)
namespace std {
using cuda::std::conditional_t; using cuda::std::is_pointer_v; using cuda::std::void_t;
inline float sqrt(int x) { return sqrtf(float(x)); }
inline float exp(double x) { return expf(float(x)); }
inline float log2(float x) { return log2f(x); }
template <class T> constexpr T const& min(T const& a, T const& b) { return b < a ? b : a; }
}
"""

SOURCE = (
    _STANDARD
    + """
#include <cute/tensor.hpp>
#include <cutlass/numeric_types.h>
#include <cutlass/gemm/dispatch_policy.hpp>
#include "kernel/fmha_kernel_builder.hpp"
#include "collective/fmha_fusion.hpp"
using namespace cute;
using Strides = cute::tuple<int, _1, cute::tuple<int, int>>;
using Kernel = typename cutlass::fmha::kernel::FmhaBuilder<
    cutlass::half_t, float, float, Shape<_128, _128, _64>, Strides, Strides, Strides,
    cutlass::fmha::collective::DefaultFusion, cutlass::gemm::KernelTmaWarpSpecializedCooperative>::Kernel;

extern "C" __global__ void __launch_bounds__(384, 1) fmha(const __grid_constant__ Kernel::Params params) {
  extern __shared__ char smem[];
  Kernel kernel;
  kernel(params, smem);
}

template <class Map> struct Bits;
template <class Op, class Count, class... Rest, class T>
struct Bits<Copy_Atom<Copy_Traits<Op, Count, Rest...>, T>> { static constexpr unsigned value = Count::value; };
template <class Atom, class L, class T> struct Bits<TiledCopy<Atom, L, T>> : Bits<Atom> {};

// facts: bytes of the parameters and of shared memory, then per tensor map its offset and the bits that one copy moves,
// last the offset of the pointer to the log-sum-exps.
extern "C" __global__ void info(int b, int h, int q, int kv, int d, void* out, unsigned* facts) {
  Kernel::Arguments a{};
  Strides sq = make_stride(h * d, _1{}, make_stride(q * h * d, d));
  Strides sk = make_stride(h * d, _1{}, make_stride(kv * h * d, d));
  a.problem_size = make_tuple(b, h, q, kv, d);
  a.mainloop.dQ = sq, a.mainloop.dK = sk, a.mainloop.dV = sk, a.epilogue.dO = sq;
  a.epilogue.dLSE = make_stride(_1{}, make_stride(h * q, q));
  Kernel::Params p = Kernel::to_underlying_arguments(a, nullptr);
  *reinterpret_cast<Kernel::Params*>(out) = p;
  facts[0] = sizeof(Kernel::Params), facts[1] = Kernel::SharedStorageSize;
  unsigned at = 2;
  auto note = [&](auto const& map) {
    facts[at++] = (char const*)map.get_tma_descriptor() - (char const*)&p;
    facts[at++] = Bits<cute::remove_cvref_t<decltype(map)>>::value;
  };
  note(p.mainloop.tma_load_q), note(p.mainloop.tma_load_k), note(p.mainloop.tma_load_v);
  note(p.epilogue.epilogue_TMA.tma_store_d);
  facts[at] = (char const*)&p.epilogue.ptr_LSE - (char const*)&p;
}
"""
)
