#pragma once

#include <cstdint>

#include "megatron/device/host_device.h"

// Autotuning of the kernel decode_text: how long blocks wait before they poll for each other's
// elements, and how many weight slots are in flight.
namespace megatron::kernels::cuda::text {

// The products of a layer, in their order.
enum Product { kQkv, kProj, kFc1, kFc2, kProducts };
// Indices of the tuned values: cycles from a warp's last product to its first poll for the input of
// each product, and for attention's query; and the additional weight slots in flight.
inline constexpr int kQuery = kProducts;
inline constexpr int kMoreInFlight = kQuery + 1;
inline constexpr int kSearched = kMoreInFlight + 1;
// Additional wait in cycles where weight loads dominate: products then take long and end at
// different times in different blocks.
MG_HOST_DEVICE inline int extra_wait(int number) {
  return number == kQkv ? 1000 : number == kFc2 ? 2500 : 0;
}

// Coordinate descent over the tuned values. A block that polls before all elements are ready must
// poll again, and the second answer comes late: polls of all blocks queue behind each other and
// behind weights. Polling late loses time, too (docs/performance/generation.md). The optimum
// depends on the GPU, the shape and the length of the text. So every second call is a trial with
// one changed value; if kCalls trials are faster than the calls between them, later calls keep the
// change. When no change helps, the search rests. Results of the kernel do not depend on the
// values.
//
// All zero before the first call.
struct WaitSearch {
  static constexpr int kCalls = 3;
  static constexpr int kRest = 64;  // calls

  int changes[kSearched];    // to first()
  int turn;                  // coordinate under trial; see tried()
  int tries_less;            // 0: the trial increases the value
  int is_trial;              // the next call is a trial
  int calls;                 // trials since the last decision
  int failed;                // decisions since the last change
  int rest;                  // remaining calls without trials
  uint32_t baseline, trial;  // cycles since the last decision

  // Initial values: near the optimum of GPT-2 345M and 1558M for short texts on an H200.
  MG_HOST_DEVICE static int first(int number) {
    return number == kQkv     ? 1500
           : number == kProj  ? 3500
           : number == kFc1   ? 2250
           : number == kFc2   ? 2500
           : number == kQuery ? 1500
                              : 0;
  }
  // Value of a coordinate in the next call.
  MG_HOST_DEVICE int value(int number) const {
    return first(number) + changes[number] + (is_trial != 0 && number == tried() ? change() : 0);
  }
  // Records a call that took `took` cycles.
  MG_HOST_DEVICE void learn(uint32_t took) {
    if (rest > 0) {
      --rest;
      return;
    }
    (is_trial != 0 ? trial : baseline) += took;
    is_trial ^= 1;
    if (is_trial != 0 || ++calls < kCalls) return;
    const bool is_faster = trial + trial / 512 < baseline;  // by more than noise
    calls = 0;
    baseline = trial = 0;
    if (is_faster) {
      changes[tried()] += change();
      failed = 0;
      return;
    }
    tries_less ^= 1;
    if (tries_less == 0) turn = (turn + 1) % kSearched;
    if (++failed < 2 * kSearched) return;
    failed = 0;
    rest = kRest;
  }

 private:
  MG_HOST_DEVICE int tried() const { return (kMoreInFlight + turn) % kSearched; }
  MG_HOST_DEVICE int change() const {
    if (tried() == kMoreInFlight) return tries_less == 0 ? 1 : -1;
    constexpr int kStep = 250;
    return tries_less == 0 ? kStep : first(tried()) + changes[tried()] >= kStep ? -kStep : 0;
  }
};

}  // namespace megatron::kernels::cuda::text
