#include "megatron/interchange/model_kind.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "megatron/core/error.h"

namespace megatron {
namespace {

const char* training_command(ModelKind kind) {
  switch (kind) {
    case ModelKind::kGpt:
      return "pretrain-gpt";
    case ModelKind::kBert:
      return "pretrain-bert";
    case ModelKind::kT5:
      return "pretrain-t5";
  }
  throw InternalError("training_command: unknown kind of model");
}

}  // namespace

ModelKind kind_of(const CheckpointContents& contents) {
  const auto weights = contents.sections.find(kWeightsSection);
  if (weights == contents.sections.end()) return ModelKind::kGpt;
  const auto has = [&](std::string_view stack) {
    return std::ranges::any_of(weights->second,
                               [&](const auto& entry) { return entry.first.starts_with(stack); });
  };
  if (!has("encoder.")) return ModelKind::kGpt;
  return has("decoder.") ? ModelKind::kT5 : ModelKind::kBert;
}

void expect_kind(const CheckpointSource& source, ModelKind kind) {
  if (source.kind() == kind) return;
  throw ConfigError(fmt::format("--load {}: is a {}, and {} trains a {}; use {}",
                                source.directory().string(), name_of(source.kind()),
                                training_command(kind), name_of(kind),
                                training_command(source.kind())));
}

}  // namespace megatron
