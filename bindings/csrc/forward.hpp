// SPDX-License-Identifier: Apache-2.0
// Runs one forward call on a device: choose the kernel, fill its params, launch. Not responsible for torch types
// (ops.cpp), for the choice itself (dispatch.hpp) or for the launch itself (device.hpp).
#pragma once

#include "device.hpp"
#include "params.hpp"

namespace attnsmith {

// Launches the kernel that serves `call`; nothing when the call has no work. `stream` is the device's own stream type.
void run_forward(FwdCall const& call, Device& device, void* stream);

// What the calling thread's last run_forward launched; kernel is null when it had no work or failed.
struct LastLaunch {
  Kernel const* kernel = nullptr;
  uint32_t grid = 0;
  int device_index = -1;  // CUDA index, -1 simulated
};

LastLaunch& last_launch();

}  // namespace attnsmith
