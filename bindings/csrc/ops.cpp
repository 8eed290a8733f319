// SPDX-License-Identifier: Apache-2.0
// The torch-facing ops, against torch's stable ABI only: one binary serves every torch >= 2.11. Responsible for checking
// tensors, for copies that make them launch-ready, and for allocating results. Not responsible for kernels or devices.
// attnsmith::fwd and fwd_out are declared in Python (ops.py), which also implements them for CPU tensors.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <dlfcn.h>

#include <optional>
#include <string>
#include <tuple>

#include "error.hpp"
#include "forward.hpp"
#include "params_sm90.hpp"

namespace attnsmith {

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t kAlignBytes = 16;  // one cp.async, or TMA's unit

// What of a call is no tensor that it reads or writes as a matrix.
struct Options {
  double softmax_scale;
  bool is_causal;
  std::optional<Tensor> q_descale, k_descale, v_descale;
  std::optional<bool> pack_gqa;
};

std::string shape_str(Tensor const& x) {
  std::string text = "(";
  for (int64_t i = 0; i < x.dim(); ++i) text += (i ? ", " : "") + std::to_string(x.size(i));
  return text + ")";
}

DType to_dtype(ScalarType type, char const* name) {
  if (type == ScalarType::Half) return DType::kFp16;
  if (type == ScalarType::BFloat16) return DType::kBf16;
  if (type == ScalarType::Float8_e4m3fn) return DType::kE4m3;
  if (type == ScalarType::Float8_e5m2) return DType::kE5m2;
  fail("attnsmith::fwd", std::string(name) + " of another dtype", "float16, bfloat16, float8_e4m3fn, float8_e5m2",
       "Convert q, k and v.");
}

ScalarType to_scalar_type(DType dtype) { return dtype == DType::kFp16 ? ScalarType::Half : ScalarType::BFloat16; }

// The output's type: `asked`, else the inputs' where that is a 16-bit type, else bf16.
DType to_out_dtype(std::optional<ScalarType> asked, DType dtype) {
  DType const standard = is_fp8(dtype) ? DType::kBf16 : dtype;
  DType const out_dtype = asked.has_value() ? to_dtype(*asked, "out") : standard;
  if (is_fp8(out_dtype) || (!is_fp8(dtype) && out_dtype != dtype)) {
    fail("attnsmith::fwd", std::string("an output of ") + to_string(out_dtype) + " for inputs of " + to_string(dtype),
         is_fp8(dtype) ? "fp16, bf16" : to_string(dtype), "Leave the output's dtype out, and convert the result.");
  }
  return out_dtype;
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
  DType const dtype = to_dtype(q.scalar_type(), "q");
  require(k.scalar_type() == q.scalar_type() && v.scalar_type() == q.scalar_type(), "tensors of one dtype", q, k, v);
  return dtype;
}

DescaleView descale_of(std::optional<Tensor> const& x, char const* name, Tensor const& k, DType dtype) {
  if (!x.has_value()) return {};
  bool const fits = is_fp8(dtype) && x->scalar_type() == ScalarType::Float && x->dim() == 2 &&
                    x->size(0) == k.size(0) && x->size(1) == k.size(2) && x->is_cuda() == k.is_cuda() &&
                    x->get_device_index() == k.get_device_index();
  if (!fits) {
    fail("attnsmith::fwd", std::string(name) + " " + shape_str(*x) + " for inputs of " + to_string(dtype),
         "float32 (batch, nheads_k) on k's device, with inputs of an 8-bit type", "Pass such a tensor, or None for 1.");
  }
  return {x->numel() > 0 ? static_cast<float const*>(x->data_ptr()) : nullptr, x->stride(0), x->stride(1)};
}

// Elements of a 16-byte unit.
int64_t unit_of(Tensor const& x) { return kAlignBytes / static_cast<int64_t>(x.element_size()); }

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

bool is_aligned(Tensor const& x, int64_t dim) {
  return x.size(dim) <= 1 || x.stride(dim) % unit_of(x) == 0;  // the stride of a dim of size 1 means nothing
}

bool is_pointer_aligned(Tensor const& x) { return reinterpret_cast<uintptr_t>(x.data_ptr()) % kAlignBytes == 0; }

// What a kernel can address: contiguous rows of whole 16-byte units, every row aligned.
bool is_launch_ready(Tensor const& x) {
  bool const has_whole_rows = x.size(3) % unit_of(x) == 0;
  if (x.numel() == 0 || !has_whole_rows) return has_whole_rows;
  return x.stride(3) == 1 && is_aligned(x, 0) && is_aligned(x, 1) && is_aligned(x, 2) && is_pointer_aligned(x);
}

// v of an 8-bit type whose keys are contiguous: kernels read it as it is.
bool is_launch_ready_col_major(Tensor const& v) {
  if (v.element_size() != 1 || v.numel() == 0 || v.size(1) == 1 || v.size(3) == 1) return false;
  return v.stride(1) == 1 && v.stride(3) != 1 && is_aligned(v, 0) && is_aligned(v, 2) && is_aligned(v, 3) &&
         is_pointer_aligned(v);
}

// Rows of `dtype`, or of like's, padded to whole units.
Tensor empty_padded(Tensor const& like, int64_t head_dim, std::optional<ScalarType> dtype = std::nullopt) {
  int64_t const unit = dtype.has_value() ? kAlignBytes / 2 : unit_of(like);  // a dtype is the output's: 16-bit
  int64_t const sizes[] = {like.size(0), like.size(1), like.size(2), round_up(head_dim, unit)};
  return torch::stable::new_empty(like, {sizes, 4}, dtype);
}

// A copy of `x` whose head_dim is padded with zeros to whole units.
Tensor padded_copy(Tensor const& x) {
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
                    TensorStrides{stride(0), stride(1), stride(2)},
                    x.size(3) > 1 && x.numel() > 0 ? x.stride(3) : 1};
}

