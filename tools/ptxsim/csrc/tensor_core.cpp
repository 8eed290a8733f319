// SPDX-License-Identifier: Apache-2.0
// Bulk conversion of tensor-core inputs.
#include "tensor_core.hpp"

namespace ptxsim {
namespace {

struct Fp8Table {
  float value[256];
  explicit Fp8Table(const FloatFormat& format) {
    for (u32 k = 0; k < 256; ++k) value[k] = static_cast<float>(decode_float(k, format));
  }
};

}  // namespace

void halves_to_floats(const u16* in, float* out, int n) {
  int k = 0;
#if defined(__F16C__) && defined(__AVX__)
  for (; k + 8 <= n; k += 8)
    _mm256_storeu_ps(out + k, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + k))));
#endif
  for (; k < n; ++k) out[k] = half_to_float(in[k]);
}

void bf16s_to_floats(const u16* in, float* out, int n) {
  for (int k = 0; k < n; ++k) out[k] = bf16_to_float(in[k]);
}

void e4m3s_to_floats(const u8* in, float* out, int n) {
  static const Fp8Table table(kE4m3);
  for (int k = 0; k < n; ++k) out[k] = table.value[in[k]];
}

void e5m2s_to_floats(const u8* in, float* out, int n) {
  static const Fp8Table table(kE5m2);
  for (int k = 0; k < n; ++k) out[k] = table.value[in[k]];
}

}  // namespace ptxsim
