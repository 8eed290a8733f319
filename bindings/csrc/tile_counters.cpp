// SPDX-License-Identifier: Apache-2.0
// Implements tile_counters.hpp. A chunk is allocated at most once in thousands of captured launches.
#include "tile_counters.hpp"

namespace attnsmith {

namespace {

using cuda::check;
using cuda::driver;

constexpr size_t kCountersPerChunk = 8192;
constexpr char const* kAbout = "the tile counters";

// Lets the calling thread allocate while some stream is being captured, for a scope.
class RelaxedCapture {
 public:
  RelaxedCapture() { check(driver().exchange_capture_mode(&mode_), "cuThreadExchangeStreamCaptureMode", kAbout); }
  ~RelaxedCapture() { driver().exchange_capture_mode(&mode_); }
  RelaxedCapture(RelaxedCapture const&) = delete;
  RelaxedCapture& operator=(RelaxedCapture const&) = delete;

 private:
  int mode_ = cuda::kRelaxedCapture;
};

// Zeroed through a stream of its own: the caller's may be capturing, and the legacy one would wait for it.
TileCounter* allocate_chunk() {
  RelaxedCapture const relaxed;
  cuda::DevicePointer memory = 0;
  size_t const bytes = kCountersPerChunk * sizeof(TileCounter);
  check(driver().mem_alloc(&memory, bytes), "cuMemAlloc", kAbout);
  cuda::Stream stream = nullptr;
  check(driver().stream_create(&stream, cuda::kNonBlockingStream), "cuStreamCreate", kAbout);
  check(driver().memset_d8_async(memory, 0, bytes, stream), "cuMemsetD8Async", kAbout);
  check(driver().stream_synchronize(stream), "cuStreamSynchronize", kAbout);
  check(driver().stream_destroy(stream), "cuStreamDestroy", kAbout);
  return reinterpret_cast<TileCounter*>(memory);
}

}  // namespace

TileCounter* TileCounters::get(cuda::Stream stream) {
  int capture_status = 0;
  check(driver().stream_is_capturing(stream, &capture_status), "cuStreamIsCapturing", kAbout);
  if (capture_status != 0) {
    std::lock_guard lock(mutex_);
    return take_fresh();
  }
  unsigned long long id = 0;
  check(driver().stream_get_id(stream, &id), "cuStreamGetId", kAbout);
  std::lock_guard lock(mutex_);
  TileCounter*& counter = by_stream_[id];
  if (counter == nullptr) counter = take_fresh();
  return counter;
}

TileCounter* TileCounters::take_fresh() {
  if (num_left_ == 0) {
    chunk_ = allocate_chunk();
    num_left_ = kCountersPerChunk;
  }
  return chunk_ + --num_left_;
}

}  // namespace attnsmith