// `x` itself where a kernel can read it, else a copy. 8-bit types have no kernel without TMA, so what it cannot address
// is copied too.
Tensor launch_ready(Tensor const& x) {
  bool const is_ready = is_launch_ready(x) || is_launch_ready_col_major(x);
  if (is_ready && (x.element_size() != 1 || fits_tma(view_of(x), 1))) return x;
  return padded_copy(x);
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

// `out` is launch-ready and as wide as v padded to whole units.
Tensor run(Tensor const& q, Tensor const& k, Tensor const& v, Options const& options, DType dtype, DType out_dtype,
           Tensor const& out) {
  Tensor const ready_q = launch_ready(q), ready_k = launch_ready(k), ready_v = launch_ready(v);
  int64_t const lse_sizes[] = {q.size(0), q.size(2), q.size(1)};
  Tensor lse = torch::stable::new_empty(q, {lse_sizes, 3}, ScalarType::Float);
  FwdCall call{};
  call.dtype = dtype;
  call.out_dtype = out_dtype;
  call.q = view_of(ready_q);
  call.k = view_of(ready_k);
  call.v = view_of(ready_v);
  call.out = view_of(out);
  call.lse = static_cast<float*>(lse.data_ptr());
  call.q_descale = descale_of(options.q_descale, "q_descale", k, dtype);
  call.k_descale = descale_of(options.k_descale, "k_descale", k, dtype);
  call.v_descale = descale_of(options.v_descale, "v_descale", k, dtype);
  call.softmax_scale = options.softmax_scale;
  call.is_causal = options.is_causal;
  if (options.pack_gqa.has_value()) call.pack_gqa = *options.pack_gqa ? PackGqa::kAlways : PackGqa::kNever;
  launch(call, q);
  return lse;
}

// Results: out (b, sq, h, dv), a slice of rows of a multiple of 8 elements where dv is not one; lse (b, h, sq) fp32.
std::tuple<Tensor, Tensor> fwd(Tensor const& q, Tensor const& k, Tensor const& v, double softmax_scale, bool causal,
                               std::optional<Tensor> q_descale, std::optional<Tensor> k_descale,
                               std::optional<Tensor> v_descale, std::optional<ScalarType> out_dtype,
                               std::optional<bool> pack_gqa) {
  DType const dtype = check_inputs(q, k, v);
  DType const result_dtype = to_out_dtype(out_dtype, dtype);
  Tensor out = empty_padded(q, v.size(3), to_scalar_type(result_dtype));
  Options const options{softmax_scale, causal, q_descale, k_descale, v_descale, pack_gqa};
  Tensor lse = run(q, k, v, options, dtype, result_dtype, out);
  if (out.size(3) != v.size(3)) out = torch::stable::narrow(out, 3, 0, v.size(3));
  return {out, lse};
}

// As fwd, into `out`, which may have any strides; returns lse.
Tensor fwd_out(Tensor const& q, Tensor const& k, Tensor const& v, double softmax_scale, bool causal, Tensor out,
               std::optional<Tensor> q_descale, std::optional<Tensor> k_descale, std::optional<Tensor> v_descale,
               std::optional<bool> pack_gqa) {
  DType const dtype = check_inputs(q, k, v);
  DType const out_dtype = to_out_dtype(out.scalar_type(), dtype);
  bool const fits = out.dim() == 4 && out.size(0) == q.size(0) && out.size(1) == q.size(1) &&
                    out.size(2) == q.size(2) && out.size(3) == v.size(3) && out.is_cuda() == q.is_cuda() &&
                    out.get_device_index() == q.get_device_index();
  if (!fits) {
    fail("attnsmith::fwd_out", "out " + shape_str(out), "q's batch, seqlen, nheads and device, v's head_dim",
         "Allocate out accordingly.");
  }
  Options const options{softmax_scale, causal, q_descale, k_descale, v_descale, pack_gqa};
  bool const is_direct = is_launch_ready(out) && (!is_fp8(dtype) || fits_tma(view_of(out), num_bytes(out_dtype)));
  if (is_direct) return run(q, k, v, options, dtype, out_dtype, out);
  Tensor staged = empty_padded(q, v.size(3), to_scalar_type(out_dtype));
  Tensor lse = run(q, k, v, options, dtype, out_dtype, staged);
  torch::stable::copy_(out, torch::stable::narrow(staged, 3, 0, v.size(3)));
  return lse;
}

}  // namespace

}  // namespace attnsmith

STABLE_TORCH_LIBRARY_FRAGMENT(attnsmith, m) {
  m.def(
      "simulated_fwd(Tensor q, Tensor k, Tensor v, float softmax_scale, bool causal, *, Tensor? q_descale=None, "
      "Tensor? k_descale=None, Tensor? v_descale=None, ScalarType? out_dtype=None, bool? pack_gqa=None) -> "
      "(Tensor, Tensor)");
  m.def(
      "simulated_fwd_out(Tensor q, Tensor k, Tensor v, float softmax_scale, bool causal, Tensor(a!) out, *, "
      "Tensor? q_descale=None, Tensor? k_descale=None, Tensor? v_descale=None, bool? pack_gqa=None) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(attnsmith, CPU, m) {
  m.impl("simulated_fwd", TORCH_BOX(&attnsmith::fwd));
  m.impl("simulated_fwd_out", TORCH_BOX(&attnsmith::fwd_out));
}

STABLE_TORCH_LIBRARY_IMPL(attnsmith, CUDA, m) {
  m.impl("fwd", TORCH_BOX(&attnsmith::fwd));
  m.impl("fwd_out", TORCH_BOX(&attnsmith::fwd_out));
}
