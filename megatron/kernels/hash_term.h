#pragma once

#include <cstdint>

#include "megatron/device/host_device.h"

namespace megatron::kernels {

// The hash of a tensor is the sum of the terms of its elements, modulo 2^64. So the hashes of the
// parts of a tensor add up to that of the whole, however it is divided. `index` is the element's
// place in the whole tensor, in row-major order; `bits` are its bytes as a number.
//
// For each index different bits have different terms: the argument of the mixing steps differs, and
// each step can be inverted. So a change of one element always changes the hash, and a change of
// several goes unseen with probability 2^-64. The steps are those of Steele, Lea & Flood 2014,
// "Fast splittable pseudorandom number generators", sec. 4.
//
// On disk: checkpoints have such hashes. Never change it.
MG_HOST_DEVICE constexpr uint64_t hash_term(uint64_t index, uint64_t bits) {
  uint64_t x = bits + (index + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace megatron::kernels
