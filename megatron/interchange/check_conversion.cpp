#include "megatron/interchange/check_conversion.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "megatron/core/error.h"
#include "megatron/device/free_memory.h"
#include "megatron/formats/safetensors.h"
#include "megatron/interchange/stored_logits.h"

namespace megatron {
namespace {

// [1, s] ids below `vocab_size`.
Tensor some_tokens(const TransformerConfig& config, int64_t vocab_size) {
  constexpr int64_t kTokens = 16;
  Tensor tokens({1, std::min(kTokens, config.max_position_embeddings)}, DType::kInt64, {});
  int64_t next = 0;
  for (int64_t& token : tokens.span<int64_t>()) token = (next += 7919) % vocab_size;
  return tokens;
}

double epsilon_of(const CheckpointContents& contents) {
  switch (contents.sections.at(kWeightsSection).begin()->second.dtype) {
    case DType::kBFloat16:
      return 0x1p-8;
    case DType::kFloat16:
      return 0x1p-11;
    default:
      return 0x1p-24;
  }
}

// Tolerance of logits, relative to the largest. Weights of one dtype give the same bits; sums of
// rounded ones drift by more than one step.
double tolerance_between(const CheckpointContents& a, const CheckpointContents& b) {
  constexpr double kSteps = 32;
  return epsilon_of(a) == epsilon_of(b) ? 0.0 : kSteps * std::max(epsilon_of(a), epsilon_of(b));
}

std::span<const float> row_of(const Tensor& logits, int64_t position, int64_t ids) {
  return logits.span<float>().subspan(static_cast<size_t>(position * logits.size(2)),
                                      static_cast<size_t>(ids));
}

struct LogitDifference {
  double difference = 0;  // the largest; infinite where one of them alone is NaN
  double largest = 0;
};

// The loss over the first `ids` columns of logits [s, 1, v].
LogitDifference difference_of(const Tensor& a, const Tensor& b, int64_t ids) {
  LogitDifference result;
  for (int64_t position = 0; position < a.size(0); ++position) {
    const std::span<const float> x = row_of(a, position, ids);
    const std::span<const float> y = row_of(b, position, ids);
    for (size_t id = 0; id < x.size(); ++id) {
      result.largest = std::max<double>(result.largest, std::abs(x[id]));
      const double step = std::isnan(x[id]) && std::isnan(y[id]) ? 0.0 : std::abs(x[id] - y[id]);
      result.difference = std::isnan(step) ? INFINITY : std::max(result.difference, step);
    }
  }
  return result;
}

// The mean negative log-likelihood of tokens [1, s] after the first, where the first `ids` columns
// of the logits [s, 1, v] have a probability.
double loss_of(const Tensor& logits, const Tensor& tokens, int64_t ids) {
  double loss = 0;
  const int64_t last = logits.size(0) - 1;
  for (int64_t position = 0; position < last; ++position) {
    const std::span<const float> row = row_of(logits, position, ids);
    const double largest = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (const float logit : row) sum += std::exp(logit - largest);
    const auto next = tokens.span<int64_t>()[static_cast<size_t>(position + 1)];
    loss += largest + std::log(sum) - row[static_cast<size_t>(next)];
  }
  return last > 0 ? loss / static_cast<double>(last) : 0;
}

// A tensor that the other format needs and the model does not have changes nothing.
void expect_zeros(ConstView view, const std::string& name) {
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(view.data),
                                         static_cast<size_t>(view.bytes()));
  if (std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; })) return;
  throw InternalError(fmt::format("{} was not read, and is not zero in what was written", name));
}

}  // namespace

void expect_same_tensors(const CheckpointContents& want, const CheckpointContents& got,
                         int64_t vocab_rows) {
  for (const auto& [section, tensors] : got.sections) {
    const auto known = want.sections.find(section);
    if (known == want.sections.end()) continue;
    for (const auto& [name, tensor] : tensors) {
      FileElements b = whole_elements(tensor);
      const auto before = known->second.find(name);
      if (before == known->second.end()) {
        expect_zeros(b.view, name);
        continue;
      }
      FileElements a = whole_elements(before->second);
      for (FileElements* side : {&a, &b}) {
        if (!has_vocabulary_rows(name)) continue;
        const int64_t rows = std::min(vocab_rows, side->view.shape[0]);
        side->view.shape = side->view.shape.with(0, rows);
      }
      if (a.view.dtype != b.view.dtype && b.view.dtype == DType::kFloat32) {  // it holds all of a
        const Tensor wide = cast(copy_of(a.view), DType::kFloat32);
        a = {wide.view(), wide};
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

std::vector<std::string> compare_models(const StoredModel& source, const StoredModel& result) {
  const int64_t needed =
      std::max(stored_logits_bytes(source.contents), stored_logits_bytes(result.contents));
  const int64_t free = free_memory_bytes(Device{});
  if (free >= 0 && needed > free) {
    return {
        fmt::format("logits were not compared: a layer at a time takes {:.1f} GiB, {:.1f} are free",
                    static_cast<double>(needed) / 0x1p30, static_cast<double>(free) / 0x1p30)};
  }
  const int64_t ids =
      std::min(source.config.counted_vocab_size(), result.config.counted_vocab_size());
  const Tensor tokens = some_tokens(source.config, ids);
  const Tensor a = stored_logits(source.contents, source.config, tokens);  // [s, b, v]
  const Tensor b = stored_logits(result.contents, result.config, tokens);
  const double tolerance = tolerance_between(source.contents, result.contents);
  const LogitDifference logits = difference_of(a, b, ids);
  if (logits.difference > tolerance * logits.largest) {
    throw InternalError(fmt::format(
        "the logits of {} differ from those of {} by {} (largest logit {}); the result is wrong",
        result.contents.directory.string(), source.contents.directory.string(), logits.difference,
        logits.largest));
  }
  const int64_t before = source.config.counted_vocab_size();
  const int64_t after = result.config.counted_vocab_size();
  const double loss = loss_of(a, tokens, before);
  const double loss_after = loss_of(b, tokens, after);
  if (before == after && std::abs(loss - loss_after) > 2 * tolerance * logits.largest) {
    throw InternalError(fmt::format("the loss of {} is {}, that of {} {}; the result is wrong",
                                    result.contents.directory.string(), loss_after,
                                    source.contents.directory.string(), loss));
  }
  std::vector<std::string> lines = {
      fmt::format("logits of {} tokens differ by {:.2g} at most (largest {:.3g})", tokens.numel(),
                  logits.difference, logits.largest),
      fmt::format("their loss is {:.6g}, {:.6g} before", loss_after, loss)};
  if (before != after) {
    lines.push_back(fmt::format("{} ids count in the result, {} in the source", after, before));
  }
  if (after < result.config.padded_vocab_size) {
    lines.push_back(
        fmt::format("programs that count the {} padding rows too compute the loss {:.6g}",
                    result.config.padded_vocab_size - after,
                    loss_of(b, tokens, result.config.padded_vocab_size)));
  }
  return lines;
}

}  // namespace megatron
