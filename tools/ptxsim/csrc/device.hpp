// SPDX-License-Identifier: Apache-2.0
// The table of simulated GPUs and the checks that a driver makes at launch.
#pragma once

#include <string>

#include "module.hpp"
#include "ptxsim.h"

namespace ptxsim {

struct Device {
  const char* name;
  const char* product;
  int sm;  // compute capability x10
  u32 sm_count, smem_per_block, smem_per_sm, smem_reserved, registers_per_sm, max_threads_per_block, max_threads_per_sm,
      max_ctas_per_sm, max_cluster;
};

const Device* find_device(const std::string& name);  // nullptr when unknown
std::string device_names();                          // "a100, rtx3090, ..."
std::string devices_json();

// Throws SimError "launch" with the CUDA error that the driver would return.
void validate_launch(const Module& module, const Entry& entry, const Device& device, const ptxsim_launch_config& config,
                     size_t param_size);

}  // namespace ptxsim
