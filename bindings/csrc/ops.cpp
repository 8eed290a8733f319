// SPDX-License-Identifier: Apache-2.0
// The torch-facing ops, against torch's stable ABI only: one binary serves every torch >= 2.11. Responsible for checking
// tensors, for copies that make them launch-ready, and for allocating results. Not responsible for kernels or devices.
// attnsmith::fwd and fwd_out are declared in Python (ops.py), which also implements them for CPU tensors.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <dlfcn.h>

#include <string>
#include <tuple>

#include "error.hpp"
#include "forward.hpp"

namespace attnsmith {

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t kAlignElements = 8;  // 16 bytes of a 16-bit type: one cp.async

std::string shape_str(Tensor const& x) {
  std::string text = "(";
  for (int64_t i = 0; i < x.dim(); ++i) text += (i ? ", " : "") + std::to_string(x.size(i));
  return text + ")";
}

DType to_dtype(Tensor const& x, char const* name) {
  ScalarType const type = x.scalar_type();
  if (type == ScalarType::Half) return DType::kFp16;
  if (type == ScalarType::BFloat16) return DType::kBf16;
  fail("attnsmith::fwd", std::string(name) + " of another dtype", "float16, bfloat16", "Convert q, k and v.");
}

void require(bool condition, char const* what, Tensor const& q, Tensor const& k, Tensor const& v) {
  if (condition) return;
  fail("attnsmith::fwd", "q " + shape_str(q) + ", k " + shape_str(k) + ", v " + shape_str(v), what,
       "Call it through attnsmith.flash_attn_func, which names the tensor.");
}

DType check_inputs(Tensor const& q, Tensor const& k, Tensor const& v) {
  require(q.dim() == 4 && k.dim() == 4 && v.dim() == 4, "4-D (batch, seqlen, nheads, head_dim)", q, k, v);
  require(q.size(0) == k.size(0) && q.size(0) == v.size(0), "one batch size", q, k, v);
  require(k.size(1) == v.size(1) && k.size(2) == v.size(2), "k and v of one seqlen and one number of heads", q, k, v);
  require(q.size(3) == k.size(3), "q and k of one head_dim", q, k, v);
  for (Tensor const* x : {&q, &v}) {
    require(x->size(3) >= 1 && x->size(3) <= kMaxHeadDim, "head dims from 1 to 256", q, k, v);
  }
  require(q.size(2) == 0 || (k.size(2) > 0 && q.size(2) % k.size(2) == 0), "nheads_q a multiple of nheads_k", q, k, v);
  bool const same_device = q.is_cuda() == k.is_cuda() && q.is_cuda() == v.is_cuda() &&
                           q.get_device_index() == k.get_device_index() && q.get_device_index() == v.get_device_index();
  require(same_device, "tensors of one device", q, k, v);
  DType const dtype = to_dtype(q, "q");
  require(to_dtype(k, "k") == dtype && to_dtype(v, "v") == dtype, "tensors of one dtype", q, k, v);
  return dtype;
}

int64_t round_up(int64_t value) { return (value + kAlignElements - 1) / kAlignElements * kAlignElements; }

// What a kernel can address: contiguous rows of whole 16-byte units, every row aligned. The stride of a dim of size 1
// means nothing.
bool is_launch_ready(Tensor const& x) {
  if (x.numel() == 0) return x.size(3) % kAlignElements == 0;
  if (x.size(3) % kAlignElements != 0 || x.stride(3) != 1) return false;
  for (int64_t i = 0; i < 3; ++i) {
    if (x.size(i) > 1 && x.stride(i) % kAlignElements != 0) return false;
  }
  return reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 == 0;
}

Tensor empty_padded(Tensor const& like, int64_t head_dim) {
  int64_t const sizes[] = {like.size(0), like.size(1), like.size(2), round_up(head_dim)};
  return torch::stable::new_empty(like, {sizes, 4});
}

// `x` itself where a kernel can read it, else a copy whose head_dim is padded with zeros to a multiple of 8.
Tensor launch_ready(Tensor const& x) {
  if (is_launch_ready(x)) return x;
  int64_t const head_dim = x.size(3);
  Tensor padded = empty_padded(x, head_dim);
  int64_t const padding = padded.size(3) - head_dim;
  Tensor body = padding > 0 ? torch::stable::narrow(padded, 3, 0, head_dim) : padded;
  torch::stable::copy_(body, x);
  if (padding > 0) {
    Tensor tail = torch::stable::narrow(padded, 3, head_dim, padding);
    torch::stable::zero_(tail);
  }
  return padded;
}

TensorView view_of(Tensor const& x) {
  auto stride = [&x](int64_t i) { return x.size(i) > 1 ? x.stride(i) : 0; };
  return TensorView{x.numel() > 0 ? x.data_ptr() : nullptr,
                    x.size(0),
                    x.size(1),
                    x.size(2),
                    x.size(3),
                    TensorStrides{stride(0), stride(1), stride(2)}};
}

// Current stream of a CUDA device. Resolved at run time, so that this library also loads into a CPU build of torch.
void* current_stream(int device_index) {
  using CurrentStream = int32_t (*)(int32_t, void**);
  static CurrentStream const function = [] {
    char const* symbol = "aoti_torch_get_current_cuda_stream";
    void* found = dlsym(RTLD_DEFAULT, symbol);
    if (found == nullptr) {
      if (void* torch_cuda = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD)) found = dlsym(torch_cuda, symbol);
    }
    return reinterpret_cast<CurrentStream>(found);
  }();
  void* stream = nullptr;
  if (function == nullptr || function(device_index, &stream) != 0) {
    fail("launch on cuda:" + std::to_string(device_index), "a torch without a CUDA stream", "a CUDA build of torch >= 2.11",
         "Install such a torch.");
  }
  return stream;
}

