#include "megatron/inference/text_rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "megatron/core/error.h"

namespace megatron {

void expect_texts(const IdRows& ids) {
  if (ids.empty() || ids[0].empty()) throw ConfigError("the text has no tokens; give it some");
  for (const std::vector<int32_t>& row : ids) {
    if (row.size() == ids[0].size()) continue;
    throw ConfigError("the texts of one line must be equally long; pad the shorter ones");
  }
}

void expect_like_ids(const IdRows& rows, const IdRows& ids, const char* what) {
  const bool is_like = std::ranges::equal(
      rows, ids, {}, [](const auto& row) { return row.size(); },
      [](const auto& row) { return row.size(); });
  if (is_like) return;
  throw ConfigError(fmt::format("\"{}\" must have a value for each of \"ids\"", what));
}

void expect_below(const IdRows& rows, int64_t limit, const char* what, const char* remedy) {
  for (const std::vector<int32_t>& row : rows) {
    for (const int32_t value : row) {
      if (value >= 0 && value < limit) continue;
      throw ConfigError(
          fmt::format("{} {} must be at least 0 and below {}; {}", what, value, limit, remedy));
    }
  }
}

Tensor tensor_of_rows(const IdRows& rows) {
  std::vector<int64_t> values;
  for (const std::vector<int32_t>& row : rows) values.insert(values.end(), row.begin(), row.end());
  return tensor_of(values,
                   {static_cast<int64_t>(rows.size()), static_cast<int64_t>(rows[0].size())});
}

Tensor padding_mask_of(const IdRows& attention_mask, const IdRows& ids) {
  if (attention_mask.empty()) return {};
  expect_like_ids(attention_mask, ids, "attention_mask");
  const Tensor seen = tensor_of_rows(attention_mask);
  Tensor hidden(seen.shape(), DType::kBool, Stream{});
  for (size_t i = 0; i < static_cast<size_t>(seen.numel()); ++i) {
    hidden.span<bool>()[i] = seen.span<int64_t>()[i] == 0;
  }
  return hidden;
}

Targets targets_of(const IdRows& labels, int64_t vocab_size) {
  Targets targets = {.labels = tensor_of_rows(labels), .loss_mask = {}};
  targets.loss_mask = Tensor(targets.labels.shape(), DType::kFloat32, Stream{});
  bool has_any = false;
  for (size_t i = 0; i < static_cast<size_t>(targets.labels.numel()); ++i) {
    int64_t& label = targets.labels.span<int64_t>()[i];
    const bool counts = label != kDoesNotCount;
    if (!counts) label = 0;
    if (label < 0 || label >= vocab_size) {
      throw ConfigError(
          fmt::format("label {} must be -100 or a token id below {}", label, vocab_size));
    }
    targets.loss_mask.span<float>()[i] = counts ? 1.0F : 0.0F;
    has_any = has_any || counts;
  }
  if (!has_any) throw ConfigError("all \"labels\" are -100, so that no word counts");
  return targets;
}

}  // namespace megatron
