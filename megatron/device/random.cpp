#include "megatron/device/random.h"

#include <algorithm>

#include "megatron/device/philox.h"

namespace megatron {

uint64_t hash_of(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001B3u;
  }
  return hash;
}

uint32_t DropoutKey::keep_threshold() const {
  const auto rounded =
      static_cast<uint32_t>((1.0 - static_cast<double>(probability)) * 0x1p16 + 0.5);
  return std::min(rounded, 0xFFFFu);
}

DropoutKey RandomState::dropout_key(uint64_t site, float probability) const {
  if (!training_) return {};
  return {.key = mixed_key(seed_, site),
          .first_sample = first_sample_,
          .probability = probability,
          .more_samples = first_sample_at_,
          .parts_of_sample = parts_of_sample_};
}

}  // namespace megatron
