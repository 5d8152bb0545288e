#include "megatron/interchange/model_kind.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "megatron/core/error.h"

namespace megatron {
ModelKind kind_of(const CheckpointContents& contents) {
  const auto weights = contents.sections.find(kWeightsSection);
  if (weights == contents.sections.end()) return kind_with(false, true);
  const auto has = [&](std::string_view stack) {
    return std::ranges::any_of(weights->second,
                               [&](const auto& entry) { return entry.first.starts_with(stack); });
  };
  return kind_with(has("encoder."), has("decoder."));
}

void expect_kind(const CheckpointSource& source, ModelKind kind) {
  if (source.kind() == kind) return;
  throw ConfigError(fmt::format("--load {}: is a {}, and {} trains a {}; use {}",
                                source.directory().string(), name_of(source.kind()),
                                family_of(kind).training_command, name_of(kind),
                                family_of(source.kind()).training_command));
}

}  // namespace megatron
