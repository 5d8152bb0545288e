#include "megatron/interchange/check_conversion.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "megatron/core/error.h"
#include "megatron/device/free_memory.h"
#include "megatron/interchange/stored_logits.h"

namespace megatron {

void expect_same_tensors(const CheckpointContents& want, const CheckpointContents& got,
                         int64_t vocab_rows) {
  for (const auto& [section, tensors] : got.sections) {
    const auto known = want.sections.find(section);
    if (known == want.sections.end()) continue;
    for (const auto& [name, tensor] : tensors) {
      FileElements a = whole_elements(known->second.at(name));
      FileElements b = whole_elements(tensor);
      for (FileElements* side : {&a, &b}) {
        if (!has_vocabulary_rows(name)) continue;
        const int64_t rows = std::min(vocab_rows, side->view.shape[0]);
        side->view.shape = side->view.shape.with(0, rows);
      }
      const bool is_same =
          a.view.shape == b.view.shape && a.view.dtype == b.view.dtype &&
          std::memcmp(a.view.data, b.view.data, static_cast<size_t>(a.view.bytes())) == 0;
      if (!is_same) {
        throw InternalError(fmt::format("{} of {} is not what was read; the result in {} is wrong",
                                        name, section, got.directory.string()));
      }
    }
  }
}

std::string compare_logits(const CheckpointContents& source, const TransformerConfig& source_config,
                           const CheckpointContents& result, const TransformerConfig& result_config,
                           int64_t vocab_rows) {
  constexpr int64_t kTokens = 16;
  const int64_t needed = std::max(stored_logits_bytes(source), stored_logits_bytes(result));
  const int64_t free = free_memory_bytes(Device{});
  if (free >= 0 && needed > free) {
    return fmt::format(
        "logits were not compared: a layer at a time takes {:.1f} GiB, {:.1f} are free",
        static_cast<double>(needed) / 0x1p30, static_cast<double>(free) / 0x1p30);
  }
  Tensor tokens({1, std::min(kTokens, source_config.max_position_embeddings)}, DType::kInt64, {});
  int64_t next = 0;
  for (int64_t& token : tokens.span<int64_t>()) token = (next += 7919) % vocab_rows;
  const Tensor a = stored_logits(source, source_config, tokens);  // [s, b, v]
  const Tensor b = stored_logits(result, result_config, tokens);
  const auto epsilon_of = [](const CheckpointContents& contents) {
    switch (contents.sections.at(kWeightsSection).begin()->second.dtype) {
      case DType::kBFloat16:
        return 0x1p-8;
      case DType::kFloat16:
        return 0x1p-11;
      default:
        return 0x1p-24;
    }
  };
  // Weights of one dtype give the same bits; sums of rounded ones drift by more than one step.
  constexpr double kSteps = 32;
  const double tolerance = epsilon_of(source) == epsilon_of(result)
                               ? 0.0
                               : kSteps * std::max(epsilon_of(source), epsilon_of(result));
  double largest = 0;
  double difference = 0;
  for (int64_t position = 0; position < a.size(0); ++position) {
    const float* x = a.span<float>().data() + position * a.size(2);
    const float* y = b.span<float>().data() + position * b.size(2);
    for (int64_t id = 0; id < vocab_rows; ++id) {
      largest = std::max<double>(largest, std::abs(x[id]));
      // NaN in one of them alone is a difference.
      const double step = std::isnan(x[id]) && std::isnan(y[id]) ? 0.0 : std::abs(x[id] - y[id]);
      difference = std::isnan(step) ? INFINITY : std::max(difference, step);
    }
  }
  if (difference > tolerance * largest) {
    throw InternalError(fmt::format(
        "the logits of {} differ from those of {} by {} (largest logit {}); the result is wrong",
        result.directory.string(), source.directory.string(), difference, largest));
  }
  return fmt::format("logits of {} tokens differ by {:.2g} at most (largest {:.3g})",
                     tokens.numel(), difference, largest);
}

}  // namespace megatron
