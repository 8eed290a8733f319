// SPDX-License-Identifier: Apache-2.0
// Implements tensor_map.hpp: a set-associative table, so that it neither grows nor allocates after its first use.
#include "tensor_map.hpp"

#include <atomic>
#include <cstring>
#include <memory>
#include <type_traits>

#include "device.hpp"

namespace attnsmith {

namespace {

std::atomic<uint64_t> num_encoded{0};

struct Key {
  TensorMap map;
  int64_t device;  // as wide as a word: the key is compared and hashed by its bytes
};
static_assert(std::has_unique_object_representations_v<Key>, "padding bytes would make equal keys differ");
static_assert(sizeof(Key) % sizeof(uint64_t) == 0);

uint64_t hash(Key const& key) {
  uint64_t words[sizeof(Key) / sizeof(uint64_t)];
  std::memcpy(words, &key, sizeof(key));
  uint64_t mixed = 0;
  for (uint64_t word : words) mixed = (mixed ^ word ^ (mixed >> 29)) * 0x9e3779b97f4a7c15u;
  return mixed >> 32;
}

class Cache {
 public:
  TmaDescriptor const& find_or_encode(Key const& key, Device& device) {
    Set& set = sets_[hash(key) % kNumSets];
    for (int way = 0; way < set.num_used; ++way) {
      if (std::memcmp(&set.keys[way], &key, sizeof(key)) == 0) return set.descriptors[way];
    }
    TmaDescriptor const encoded = device.encode(key.map);
    num_encoded.fetch_add(1, std::memory_order_relaxed);
    int const way = set.num_used < kNumWays ? set.num_used++ : set.next_victim++ % kNumWays;
    set.keys[way] = key;
    set.descriptors[way] = encoded;
    return set.descriptors[way];
  }

 private:
  static constexpr int kNumSets = 128;
  static constexpr int kNumWays = 8;

  struct Set {
    Key keys[kNumWays];
    TmaDescriptor descriptors[kNumWays];
    int num_used;
    unsigned next_victim;
  };

  std::unique_ptr<Set[]> const sets_{new Set[kNumSets]()};
};

}  // namespace

TmaDescriptor const& tensor_map(TensorMap const& map, Device& device) {
  thread_local Cache cache;
  return cache.find_or_encode(Key{map, device.index()}, device);
}

uint64_t num_encoded_tensor_maps() { return num_encoded.load(std::memory_order_relaxed); }

}  // namespace attnsmith
