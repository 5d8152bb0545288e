#pragma once

#include <cstdint>
#include <string>
#include <vector>

// The states of the random number generators of Python, numpy and PyTorch directly after seeding,
// as their checkpoints store them.
namespace megatron {

// MT19937 (Matsumoto and Nishimura 1998): its 624 words after init_genrand(seed), which numpy and
// PyTorch use.
std::vector<uint32_t> mt19937_words(uint32_t seed);
// After init_by_array({seed}), which Python's random.seed(seed) uses.
std::vector<uint32_t> mt19937_words_of_array(uint32_t seed);

// torch.get_rng_state() and torch.cuda.get_rng_state() as bytes.
std::string torch_random_state(uint64_t seed);
std::string cuda_random_state(uint64_t seed);

}  // namespace megatron
