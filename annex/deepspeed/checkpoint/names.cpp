#include "annex/deepspeed/checkpoint/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "megatron/core/error.h"

namespace megatron {
namespace {

constexpr std::string_view kTied = "tied_modules.embed.";
constexpr std::string_view kWrapper = "module.";

// The path that Megatron-LM's own files have for a parameter of the pipeline.
std::string megatron_path(const PipelineName& name, int last_layer) {
  if (name.layer == kPipelineEmbedding) return "language_model.embedding." + name.key;
  if (name.layer == last_layer) return "language_model.encoder.final_layernorm." + name.key;
  return fmt::format("language_model.encoder.layers.{}.{}", name.layer - kPipelineFirstLayer,
                     name.key);
}

}  // namespace

std::string_view unwrapped(std::string_view parameter) {
  while (parameter.starts_with(kWrapper)) parameter.remove_prefix(kWrapper.size());
  return parameter;
}

std::optional<PipelineName> pipeline_name(std::string_view parameter) {
  if (parameter.starts_with(kTied)) {
    return PipelineName{kPipelineEmbedding, std::string(parameter.substr(kTied.size()))};
  }
  const std::string name(parameter);
  int layer = 0;
  int end = 0;
  if (std::sscanf(name.c_str(), "%d.%n", &layer, &end) != 1 || end == 0) return std::nullopt;
  return PipelineName{layer, name.substr(static_cast<size_t>(end))};
}

DeepSpeedNames::DeepSpeedNames(const std::vector<std::string>& parameters) {
  std::vector<std::string> paths;
  for (const std::string& parameter : parameters) {
    if (const auto name = pipeline_name(parameter)) {
      last_layer_ = std::max(last_layer_, name->layer);
    } else {
      paths.emplace_back(unwrapped(parameter));
    }
  }
  if (last_layer_ == 0) kind_ = kind_of_paths(paths);
}

std::optional<std::string> DeepSpeedNames::ours(std::string_view parameter,
                                                const std::string& file) const {
  const std::optional<PipelineName> place = pipeline_name(parameter);
  const std::string path =
      place ? megatron_path(*place, last_layer_) : std::string(unwrapped(parameter));
  const std::optional<MegatronName> name = find_megatron_name(kind_, path);
  if (!name) {
    throw Unsupported(
        fmt::format("{}: a {} of this program has no {}", file, name_of(kind_), parameter));
  }
  if (name->is_tied_copy) return std::nullopt;
  return name->layer ? with_layer(name->ours, *name->layer) : name->ours;
}

}  // namespace megatron
