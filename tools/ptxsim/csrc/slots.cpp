// SPDX-License-Identifier: Apache-2.0
// Register file layout. Unrolled kernels declare thousands of virtual registers of 128 B each; giving each its own
// place would push the hot loop out of the host's caches (measured on the tutorial sgemm_sm80, fp16 form: 9 times
// slower). So registers share slots by liveness: data flow over the blocks, one interval in program order per register,
// linear scan. Liveness is a property of a thread's path, so divergence does not matter: lanes of a slot never mix.
#include <algorithm>
#include <set>

#include "decode.hpp"

namespace ptxsim {
namespace {

using Bits = std::vector<u64>;

bool get(const Bits& b, size_t k) { return b[k / 64] >> (k % 64) & 1; }
void put(Bits* b, size_t k) { (*b)[k / 64] |= 1ull << (k % 64); }

}  // namespace

// Opcodes whose first operand is a source. Any other opcode writes its first operand and nothing else.
bool reads_first_operand(const std::string& opcode) {
  static const std::set<std::string> kReaders = {
      "st",     "red",        "cp",       "bra",           "brx",      "exit",           "ret",     "trap",
      "membar", "fence",      "prefetch", "prefetchu",     "stmatrix", "nanosleep",      "barrier", "bar",
      "wgmma",  "setmaxnreg", "discard",  "applypriority", "mbarrier", "griddepcontrol", "call"};
  return kReaders.count(opcode) != 0;
}

namespace {

void collect(const Operand& op, const RawEntry& raw, std::vector<int>* out) {
  if (op.kind == Operand::Reg && raw.regs[static_cast<size_t>(op.reg)].type != Ty::Pred) out->push_back(op.reg);
  for (const Operand& e : op.elems) collect(e, raw, out);
}

struct Effects {
  std::vector<int> uses, defs;
  bool kills = false;  // defines for every thread that passes
};

Effects effects_of(const RawInst& inst, const RawEntry& raw) {
  Effects e;
  bool writes = !reads_first_operand(inst.opcode);
  for (size_t k = 0; k < inst.operands.size(); ++k) {
    const Operand& op = inst.operands[k];
    bool plain = op.kind == Operand::Reg || op.kind == Operand::Vector || op.kind == Operand::Pair;
    collect(op, raw, k == 0 && writes && plain ? &e.defs : &e.uses);
  }
  e.kills = inst.guard < 0;
  return e;
}

struct Span {
  size_t first, last;
  std::vector<size_t> succs;
  Bits use, def, in, out;
};

int find_label(const RawEntry& raw, const std::string& name, int scope) {
  for (int s = scope; s >= 0; s = raw.scope_parent[static_cast<size_t>(s)])
    for (const Label& label : raw.labels)
      if (label.scope == s && label.name == name) return static_cast<int>(label.index);
  return -1;
}

class Liveness {
 public:
  explicit Liveness(const RawEntry& raw) : raw_(raw), n_(raw.insts.size()), words_((raw.regs.size() + 63) / 64) {
    for (const RawInst& inst : raw.insts) effects_.push_back(effects_of(inst, raw));
  }

  // First and last position of each register, first > last when it never occurs. False when control flow is unknown.
  bool intervals(std::vector<std::pair<size_t, size_t>>* out) {
    if (!build_blocks()) return false;
    solve();
    out->assign(raw_.regs.size(), {n_, 0});
    auto touch = [&](size_t reg, size_t at) {
      (*out)[reg].first = std::min((*out)[reg].first, at);
      (*out)[reg].second = std::max((*out)[reg].second, at);
    };
    for (size_t k = 0; k < n_; ++k) {
      for (int r : effects_[k].uses) touch(static_cast<size_t>(r), k);
      for (int r : effects_[k].defs) touch(static_cast<size_t>(r), k);
    }
    for (const Span& b : blocks_)
      for (size_t r = 0; r < raw_.regs.size(); ++r) {
        if (get(b.in, r)) touch(r, b.first);
        if (get(b.out, r)) touch(r, b.last);
      }
    return true;
  }

