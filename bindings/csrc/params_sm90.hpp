// SPDX-License-Identifier: Apache-2.0
// What SM90 kernels need beyond FwdParams: which calls TMA can serve, when to pack the query heads of a group into one
// tile, tensor maps and the tile schedule. Not responsible for keeping descriptors (tensor_map.hpp) or launching.
#pragma once

#include <cstdint>

#include "attnsmith/sm90/params.hpp"
#include "device.hpp"
#include "params.hpp"

namespace attnsmith {

// Whether TMA can address every tensor of the call. False: strides of 2^40 bytes, and dims of stride 0 that are walked
// along (the driver does not promise them). The SM80 family serves such calls.
bool can_use_tma(FwdCall const& call);

// The same of one tensor.
bool fits_tma(TensorView const& x, uint64_t element_bytes);

// Whether the call asks for tiles whose rows are (query row, query head of a group). Automatic: where it saves a
// tenth of the tiles, of two and of three warpgroups: the kernel is not chosen yet.
bool packs_gqa(FwdCall const& call);

// The kernel's parameter and how many CTAs read it.
struct FwdSm90Launch {
  FwdSm90Params params;
  uint32_t grid;
};

// Descriptors come from the calling thread's cache. `stream` is the launch's: it decides the tile counter.
FwdSm90Launch make_sm90_launch(FwdCall const& call, Kernel const& kernel, Device& device, void* stream);

}  // namespace attnsmith
