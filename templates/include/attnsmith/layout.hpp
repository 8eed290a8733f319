// SPDX-License-Identifier: Apache-2.0
// Shared-memory layouts and register-tensor views that several kernels use. Not responsible for moving any data.
#pragma once

#include <cute/tensor.hpp>

namespace attnsmith {

// A (kRows, kCols) tile of 16-bit elements, row-major with an XOR swizzle on 16-byte chunks: the 8 rows that one
// ldmatrix phase reads at the same column fall into 8 different 16-byte bank groups, and so do the 8 chunks that
// 8 threads write with cp.async. A row of 64 elements is exactly the 128 bytes of all banks; head dims that are not
// a multiple of 64 use half rows, where two rows share the 128 bytes and 2 swizzle bits are enough.
template <int kRows, int kCols>
struct SmemTile {
  static_assert(kRows % 8 == 0, "a swizzle atom has 8 rows");
  static_assert(kCols % 32 == 0, "a swizzle atom has 32 or 64 columns");
  static constexpr int kAtomCols = kCols % 64 == 0 ? 64 : 32;
  static constexpr int kSwizzleBits = kAtomCols == 64 ? 3 : 2;
  static constexpr int kSize = kRows * kCols;

  using Atom = decltype(cute::composition(
      cute::Swizzle<kSwizzleBits, 3, 3>{},
      cute::Layout<cute::Shape<cute::_8, cute::Int<kAtomCols>>, cute::Stride<cute::Int<kAtomCols>, cute::_1>>{}));
  using Layout = decltype(cute::tile_to_shape(Atom{}, cute::Shape<cute::Int<kRows>, cute::Int<kCols>>{}));
};

// Accumulator fragment ((2,2),MMA_M,MMA_N) of m16n8 atoms -> (row=(2,MMA_M), col=(2,MMA_N)). A view: no register moves.
template <class Layout>
CUTE_HOST_DEVICE constexpr auto accumulator_rowcol(Layout const& acc_layout) {
  using namespace cute;
  static_assert(decltype(size<0>(acc_layout))::value == 4, "an m16n8 accumulator has 4 values per thread");
  auto l = logical_divide(acc_layout, Shape<_2>{});  // ((2,2),MMA_M,MMA_N): col pair first, then row half
  return make_layout(make_layout(get<0, 1>(l), get<1>(l)), make_layout(get<0, 0>(l), get<2>(l)));
}

}  // namespace attnsmith
