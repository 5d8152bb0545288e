#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/interchange/megatron/names.h"

// The names of parameters in checkpoints of DeepSpeed.
namespace megatron {

// Layers of BigScience's pipeline: 0 casts, 2 and the one after the transformer's layers transpose;
// they have no parameters.
inline constexpr int kPipelineEmbedding = 1;
inline constexpr int kPipelineFirstLayer = 3;
inline constexpr int kPipelineAfterLayers = 2;  // from the last layer to the final norm

// The path without wrapper modules.
std::string_view unwrapped(std::string_view parameter);

// Splits "4.mlp.dense_h_to_4h.bias" or "tied_modules.embed.K" into the number of the pipeline layer
// and the rest; nothing for a parameter of a module without a pipeline.
struct PipelineName {
  int layer = 0;
  std::string key;
};
std::optional<PipelineName> pipeline_name(std::string_view parameter);

// Maps DeepSpeed's names of parameters to ours.
class DeepSpeedNames {
 public:
  // For a model with these parameters, in DeepSpeed's names.
  explicit DeepSpeedNames(const std::vector<std::string>& parameters);

  ModelKind kind() const { return kind_; }
  // The last layer of a pipeline, the final norm; 0 without a pipeline.
  int last_layer() const { return last_layer_; }
  // Nothing for the copy of a tied embedding. Throws Unsupported for a parameter of no model here.
  std::optional<std::string> ours(std::string_view parameter, const std::string& file) const;

 private:
  ModelKind kind_ = {};
  int last_layer_ = 0;
};

}  // namespace megatron
