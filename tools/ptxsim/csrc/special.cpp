// SPDX-License-Identifier: Apache-2.0
// Names and widths of PTX special registers.
#include "module.hpp"

namespace ptxsim {
namespace {

struct Row {
  const char* name;
  Special special;
  int width;
};

constexpr Row kRows[] = {
    {"tid.x", Special::TidX, 32},
    {"tid.y", Special::TidY, 32},
    {"tid.z", Special::TidZ, 32},
    {"ntid.x", Special::NtidX, 32},
    {"ntid.y", Special::NtidY, 32},
    {"ntid.z", Special::NtidZ, 32},
    {"ctaid.x", Special::CtaidX, 32},
    {"ctaid.y", Special::CtaidY, 32},
    {"ctaid.z", Special::CtaidZ, 32},
    {"nctaid.x", Special::NctaidX, 32},
    {"nctaid.y", Special::NctaidY, 32},
    {"nctaid.z", Special::NctaidZ, 32},
    {"laneid", Special::Laneid, 32},
    {"warpid", Special::Warpid, 32},
    {"nwarpid", Special::Nwarpid, 32},
    {"smid", Special::Smid, 32},
    {"nsmid", Special::Nsmid, 32},
    {"gridid", Special::Gridid, 64},
    {"lanemask_eq", Special::LanemaskEq, 32},
    {"lanemask_le", Special::LanemaskLe, 32},
    {"lanemask_lt", Special::LanemaskLt, 32},
    {"lanemask_ge", Special::LanemaskGe, 32},
    {"lanemask_gt", Special::LanemaskGt, 32},
    {"dynamic_smem_size", Special::DynamicSmem, 32},
    {"total_smem_size", Special::TotalSmem, 32},
    {"cluster_ctaid.x", Special::ClusterCtaidX, 32},
    {"cluster_ctaid.y", Special::ClusterCtaidY, 32},
    {"cluster_ctaid.z", Special::ClusterCtaidZ, 32},
    {"cluster_nctaid.x", Special::ClusterNctaidX, 32},
    {"cluster_nctaid.y", Special::ClusterNctaidY, 32},
    {"cluster_nctaid.z", Special::ClusterNctaidZ, 32},
    {"clusterid.x", Special::ClusteridX, 32},
    {"clusterid.y", Special::ClusteridY, 32},
    {"clusterid.z", Special::ClusteridZ, 32},
    {"nclusterid.x", Special::NclusteridX, 32},
    {"nclusterid.y", Special::NclusteridY, 32},
    {"nclusterid.z", Special::NclusteridZ, 32},
    {"cluster_ctarank", Special::ClusterCtarank, 32},
    {"cluster_nctarank", Special::ClusterNctarank, 32},
    {"is_explicit_cluster", Special::IsExplicitCluster, 32},
    {"clock", Special::Clock, 32},
    {"clock_hi", Special::ClockHi, 32},
    {"clock64", Special::Clock64, 64},
    {"globaltimer", Special::Globaltimer, 64},
    {"globaltimer_lo", Special::GlobaltimerLo, 32},
    {"globaltimer_hi", Special::GlobaltimerHi, 32},
};

}  // namespace

bool special_from_name(const std::string& name, Special* out, int* width) {
  for (const Row& row : kRows)
    if (name == row.name) {
      *out = row.special, *width = row.width;
      return true;
    }
  return false;
}

}  // namespace ptxsim
