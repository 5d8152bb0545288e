#include <utility>

#include "megatron/core/error.h"
#include "megatron/settings/training_args.h"

namespace megatron {

ActivationFlags activation_flags(const TransformerConfig& config) {
  ActivationFlags flags;
  switch (config.activation) {
    case Activation::kGeluTanh:
      // --openai-gelu is for the LM head of a BERT too, the fused GELU for the layers alone.
      flags.openai_gelu = config.has_decoder() || config.head_activation == Activation::kGeluTanh;
      break;
    case Activation::kGeluErf:
      flags.bias_gelu_fusion = false;
      break;
    case Activation::kGeluOnnx:
      flags.onnx_safe = true;
      break;
    case Activation::kSquaredRelu:
      flags.squared_relu = true;
      break;
    case Activation::kSwiglu:
      flags.swiglu = true;
      break;
    case Activation::kGeglu:
      flags.glu_activation = GluActivation::kGeglu;
      break;
    case Activation::kLiglu:
      flags.glu_activation = GluActivation::kLiglu;
      break;
    case Activation::kReglu:
      flags.glu_activation = GluActivation::kReglu;
      break;
    case Activation::kSwigluSecond:
      flags.glu_activation = GluActivation::kSwiglu;
      break;
    case Activation::kGegluTanh:
      flags.glu_activation = GluActivation::kGegluTanh;
      break;
    case Activation::kGegluTanhFirst:
      flags.glu_activation = GluActivation::kGegluTanhFirst;
      break;
    case Activation::kClampedQuickGeglu:
      flags.glu_linear_offset = 1.0;
      flags.activation_func_clamp_value = 7.0;
      [[fallthrough]];
    case Activation::kQuickGeglu:
      flags.quick_geglu = true;
      break;
    case Activation::kRelu:
      flags.relu = true;
      break;
  }
  return flags;
}

TrainingArgs args_of(const RunConfig& config) {
  TrainingArgs args;
  const FlagTable flags = training_flags(args);  // for the defaults
  static_cast<RunConfig&>(args) = config;
  args.activation = activation_flags(config.transformer);
  const int64_t window = config.transformer.attention_window;
  if (window > 0) args.legacy.window_size = {window - 1, 0};
  args.given = flags.changed();
  return args;
}

RunConfig resolved(const RunConfig& config, int64_t world_size) {
  std::vector<std::string> problems;
  TrainingArgs args = resolved(args_of(config), world_size, problems);
  for (std::string& problem : unavailable(args)) problems.push_back(std::move(problem));
  if (!problems.empty()) throw ConfigError(problems);
  args.settings = arg_map(args);
  return args;
}

}  // namespace megatron
