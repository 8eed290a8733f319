// SPDX-License-Identifier: Apache-2.0
// Implements capi.h: translation of plain structs, and of exceptions into a status. No logic of its own.
#include "capi.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "device.hpp"
#include "dispatch.hpp"
#include "error.hpp"
#include "forward.hpp"
#include "tensor_map.hpp"

namespace {

constexpr int kAbiVersion = 2;

thread_local std::string last_error;
thread_local std::string json;

template <typename Body>
int guarded(Body&& body) {
  try {
    body();
    return 0;
  } catch (std::exception const& error) {
    last_error = error.what();
    return 1;
  }
}

attnsmith::TensorView view_of(attnsmith_tensor const& x) {
  return attnsmith::TensorView{
      x.ptr, x.batch, x.seqlen, x.nheads, x.head_dim, {x.stride_batch, x.stride_row, x.stride_head}, x.stride_head_dim};
}

attnsmith::DescaleView view_of(attnsmith_descale const& x) { return {x.ptr, x.stride_batch, x.stride_head}; }

void require_aligned(attnsmith_tensor const& x, char const* name, attnsmith::DType dtype) {
  int64_t const unit = 16 / static_cast<int64_t>(attnsmith::num_bytes(dtype));
  bool const is_col_major = x.stride_head_dim != 1;
  bool const is_aligned = (is_col_major ? x.stride_head_dim % unit == 0 && x.stride_row == 1
                                        : x.head_dim % unit == 0 && x.stride_row % unit == 0) &&
                          x.stride_batch % unit == 0 && x.stride_head % unit == 0 &&
                          reinterpret_cast<uintptr_t>(x.ptr) % 16 == 0;
  if (is_aligned) return;
  attnsmith::fail("attnsmith_forward", std::string(name) + " that is not made of aligned rows",
                  "a 16-byte aligned pointer, head_dim and strides that are multiples of " + std::to_string(unit),
                  "Copy it.");
}

void require(bool condition, char const* got, char const* allowed, char const* action) {
  if (!condition) attnsmith::fail("attnsmith_forward", got, allowed, action);
}

void require_types(attnsmith_fwd_args const& args) {
  auto const dtype = static_cast<attnsmith::DType>(args.dtype);
  auto const out_dtype = static_cast<attnsmith::DType>(args.out_dtype);
  bool const is_fp8 = attnsmith::is_fp8(dtype);
  bool const has_descale =
      args.q_descale.ptr != nullptr || args.k_descale.ptr != nullptr || args.v_descale.ptr != nullptr;
  require(is_fp8 ? !attnsmith::is_fp8(out_dtype) : out_dtype == dtype, "another out_dtype",
          "dtype; fp16 or bf16 where dtype is an 8-bit type", "Set out_dtype.");
  require(is_fp8 || !has_descale, "a descale", "NULL, unless dtype is an 8-bit type", "Scale the tensors.");
  require(args.q.stride_head_dim == 1 && args.k.stride_head_dim == 1 && args.out.stride_head_dim == 1 &&
              (is_fp8 || args.v.stride_head_dim == 1),
          "a head_dim that is not contiguous", "stride_head_dim 1, unless for v of an 8-bit type", "Copy the tensor.");
  require(args.pack_gqa >= -1 && args.pack_gqa <= 1, "another pack_gqa", "-1, 0, 1", "Set pack_gqa to -1.");
}

std::string entry_json(attnsmith::Kernel const& kernel) {
  auto number = [](char const* name, uint64_t value) {
    return std::string("\"") + name + "\": " + std::to_string(value);
  };
  return "{\"kernel\": \"" + kernel.name + "\", \"target\": \"" + kernel.target.str() + "\", \"source\": \"" +
         attnsmith::to_string(kernel.source) + "\", " + number("packed_key", kernel.packed_key) + ", " +
         number("block_m", static_cast<uint64_t>(kernel.tile.block_m)) + ", " +
         number("block_n", static_cast<uint64_t>(kernel.tile.block_n)) + ", " +
         number("num_warps", static_cast<uint64_t>(kernel.tile.num_warps)) + ", " +
         number("num_stages", static_cast<uint64_t>(kernel.tile.num_stages)) + ", " +
         number("scheduler", static_cast<uint64_t>(kernel.tile.scheduler)) + ", " +
         number("cluster_size", static_cast<uint64_t>(kernel.tile.cluster_size)) + ", " +
         number("ctas_per_sm", static_cast<uint64_t>(kernel.tile.ctas_per_sm)) + ", " +
         number("smem_bytes", kernel.smem_bytes) + ", " + number("num_threads", kernel.num_threads) + ", \"priority\": " +
         std::to_string(kernel.priority) + ", " + number("max_seqlen_q", static_cast<uint64_t>(kernel.max_seqlen_q)) +
         ", " + number("cubin_bytes", kernel.cubin.size()) + ", " + number("ptx_bytes", kernel.ptx.size()) + "}";
}

}  // namespace

