# SPDX-License-Identifier: Apache-2.0
"""CUDA C that NVRTC compiles: the compiler's own idioms and libdevice's long instruction sequences, against numpy."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from attnsmith.codegen.compile.nvrtc import compile_source
from attnsmith.tools import ptxsim

from tests.sim.ptx.builder import aligned_zeros

SOURCE = r"""
#include <cuda_fp16.h>
#define UNARY(name, type, expression) \
  extern "C" __global__ void name(type* out, const type* in, int n) { \
    int i = blockIdx.x * blockDim.x + threadIdx.x; \
    if (i < n) { type x = in[i]; out[i] = expression; } \
  }
UNARY(f_sin, float, sinf(x))          UNARY(f_exp, float, expf(x))       UNARY(f_log, float, logf(fabsf(x)))
UNARY(f_pow, float, powf(fabsf(x), 1.7f)) UNARY(f_mod, float, fmodf(x, 0.7f)) UNARY(f_tanh, float, tanhf(x))
UNARY(f_erf, float, erff(x))          UNARY(f_cbrt, float, cbrtf(x))     UNARY(f_div, float, x / 3.7f)
UNARY(d_exp, double, exp(x))          UNARY(d_log, double, log(fabs(x))) UNARY(d_atan, double, atan(x))
UNARY(d_sqrt, double, sqrt(fabs(x)))

struct Params { float* out; const float* in; int n; __half weights[3]; };
__constant__ float table[4] = {1.5f, -2.5f, 3.5f, -4.5f};

extern "C" __global__ void switch_on_lane(const Params p) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= p.n) return;
  float x = p.in[i], y;
  switch (i % 6) {
    case 0: y = x * 2; break;
    case 1: y = table[i % 4] * x;  // falls through
    case 2: y = x + 1; if (x > 0) y += table[i % 3]; break;
    case 3: { y = 0; for (int k = 0; k < i; ++k) { if (k % 3 == 1) continue; if (k > 20) break; y += x * k; } break; }
    case 4: y = __half2float(p.weights[i % 3]) - x; break;
    default: y = __half2float(__float2half(x));
  }
  p.out[i] = y;
}

extern "C" __global__ void integers(long long* out, const long long* in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  long long x = in[i];
  unsigned long long u = (unsigned long long)x;
  out[i] = x / 7 + x % 1000003 + (long long)(u / 12345678901ull) + __popcll(u) + __clzll(x) + __ffsll(x)
         + __brev((unsigned)x) + __mulhi((int)x, (int)(x >> 32)) + (long long)__umul64hi(u, u)
         + __byte_perm((unsigned)x, (unsigned)(x >> 32), 0x3715)
         + __funnelshift_l((unsigned)x, (unsigned)(x >> 32), 13);
}

extern "C" __global__ void local_array(int* out, const int* in) {
  int sorted[16];
  for (int k = 0; k < 16; ++k) sorted[k] = in[threadIdx.x * 16 + k];
  for (int a = 1; a < 16; ++a)
    for (int b = a; b > 0 && sorted[b - 1] > sorted[b]; --b) {
      int t = sorted[b]; sorted[b] = sorted[b - 1]; sorted[b - 1] = t;
    }
  for (int k = 0; k < 16; ++k) out[threadIdx.x * 16 + k] = sorted[k];
}

