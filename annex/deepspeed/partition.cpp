#include "annex/deepspeed/partition.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "megatron/models/model_specs.h"

namespace megatron::frontends {
namespace {

// Entries in each part if no part may be heavier than `bound`; what does not fit is left out.
std::vector<int64_t> filled(std::span<const int64_t> weights, int64_t parts, int64_t bound) {
  std::vector<int64_t> sizes;
  size_t next = 0;
  for (int64_t part = 0; part < parts; ++part) {
    const size_t first = next;
    int64_t room = bound;
    while (next < weights.size() && weights[next] <= room) room -= weights[next++];
    sizes.push_back(static_cast<int64_t>(next - first));
  }
  return sizes;
}

}  // namespace

std::vector<int64_t> entry_weights(const TransformerConfig& config, int64_t tensor_ranks) {
  int64_t layer = 0;
  int64_t embedding = 0;
  int64_t norm = 0;
  int64_t output = 0;
  for (const Parameter& spec : model_specs(config)) {
    if (spec.info.role == ParameterRole::kBuffer) continue;
    const bool is_in_layer = spec.name.find(".layers.") != std::string::npos;
    // Layers are alike.
    if (is_in_layer && spec.name.find(".layers.0.") == std::string::npos) continue;
    const int64_t ranks = spec.info.sharding.is_divided() ? tensor_ranks : 1;
    const int64_t size = spec.shape.numel() / ranks;
    int64_t& entry = is_in_layer                           ? layer
                     : spec.name.starts_with("embedding.") ? embedding
                     : spec.name.starts_with("output")     ? output
                                                           : norm;
    entry += size;
  }
  if (output == 0) output = embedding;
  std::vector<int64_t> weights = {0, embedding, 0};
  weights.insert(weights.end(), static_cast<size_t>(config.num_layers), layer);
  weights.insert(weights.end(), {0, norm, output, 0});
  return weights;
}

std::vector<int64_t> balanced_parts(std::span<const int64_t> weights, int64_t parts) {
  const auto fits = [&](int64_t bound) {
    const std::vector<int64_t> sizes = filled(weights, parts, bound);
    return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) == std::ssize(weights);
  };
  int64_t low = 0;
  int64_t high = std::accumulate(weights.begin(), weights.end(), int64_t{0});
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (fits(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return filled(weights, parts, high);
}

std::vector<int64_t> layers_of_parts(std::span<const int64_t> parts, int64_t layers) {
  std::vector<int64_t> counts;
  int64_t begin = 0;
  for (const int64_t size : parts) {
    const auto layer_at = [&](int64_t entry) {
      return std::clamp<int64_t>(entry - kEntriesBefore, 0, layers);
    };
    counts.push_back(layer_at(begin + size) - layer_at(begin));
    begin += size;
  }
  return counts;
}

}  // namespace megatron::frontends
