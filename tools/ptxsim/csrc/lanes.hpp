// SPDX-License-Identifier: Apache-2.0
// 32-lane loops. Every operand is a contiguous vector of 32 words (64-bit values: 32 double words; 8- and 16-bit
// values zero-extended in words), so each loop vectorizes. A partial mask computes all lanes and blends: lane
// functions must therefore be total.
#pragma once

#include "runtime.hpp"

namespace ptxsim {

template <class T>
using Slot = std::conditional_t<(sizeof(T) <= 4), u32, u64>;

template <class T>
inline T from_slot(Slot<T> raw) {
  if constexpr (std::is_floating_point_v<T>)
    return bit_cast<T>(raw);
  else
    return static_cast<T>(raw);
}

template <class T>
inline Slot<T> to_slot(T value) {
  if constexpr (std::is_floating_point_v<T>)
    return bit_cast<Slot<T>>(value);
  else
    return static_cast<std::make_unsigned_t<T>>(value);
}

template <class S>
inline S* slot_ptr(const Warp& w, u32 slot) {
  return reinterpret_cast<S*>(w.regs + slot);
}

template <class T>
struct In {
  const Slot<T>* p;
  In(const Warp& w, u32 slot) : p(slot_ptr<Slot<T>>(w, slot)) {}
  T operator[](int lane) const { return from_slot<T>(p[lane]); }
};

template <class S>
inline void blend(S* __restrict dst, const S* __restrict src, u32 mask) {
  for (int l = 0; l < kLanes; ++l) dst[l] = (mask >> l & 1) ? src[l] : dst[l];
}

// dst[l] = f(l) for the lanes in mask; f is total and free of side effects.
template <class R, class F>
inline void lanes(Warp& w, u32 dst, u32 mask, F f) {
  Slot<R>* d = slot_ptr<Slot<R>>(w, dst);
  if (mask == kFullMask) {
#pragma GCC ivdep
    for (int l = 0; l < kLanes; ++l) d[l] = to_slot<R>(f(l));
  } else {
    alignas(64) Slot<R> t[kLanes];
    for (int l = 0; l < kLanes; ++l) t[l] = to_slot<R>(f(l));
    blend(d, t, mask);
  }
}

// For expensive or scalar-only functions: active lanes only.
template <class R, class F>
inline void each_lane(Warp& w, u32 dst, u32 mask, F f) {
  Slot<R>* d = slot_ptr<Slot<R>>(w, dst);
  for (u32 left = mask; left; left &= left - 1) {
    int l = __builtin_ctz(left);
    d[l] = to_slot<R>(f(l));
  }
}

// Bit mask of the lanes for which f(l) holds.
template <class F>
inline u32 lane_mask(F f) {
  u32 m = 0;
  for (int l = 0; l < kLanes; ++l) m |= f(l) ? 1u << l : 0u;
  return m;
}

inline void set_pred(Warp& w, u32 pred, u32 value, u32 mask) {
  w.preds[pred] = (w.preds[pred] & ~mask) | (value & mask);
}

inline u32 read_pred(const Warp& w, const Inst& i, u32 pred, u32 negation_bit) {
  u32 value = w.preds[pred];
  return (i.pneg >> negation_bit & 1) ? ~value : value;
}

// Unary, binary and ternary instructions: o[0] = F(o[1], o[2], o[3]).
template <class R, class T, class F>
void run1(Warp& w, const Inst& i, u32 m) {
  In<T> a(w, i.o[1]);
  lanes<R>(w, i.o[0], m, [&](int l) { return F::f(a[l]); });
}
template <class R, class T, class F>
void run2(Warp& w, const Inst& i, u32 m) {
  In<T> a(w, i.o[1]), b(w, i.o[2]);
  lanes<R>(w, i.o[0], m, [&](int l) { return F::f(a[l], b[l]); });
}
template <class R, class T, class F>
void run3(Warp& w, const Inst& i, u32 m) {
  In<T> a(w, i.o[1]), b(w, i.o[2]), c(w, i.o[3]);
  lanes<R>(w, i.o[0], m, [&](int l) { return F::f(a[l], b[l], c[l]); });
}

}  // namespace ptxsim
