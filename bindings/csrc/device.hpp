// SPDX-License-Identifier: Apache-2.0
// Where kernels run: the one interface between the launcher and a GPU, real or simulated. Not responsible for choosing
// kernels or for filling params.
#pragma once

#include <cstdint>
#include <string>

#include "attnsmith/sm90/params.hpp"
#include "kernel_table.hpp"
#include "tensor_map.hpp"

namespace attnsmith {

// Memory that a launch may touch; the simulator enforces it, the CUDA driver does not need it.
struct Allocation {
  void const* base;
  uint64_t bytes;
  char const* name;
  bool is_writable;
};

struct Launch {
  uint32_t grid;       // 1-D
  void const* params;  // the kernel's one parameter
  uint64_t params_bytes;
  Allocation const* allocations;
  uint64_t num_allocations;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceLimits limits() const = 0;
  virtual int index() const = 0;  // CUDA index, -1 simulated
  // Loads the kernel's image if this device has not yet, and launches it. CUDA: asynchronous, on the given stream.
  virtual void launch(Kernel const& kernel, Launch const& launch, void* stream) = 0;
  // The descriptor that this device's TMA unit reads. Callers go through tensor_map, which keeps them.
  virtual TmaDescriptor encode(TensorMap const& map) = 0;
  // A zeroed counter for one launch on `stream`, which no other launch uses that may run at the same time. The kernel
  // leaves it zeroed.
  virtual TileCounter* tile_counter(void* stream) = 0;
};

// The CUDA device of an index; throws when there is no driver or no such device.
Device& cuda_device(int index);

// Every simulated launch of a thread runs with that thread's options.
struct SimOptions {
  std::string library;  // path of the simulator's shared library; empty: not simulating
  std::string device;   // "a100"
  DeviceLimits limits;
  uint64_t seed = 0;
  int schedule = 0;
  int async_mode = 0;
  uint32_t num_threads = 0;
  uint64_t step_budget = 0;
};

SimOptions& sim_options();  // of the calling thread
Device& sim_device();

// JSON members of the calling thread's last simulated launch: "device": "a100", "stats": {...}.
std::string const& last_sim_report();
// The simulator's error JSON of the calling thread's last failed launch, "" when there was none.
std::string take_sim_error();

}  // namespace attnsmith