extern "C" {

int attnsmith_abi_version(void) { return kAbiVersion; }

const char* attnsmith_last_error(void) { return last_error.c_str(); }

int attnsmith_register_kernel(const attnsmith_kernel_desc* desc) {
  return guarded([desc] {
    auto kernel = std::make_unique<attnsmith::Kernel>();
    kernel->name = desc->name;
    kernel->packed_key = desc->packed_key;
    kernel->target = attnsmith::Target::parse(desc->target);
    kernel->key = attnsmith::unpack_key(desc->packed_key);
    kernel->tile = {desc->block_m,
                    desc->block_n,
                    desc->num_warps,
                    desc->num_stages,
                    static_cast<attnsmith::Scheduler>(desc->scheduler),
                    std::max(desc->cluster_size, 1),
                    std::max(desc->ctas_per_sm, 1)};
    kernel->smem_bytes = desc->smem_bytes;
    kernel->num_threads = desc->num_threads;
    kernel->priority = desc->priority;
    kernel->max_seqlen_q = desc->max_seqlen_q;
    kernel->source = static_cast<attnsmith::Source>(desc->source);
    if (desc->cubin_bytes > 0) kernel->cubin.assign(static_cast<char const*>(desc->cubin), desc->cubin_bytes);
    if (desc->ptx_bytes > 0) kernel->ptx.assign(desc->ptx, desc->ptx_bytes);
    attnsmith::KernelTable::instance().add(std::move(kernel));
  });
}

void attnsmith_clear_kernels(void) {
  attnsmith::KernelTable::instance().clear();
  attnsmith::forget_asked_problems();
}

void attnsmith_set_miss_handler(attnsmith_miss_handler handler) { attnsmith::set_miss_handler(handler); }

const char* attnsmith_dispatch_table(void) {
  json = "[";
  for (attnsmith::Kernel const* kernel : attnsmith::KernelTable::instance().all()) {
    if (json.size() > 1) json += ", ";
    json += entry_json(*kernel);
  }
  json += "]";
  return json.c_str();
}

const char* attnsmith_last_launch(void) {
  attnsmith::LastLaunch const& last = attnsmith::last_launch();
  if (last.kernel == nullptr) return "{}";
  json = "{\"kernel\": \"" + last.kernel->name + "\", \"grid\": " + std::to_string(last.grid) +
         ", \"device_index\": " + std::to_string(last.device_index);
  if (last.device_index < 0) json += ", " + attnsmith::last_sim_report();
  json += "}";
  return json.c_str();
}

uint64_t attnsmith_num_encoded_tensor_maps(void) { return attnsmith::num_encoded_tensor_maps(); }

void attnsmith_forget_last_launch(void) { attnsmith::last_launch() = {}; }

const char* attnsmith_take_sim_error(void) {
  json = attnsmith::take_sim_error();
  return json.c_str();
}

int attnsmith_set_simulation(const attnsmith_sim_options* options) {
  return guarded([options] {
    attnsmith::SimOptions& current = attnsmith::sim_options();
    if (options == nullptr || options->library == nullptr || *options->library == '\0') {
      current = attnsmith::SimOptions{};
      return;
    }
    attnsmith::SimOptions next;
    next.library = options->library;
    next.device = options->device;
    next.limits = {attnsmith::Target::parse(options->target), options->max_smem_bytes, std::max(options->num_sms, 1)};
    next.seed = options->seed;
    next.schedule = options->schedule;
    next.async_mode = options->async_mode;
    next.num_threads = options->num_threads;
    next.step_budget = options->step_budget;
    current = std::move(next);
  });
}

int attnsmith_forward(const attnsmith_fwd_args* args, int device_index, void* stream) {
  return guarded([=] {
    attnsmith::FwdCall call{};
    call.dtype = static_cast<attnsmith::DType>(args->dtype);
    call.out_dtype = static_cast<attnsmith::DType>(args->out_dtype);
    require_types(*args);
    require_aligned(args->q, "q", call.dtype);
    require_aligned(args->k, "k", call.dtype);
    require_aligned(args->v, "v", call.dtype);
    require_aligned(args->out, "out", call.out_dtype);
    call.q = view_of(args->q);
    call.k = view_of(args->k);
    call.v = view_of(args->v);
    call.out = view_of(args->out);
    call.lse = args->lse;
    call.softmax_scale = args->softmax_scale;
    call.is_causal = args->causal != 0;
    call.pack_gqa = static_cast<attnsmith::PackGqa>(args->pack_gqa);
    call.q_descale = view_of(args->q_descale);
    call.k_descale = view_of(args->k_descale);
    call.v_descale = view_of(args->v_descale);
    attnsmith::Device& device = device_index < 0 ? attnsmith::sim_device() : attnsmith::cuda_device(device_index);
    attnsmith::run_forward(call, device, stream);
  });
}

}  // extern "C"