void launch(FwdCall const& call, Tensor const& q) {
  last_launch() = {};
  if (!call.has_work()) return;
  if (q.is_cuda()) {
    int const index = q.get_device_index();
    run_forward(call, cuda_device(index), current_stream(index));
  } else {
    run_forward(call, sim_device(), nullptr);
  }
}

// `out` is launch-ready and as wide as v padded to a multiple of 8.
Tensor run(Tensor const& q, Tensor const& k, Tensor const& v, double softmax_scale, bool causal, DType dtype,
           Tensor const& out) {
  Tensor const ready_q = launch_ready(q), ready_k = launch_ready(k), ready_v = launch_ready(v);
  int64_t const lse_sizes[] = {q.size(0), q.size(2), q.size(1)};
  Tensor lse = torch::stable::new_empty(q, {lse_sizes, 3}, ScalarType::Float);
  FwdCall call{};
  call.dtype = dtype;
  call.q = view_of(ready_q);
  call.k = view_of(ready_k);
  call.v = view_of(ready_v);
  call.out = view_of(out);
  call.lse = static_cast<float*>(lse.data_ptr());
  call.softmax_scale = softmax_scale;
  call.is_causal = causal;
  launch(call, q);
  return lse;
}

// Results: out (b, sq, h, dv), a slice of rows of a multiple of 8 elements where dv is not one; lse (b, h, sq) fp32.
std::tuple<Tensor, Tensor> fwd(Tensor const& q, Tensor const& k, Tensor const& v, double softmax_scale, bool causal) {
  DType const dtype = check_inputs(q, k, v);
  Tensor out = empty_padded(q, v.size(3));
  Tensor lse = run(q, k, v, softmax_scale, causal, dtype, out);
  if (out.size(3) != v.size(3)) out = torch::stable::narrow(out, 3, 0, v.size(3));
  return {out, lse};
}

// As fwd, into `out`, which may have any strides; returns lse.
Tensor fwd_out(Tensor const& q, Tensor const& k, Tensor const& v, double softmax_scale, bool causal, Tensor out) {
  DType const dtype = check_inputs(q, k, v);
  bool const fits = out.dim() == 4 && out.size(0) == q.size(0) && out.size(1) == q.size(1) &&
                    out.size(2) == q.size(2) && out.size(3) == v.size(3) && out.is_cuda() == q.is_cuda() &&
                    out.get_device_index() == q.get_device_index() && out.scalar_type() == q.scalar_type();
  if (!fits) {
    fail("attnsmith::fwd_out", "out " + shape_str(out), "q's batch, seqlen, nheads, dtype and device, v's head_dim",
         "Allocate out accordingly.");
  }
  if (is_launch_ready(out)) return run(q, k, v, softmax_scale, causal, dtype, out);
  Tensor staged = empty_padded(q, v.size(3));
  Tensor lse = run(q, k, v, softmax_scale, causal, dtype, staged);
  torch::stable::copy_(out, torch::stable::narrow(staged, 3, 0, v.size(3)));
  return lse;
}

}  // namespace

}  // namespace attnsmith

STABLE_TORCH_LIBRARY_FRAGMENT(attnsmith, m) {
  m.def("simulated_fwd(Tensor q, Tensor k, Tensor v, float softmax_scale, bool causal) -> (Tensor, Tensor)");
  m.def(
      "simulated_fwd_out(Tensor q, Tensor k, Tensor v, float softmax_scale, bool causal, Tensor(a!) out) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(attnsmith, CPU, m) {
  m.impl("simulated_fwd", TORCH_BOX(&attnsmith::fwd));
  m.impl("simulated_fwd_out", TORCH_BOX(&attnsmith::fwd_out));
}

STABLE_TORCH_LIBRARY_IMPL(attnsmith, CUDA, m) {
  m.impl("fwd", TORCH_BOX(&attnsmith::fwd));
  m.impl("fwd_out", TORCH_BOX(&attnsmith::fwd_out));
}