extern "C" __global__ void block_sum(float* out, const float* in, int n) {
  __shared__ float partial[32];
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += in[i];
  for (int offset = 16; offset; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0.0f;
    for (int offset = 16; offset; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 0) atomicAdd(out, sum);
  }
}
"""


@pytest.fixture(scope="module", params=["default", "lineinfo", "fast_math"])
def module(request: pytest.FixtureRequest) -> ptxsim.Module:
    extra = {"default": [], "lineinfo": ["-lineinfo"], "fast_math": ["-use_fast_math"]}[request.param]
    flags = [*extra, "--ptxas-options=-O0"]
    loaded = ptxsim.load(compile_source(SOURCE, "integers", target="sm_80", extra_flags=flags).ptx)
    loaded.is_fast = request.param == "fast_math"  # type: ignore[attr-defined]
    return loaded


FUNCTIONS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "f_sin": (np.sin, 2),
    "f_exp": (np.exp, 2),
    "f_log": (lambda x: np.log(np.abs(x)), 2),
    "f_pow": (lambda x: np.abs(x) ** np.float64(np.float32(1.7)), 4),
    "f_mod": (lambda x: np.fmod(x, np.float64(np.float32(0.7))), 0.5),
    "f_tanh": (np.tanh, 2),
    "f_erf": (np.vectorize(math.erf), 2),
    "f_cbrt": (np.cbrt, 1),
    "f_div": (lambda x: x / np.float64(np.float32(3.7)), 0.5),
    "d_exp": (np.exp, 1.5),
    "d_log": (lambda x: np.log(np.abs(x)), 1.5),
    "d_atan": (np.arctan, 2.5),
    "d_sqrt": (lambda x: np.sqrt(np.abs(x)), 0.5),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_math_function(module: ptxsim.Module, name: str) -> None:
    """Errors in ulp as the CUDA programming guide lists them (plus half an ulp of numpy's own)."""
    function, ulps = FUNCTIONS[name]
    dtype = np.float32 if name[0] == "f" else np.float64
    x = (np.random.default_rng(0).standard_normal(1000) * 3).astype(dtype)
    out = np.zeros_like(x)
    module.launch(name, 8, 128, [out, ptxsim.ReadOnly(x), 1000])
    want = function(x.astype(np.float64))
    error = np.abs(out.astype(np.float64) - want)
    if module.is_fast and dtype == np.float32:  # type: ignore[attr-defined]
        assert (error <= 2.0**-10 * np.maximum(np.abs(want), 1)).all()
    else:
        assert (error <= (ulps + 0.51) * np.spacing(np.abs(want).astype(dtype))).all(), float(error.max())


def test_switch_with_fall_through_loops_and_struct_parameters(module: ptxsim.Module) -> None:
    n = 200
    x = np.random.default_rng(1).standard_normal(n).astype(np.float32)
    out = np.zeros(n, np.float32)
    size = module.entry("switch_on_lane").params[0]["size"]
    block = out.ctypes.data.to_bytes(8, "little") + x.ctypes.data.to_bytes(8, "little") + n.to_bytes(4, "little")
    block += np.array([0.5, 1.5, 2.5], np.float16).tobytes()
    rows = [(out.ctypes.data, out.nbytes, "out", True), (x.ctypes.data, x.nbytes, "in", False)]
    module.launch("switch_on_lane", 4, 64, [block.ljust(size, b"\0")], allocations=rows)
    table = [1.5, -2.5, 3.5, -4.5]

    def expected(i: int) -> float:
        v = float(x[i])
        if i % 6 == 0:
            return 2 * v
        if i % 6 in (1, 2):
            return v + 1 + (table[i % 3] if v > 0 else 0)
        if i % 6 == 3:
            return sum(v * k for k in range(min(i, 21)) if k % 3 != 1)
        return [0.5, 1.5, 2.5][i % 3] - v if i % 6 == 4 else float(np.float16(x[i]))

    assert np.allclose(out, [expected(i) for i in range(n)], rtol=1e-5, atol=1e-5)


def test_integer_intrinsics_and_64_bit_division(module: ptxsim.Module) -> None:
    rng = np.random.default_rng(2)
    values = [
        int(v) >> int(s) for v, s in zip(rng.integers(-(2**63), 2**63, 300), rng.integers(0, 60, 300), strict=True)
    ]
    values += [0, 1, -1, 2**63 - 1, -(2**63), 7, -7]
    x, out = np.array(values, np.int64), np.zeros(len(values), np.int64)
    module.launch("integers", 5, 64, [out, ptxsim.ReadOnly(x), len(values)])

    def truncated(a: int, b: int) -> int:
        return abs(a) // b * (1 if a >= 0 else -1)

    def s32(v: int) -> int:
        return (v & 0xFFFFFFFF) - ((v & 0x80000000) << 1)

    def expected(v: int) -> int:
        u, low, high = v & (2**64 - 1), v & 0xFFFFFFFF, (v >> 32) & 0xFFFFFFFF
        source = u.to_bytes(8, "little")
        total = truncated(v, 7) + (v - truncated(v, 1000003) * 1000003) + u // 12345678901
        total += u.bit_count() + (64 - u.bit_length()) + ((u & -u).bit_length() if u else 0)
        total += int(f"{low:032b}"[::-1], 2) + (s32(low) * s32(high) >> 32) + (u * u >> 64)
        total += int.from_bytes(bytes(source[k] for k in (5, 1, 7, 3)), "little")
        total += (high << 13 | low >> 19) & 0xFFFFFFFF
        return (total + 2**63) % 2**64 - 2**63

    assert out.tolist() == [expected(v) for v in values]


def test_insertion_sort_in_local_memory(module: ptxsim.Module) -> None:
    data = np.random.default_rng(3).integers(-1000, 1000, (64, 16)).astype(np.int32)
    out = np.zeros_like(data)
    module.launch("local_array", 1, 64, [out, ptxsim.ReadOnly(data)])
    assert np.array_equal(out, np.sort(data, axis=1))


@pytest.mark.parametrize("threads", [32, 96, 256, 1024])
def test_block_reduction(module: ptxsim.Module, threads: int) -> None:
    x, out = np.random.default_rng(4).integers(-9, 9, 1000).astype(np.float32), aligned_zeros(1, np.float32)
    module.launch("block_sum", 2, threads, [out, ptxsim.ReadOnly(x), 1000])
    assert out[0] == 2 * x.sum()
