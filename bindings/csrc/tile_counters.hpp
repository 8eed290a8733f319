// SPDX-License-Identifier: Apache-2.0
// Tile counters of one CUDA device: zeroed device memory, given out so that launches that may overlap never share one.
// Not responsible for resetting them: the kernels are.
#pragma once

#include <cstddef>
#include <mutex>
#include <unordered_map>

#include "attnsmith/sm90/params.hpp"
#include "cuda_driver.hpp"

namespace attnsmith {

class TileCounters {
 public:
  // The counter of a launch on `stream`: the stream's own, whose launches follow one another; a fresh one for every
  // launch that is captured, because graphs run beside anything. The device's context must be current.
  TileCounter* get(cuda::Stream stream);

 private:
  TileCounter* take_fresh();

  std::mutex mutex_;
  std::unordered_map<unsigned long long, TileCounter*> by_stream_;
  TileCounter* chunk_ = nullptr;  // memory is never freed: a captured graph may outlive everything
  size_t num_left_ = 0;
};

}  // namespace attnsmith
