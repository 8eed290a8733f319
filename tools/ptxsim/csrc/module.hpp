// SPDX-License-Identifier: Apache-2.0
// The decoded program: instructions with an executor function and slot numbers, entries with their constants, shared
// and local frames, modules with their global variables. Immutable once loaded, so that threads share it.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "ast.hpp"

namespace ptxsim {

struct Warp;
struct Inst;
using ExecFn = void (*)(Warp&, const Inst&, u32 mask);

constexpr u32 kNoPc = 0xffffffffu;

// Instruction classes of the statistics.
enum class Cls : u8 {
  Alu,
  Fp,
  Half,
  Cvt,
  Mov,
  Mufu,
  Fp64,
  Mma,
  Ldmatrix,
  Stmatrix,
  LdGlobal,
  StGlobal,
  LdShared,
  StShared,
  LdLocal,
  StLocal,
  LdParam,
  LdConst,
  LdGeneric,
  StGeneric,
  Atom,
  CpAsync,
  Bulk,
  Wgmma,
  Mbarrier,
  WarpOp,
  Barrier,
  Branch,
  Fence,
  Other,
  kCount,
};
const char* class_name(Cls cls);

// Execution result of an instruction that the run loop must see.
enum InstFlag : u8 {
  kControl = 1,   // may change the path, the state or the active lanes of the warp
  kMultiway = 2,  // a branch whose targets are ext[1..ext[0]]
};

// One decoded instruction. `o` are slot numbers into a warp's register file (in units of 4 bytes) or predicate
// numbers; their meaning belongs to the family that decoded it.
struct Inst {
  ExecFn fn = nullptr;
  const u32* ext = nullptr;  // operand lists longer than o
  i64 imm = 0;               // address displacement or family data
  u32 o[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  u32 guard = 0;  // predicate number
  u32 target = kNoPc, reconv = kNoPc, index = 0;
  u32 pneg = 0;       // bit k: predicate operand k is negated
  u32 flops = 0;      // tensor operations per warp instruction
  u8 guard_mode = 0;  // 0 none, 1 @p, 2 @!p
  u8 flags = 0;
  Cls cls = Cls::Other;
  u8 bytes = 0;          // bytes per element of a memory access
  u8 vec = 1;            // elements of a memory access
  u8 sub = 0;            // family data
  u8 width[2] = {0, 0};  // register widths in bits, family data
};

// A value the decoder knew: one 32-lane vector, filled per launch.
struct ConstSlot {
  enum Kind : u8 { Value, ParamAddress, DynamicShared, Sink } kind = Value;
  u64 value = 0;
  u32 slot = 0;
  u8 width = 32;
};

enum class Special : u8 {
  TidX,
  TidY,
  TidZ,
  NtidX,
  NtidY,
  NtidZ,
  CtaidX,
  CtaidY,
  CtaidZ,
  NctaidX,
  NctaidY,
  NctaidZ,
  Laneid,
  Warpid,
  Nwarpid,
  Smid,
  Nsmid,
  Gridid,
  LanemaskEq,
  LanemaskLe,
  LanemaskLt,
  LanemaskGe,
  LanemaskGt,
  DynamicSmem,
  TotalSmem,
  ClusterCtaidX,
  ClusterCtaidY,
  ClusterCtaidZ,
  ClusterNctaidX,
  ClusterNctaidY,
  ClusterNctaidZ,
  ClusteridX,
  ClusteridY,
  ClusteridZ,
  NclusteridX,
  NclusteridY,
  NclusteridZ,
  ClusterCtarank,
  ClusterNctarank,
  IsExplicitCluster,
  Clock,
  ClockHi,
  Clock64,
  Globaltimer,
  GlobaltimerLo,
  GlobaltimerHi,  // change while a kernel runs
};
inline bool is_dynamic(Special s) { return s >= Special::Clock; }
bool special_from_name(const std::string& name, Special* out, int* width);

struct SpecialSlot {
  Special special;
  u32 slot;
  u8 width;
};

struct Unsupported {
  int line;
  std::string text, reason;
};

struct Entry {
  std::string name;
  std::vector<Param> params;
  u64 param_bytes = 0;
  std::vector<Inst> insts;
  std::vector<int> lines;          // PTX line of each instruction
  std::vector<std::string> texts;  // source text of each instruction
  std::vector<ConstSlot> consts;
  std::vector<SpecialSlot> specials;
  std::deque<std::vector<u32>> ext_pool;
  u32 reg_words = 0;   // register file of one warp, in 4-byte words
  u32 data_words = 0;  // its leading part that holds registers, the rest are constants
  u32 num_preds = 0;
  u32 static_smem = 0, dynamic_smem_offset = 0, local_bytes = 0;
  u32 maxntid[3] = {0, 0, 0}, reqntid[3] = {0, 0, 0}, reqcluster[3] = {0, 0, 0};
  u32 maxnreg = 0, minnctapersm = 0;
  std::vector<std::pair<std::string, int>> register_counts;
  std::vector<Unsupported> unsupported;
  // Of entries with wgmma: registers that it uses, touched by each instruction. List k is
  // matrix_touches[matrix_index[k]..matrix_index[k+1]], elements register*2 + (written).
  std::vector<u32> matrix_index, matrix_touches;
};

struct GlobalVariable {
  std::string name;
  u8* data = nullptr;
  u64 bytes = 0;
  bool writable = true;
};

struct Module {
  std::string version, target;
  int sm = 0;                  // 80 for sm_80
  bool arch_specific = false;  // sm_90a
  std::vector<GlobalVariable> globals;
  std::vector<std::unique_ptr<u8[]>> storage;
  std::vector<Entry> entries;
};

// Fixed predicate numbers of every warp.
constexpr u32 kPredSink = 0, kPredTrue = 1, kPredFalse = 2, kPredCarry = 3, kPredFirst = 4;

// shared::cluster addresses: below 2^24 the own CTA's shared memory, else (rank + 1) << 24 plus an offset (mapa).
constexpr u32 kClusterShift = 24;

// Generic address windows: no host pointer reaches them.
constexpr u64 kSharedWindow = 1ull << 56, kLocalWindow = 1ull << 57, kWindowBytes = 1ull << 32;

std::unique_ptr<Module> load_module(const std::string& source, bool collect_unsupported);

}  // namespace ptxsim
