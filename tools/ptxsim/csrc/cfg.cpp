// SPDX-License-Identifier: Apache-2.0
// Control flow: basic blocks, immediate post-dominators, the reconvergence point of every branch. A block that leaves
// the kernel early is no path to the common end: its lanes vanish, so the others may still reconverge. Hence exits
// are peeled from the last one upwards, each peel serving the blocks that no earlier peel reached.
#include <algorithm>

#include "decode.hpp"

namespace ptxsim {
namespace {

struct Block {
  u32 first = 0, last = 0;  // instruction range, inclusive
  std::vector<int> succs, preds;
  bool exits = false;  // ends with an unconditional exit
};

struct Graph {
  std::vector<Block> blocks;
  std::vector<int> block_of;
};

bool is_branch(const Inst& inst) { return inst.target != kNoPc || (inst.flags & kMultiway); }

std::vector<u32> branch_targets(const Inst& inst) {
  if (inst.flags & kMultiway) return std::vector<u32>(inst.ext + 1, inst.ext + 1 + inst.ext[0]);
  return {inst.target};
}

Graph build_graph(const std::vector<Inst>& insts, const std::vector<u8>& is_exit) {
  size_t n = insts.size();
  std::vector<u8> leader(n + 1, 0);
  leader[0] = 1;
  for (size_t i = 0; i < n; ++i) {
    if (!(insts[i].flags & kControl)) continue;
    if (is_branch(insts[i]))
      for (u32 target : branch_targets(insts[i])) leader[target] = 1;
    leader[i + 1] = 1;
  }
  Graph graph;
  graph.block_of.assign(n, 0);
  for (size_t i = 0; i < n; ++i) {
    if (leader[i]) graph.blocks.push_back({static_cast<u32>(i), static_cast<u32>(i), {}, {}, false});
    graph.blocks.back().last = static_cast<u32>(i);
    graph.block_of[i] = static_cast<int>(graph.blocks.size()) - 1;
  }
  for (size_t b = 0; b < graph.blocks.size(); ++b) {
    Block& block = graph.blocks[b];
    const Inst& last = insts[block.last];
    bool guarded = last.guard_mode != 0, falls = true;
    if (is_branch(last)) {
      for (u32 target : branch_targets(last)) block.succs.push_back(graph.block_of[target]);
      falls = guarded;
    } else if (is_exit[block.last]) {
      block.exits = !guarded;
      falls = guarded;
    }
    if (falls && block.last + 1 < n) block.succs.push_back(graph.block_of[block.last + 1]);
    for (int succ : block.succs) graph.blocks[static_cast<size_t>(succ)].preds.push_back(static_cast<int>(b));
  }
  return graph;
}

// Immediate post-dominators of the blocks that reach `sink` and are not settled yet; -1 elsewhere.
void settle(const Graph& graph, int sink, std::vector<int>* ipdom, std::vector<u8>* settled) {
  std::vector<int> order, number(graph.blocks.size(), -1);  // post-order of the reverse graph
  std::vector<std::pair<int, size_t>> stack{{sink, 0}};
  std::vector<u8> seen(graph.blocks.size(), 0);
  seen[static_cast<size_t>(sink)] = 1;
  while (!stack.empty()) {
    auto& top = stack.back();
    const auto& preds = graph.blocks[static_cast<size_t>(top.first)].preds;
    if (top.second < preds.size()) {
      int pred = preds[top.second++];
      if (!seen[static_cast<size_t>(pred)] && !(*settled)[static_cast<size_t>(pred)]) {
        seen[static_cast<size_t>(pred)] = 1;
        stack.push_back({pred, 0});
      }
    } else {
      number[static_cast<size_t>(top.first)] = static_cast<int>(order.size());
      order.push_back(top.first);
      stack.pop_back();
    }
  }
  std::vector<int> dom(graph.blocks.size(), -1);
  dom[static_cast<size_t>(sink)] = sink;
  auto meet = [&](int a, int b) {
    while (a != b) {
      while (number[static_cast<size_t>(a)] < number[static_cast<size_t>(b)]) a = dom[static_cast<size_t>(a)];
      while (number[static_cast<size_t>(b)] < number[static_cast<size_t>(a)]) b = dom[static_cast<size_t>(b)];
    }
    return a;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (auto it = order.rbegin(); it != order.rend(); ++it) {
      if (*it == sink) continue;
      int next = -1;
      for (int succ : graph.blocks[static_cast<size_t>(*it)].succs)
        if (dom[static_cast<size_t>(succ)] >= 0) next = next < 0 ? succ : meet(next, succ);
      if (next != dom[static_cast<size_t>(*it)]) dom[static_cast<size_t>(*it)] = next, changed = true;
    }
  }
  for (int b : order) {
    (*settled)[static_cast<size_t>(b)] = 1;
    (*ipdom)[static_cast<size_t>(b)] = b == sink ? -1 : dom[static_cast<size_t>(b)];
  }
}

}  // namespace

void assign_reconvergence(std::vector<Inst>* insts, const std::vector<u8>& is_exit) {
  Graph graph = build_graph(*insts, is_exit);
  std::vector<int> ipdom(graph.blocks.size(), -1);
  std::vector<u8> settled(graph.blocks.size(), 0);
  // The appended implicit `ret` is unreachable when the body ends with its own; reachable exits come first.
  for (int b = static_cast<int>(graph.blocks.size()) - 1; b >= 0; --b) {
    const Block& block = graph.blocks[static_cast<size_t>(b)];
    if (block.exits && !settled[static_cast<size_t>(b)] && (!block.preds.empty() || b == 0))
      settle(graph, b, &ipdom, &settled);
  }
  for (const Block& block : graph.blocks) {
    Inst& last = (*insts)[block.last];
    if (!is_branch(last)) continue;
    int dom = ipdom[static_cast<size_t>(graph.block_of[block.last])];
    last.reconv = dom < 0 ? kNoPc : graph.blocks[static_cast<size_t>(dom)].first;
  }
}

}  // namespace ptxsim