 private:
  bool build_blocks() {
    std::vector<u8> leader(n_ + 1, 0);
    std::vector<int> target(n_, -1);
    leader[0] = 1;
    for (size_t k = 0; k < n_; ++k) {
      const RawInst& inst = raw_.insts[k];
      if (inst.opcode == "brx" || inst.opcode == "call") return false;
      bool ends = inst.opcode == "bra" || inst.opcode == "exit" || inst.opcode == "ret" || inst.opcode == "trap";
      if (inst.opcode == "bra") {
        if (inst.operands.size() != 1) return false;
        target[k] = find_label(raw_, inst.operands[0].name, inst.scope);
        if (target[k] < 0) return false;
        leader[static_cast<size_t>(target[k])] = 1;
      }
      if (ends) leader[k + 1] = 1;
    }
    std::vector<size_t> block_of(n_ + 1, 0);
    for (size_t k = 0; k < n_; ++k) {
      if (leader[k]) blocks_.push_back({k, k, {}, Bits(words_), Bits(words_), Bits(words_), Bits(words_)});
      blocks_.back().last = k;
      block_of[k] = blocks_.size() - 1;
    }
    for (Span& b : blocks_) {
      const RawInst& last = raw_.insts[b.last];
      bool leaves = last.guard < 0 &&
                    (last.opcode == "bra" || last.opcode == "exit" || last.opcode == "ret" || last.opcode == "trap");
      if (!leaves && b.last + 1 < n_) b.succs.push_back(block_of[b.last + 1]);
      if (target[b.last] >= 0 && static_cast<size_t>(target[b.last]) < n_)
        b.succs.push_back(block_of[static_cast<size_t>(target[b.last])]);
    }
    return true;
  }

  void solve() {
    for (Span& b : blocks_)
      for (size_t k = b.first; k <= b.last; ++k) {
        for (int r : effects_[k].uses)
          if (!get(b.def, static_cast<size_t>(r))) put(&b.use, static_cast<size_t>(r));
        if (effects_[k].kills)
          for (int r : effects_[k].defs) put(&b.def, static_cast<size_t>(r));
      }
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = blocks_.size(); i-- > 0;) {
        Span& b = blocks_[i];
        for (size_t s : b.succs)
          for (size_t word = 0; word < words_; ++word) b.out[word] |= blocks_[s].in[word];
        for (size_t word = 0; word < words_; ++word) {
          u64 in = b.use[word] | (b.out[word] & ~b.def[word]);
          changed = changed || in != b.in[word];
          b.in[word] = in;
        }
      }
    }
  }

  const RawEntry& raw_;
  size_t n_, words_;
  std::vector<Effects> effects_;
  std::vector<Span> blocks_;
};

// Registers that an instruction may touch after its own position: asynchronous matrix operands.
std::vector<u8> pinned_registers(const RawEntry& raw) {
  std::vector<u8> pinned(raw.regs.size(), 0);
  for (const RawInst& inst : raw.insts) {
    if (inst.opcode != "wgmma") continue;
    std::vector<int> regs;
    for (const Operand& op : inst.operands) collect(op, raw, &regs);
    for (int r : regs) pinned[static_cast<size_t>(r)] = 1;
  }
  return pinned;
}

std::vector<u32> one_slot_each(const RawEntry& raw, u32* words) {
  std::vector<u32> slots(raw.regs.size(), 0);
  for (size_t i = 0; i < raw.regs.size(); ++i) {
    if (raw.regs[i].type == Ty::Pred) continue;
    slots[i] = *words;
    *words += static_cast<u32>(type_width(raw.regs[i].type));
  }
  return slots;
}

}  // namespace

std::vector<u32> assign_register_slots(const RawEntry& raw, u32* words) {
  std::vector<std::pair<size_t, size_t>> span;
  if (raw.insts.empty() || !Liveness(raw).intervals(&span)) return one_slot_each(raw, words);
  std::vector<u8> pinned = pinned_registers(raw);
  std::vector<size_t> order;
  for (size_t r = 0; r < raw.regs.size(); ++r) {
    if (raw.regs[r].type == Ty::Pred || span[r].first > span[r].second) continue;
    if (pinned[r]) span[r] = {0, raw.insts.size()};
    order.push_back(r);
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return std::make_pair(span[a].first, a) < std::make_pair(span[b].first, b); });
  std::vector<u32> slots(raw.regs.size(), 0);
  std::map<int, std::vector<u32>> free_slots;             // by width
  std::set<std::pair<size_t, std::pair<int, u32>>> busy;  // by last position
  for (size_t r : order) {
    // A slot is free only after its last reader: an instruction never writes where it reads another register.
    while (!busy.empty() && busy.begin()->first < span[r].first) {
      free_slots[busy.begin()->second.first].push_back(busy.begin()->second.second);
      busy.erase(busy.begin());
    }
    int width = type_width(raw.regs[r].type);
    std::vector<u32>& available = free_slots[width];
    if (available.empty()) {
      available.push_back(*words);
      *words += static_cast<u32>(width);
    }
    slots[r] = available.back();
    available.pop_back();
    busy.insert({span[r].second, {width, slots[r]}});
  }
  return slots;
}

}  // namespace ptxsim
