// SPDX-License-Identifier: Apache-2.0
// Named numbers that NVRTC's built-in headers do not define.
#pragma once

#include <cute/config.hpp>

namespace attnsmith {

static constexpr float kLn2 = 0.693147180559945309f;

// A function, because NVRTC has no infinity that is a constant expression.
CUTE_DEVICE float negative_infinity() { return __int_as_float(0xff800000); }

}  // namespace attnsmith
