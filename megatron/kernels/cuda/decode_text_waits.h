#pragma once

#include <cstdint>

#include "megatron/device/host_device.h"

// How long the blocks of the kernel decode_text wait for each other's words before they look, and
// how many weights they ask for at once.
namespace megatron::kernels::cuda::text {

// The products of a layer, in their order.
enum Product { kQkv, kProj, kFc1, kFc2, kProducts };
// What is searched: cycles from a warp's last product to its first look for the vector of each
// product, and for the query of attention; and how many slots of weights more are under way.
inline constexpr int kQuery = kProducts;
inline constexpr int kMoreUnderWay = kQuery + 1;
inline constexpr int kSearched = kMoreUnderWay + 1;
// How much longer a block waits where it waits for weights most: there products take long, and do
// not end at the same time in all blocks.
MG_HOST_DEVICE inline int longer(int number) {
  return number == kQkv ? 1000 : number == kFc2 ? 2500 : 0;
}

// A block that looks before all words are there has to look again, and the second answer comes
// long after the words: looks of all blocks wait for each other, and behind weights. A block that
// looks late loses time, too (docs/performance/generation.md). What is best depends on the GPU,
// the shape and the length of the text. So calls measure it: every second one has one number that
// is another, and if kCalls of these are faster than those between them, the later calls keep it.
// When no change helps, the search rests. Results do not depend on the numbers.
//
// All zero before the first call.
struct WaitSearch {
  static constexpr int kCalls = 3;
  static constexpr int kRest = 64;  // calls

  int changes[kSearched];  // to first()
  int turn;                // of the numbers: which is tried
  int less;                // 0: more is tried
  int is_trial;            // the next call is one
  int calls;               // trials since the last decision
  int failed;              // decisions since the last change
  int rest;                // calls without trials that are left
  uint32_t usual, trial;   // cycles since the last decision

  // About what is best for GPT-2's 345M and 1558M and short texts on an H200.
  MG_HOST_DEVICE static int first(int number) {
    return number == kQkv     ? 1500
           : number == kProj  ? 3500
           : number == kFc1   ? 2250
           : number == kFc2   ? 2500
           : number == kQuery ? 1500
                              : 0;
  }
  // Of the next call.
  MG_HOST_DEVICE int value(int number) const {
    return first(number) + changes[number] + (is_trial != 0 && number == tried() ? change() : 0);
  }
  // After a call that took that many cycles.
  MG_HOST_DEVICE void learn(uint32_t took) {
    if (rest > 0) {
      --rest;
      return;
    }
    (is_trial != 0 ? trial : usual) += took;
    is_trial ^= 1;
    if (is_trial != 0 || ++calls < kCalls) return;
    const bool is_faster = trial + trial / 512 < usual;  // not by chance
    calls = 0;
    usual = trial = 0;
    if (is_faster) {
      changes[tried()] += change();
      failed = 0;
      return;
    }
    less ^= 1;
    if (less == 0) turn = (turn + 1) % kSearched;
    if (++failed < 2 * kSearched) return;
    failed = 0;
    rest = kRest;
  }

 private:
  MG_HOST_DEVICE int tried() const { return (kMoreUnderWay + turn) % kSearched; }
  MG_HOST_DEVICE int change() const {
    if (tried() == kMoreUnderWay) return less == 0 ? 1 : -1;
    constexpr int kStep = 250;
    return less == 0 ? kStep : first(tried()) + changes[tried()] >= kStep ? -kStep : 0;
  }
};

}  // namespace megatron::kernels::cuda::text
