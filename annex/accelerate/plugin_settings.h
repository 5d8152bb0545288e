#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "megatron/frontends/override_settings.h"

namespace megatron::frontends {

// The variable that carries the settings below from the launcher to the ranks, as JSON.
inline constexpr const char* kPluginVariable = "MEGATRON_LM_OTHER_ARGS";

// The fields of Accelerate's MegatronLMPlugin in a megatron_lm_config, apart from the seven that
// the questionnaire asks for: Megatron-LM's settings by their names (with or without the prefix
// megatron_lm_), and the map other_megatron_args, which takes precedence. Appends a sentence for
// each key without effect.
nlohmann::json plugin_settings(const nlohmann::json& megatron_lm_config,
                               std::vector<std::string>& warnings);

// Applies them to the flags of a training program. Accepts the documents' names for positions
// (absolute, rotary) and heads (attention_head_type multihead, multiquery). Problems are appended,
// one sentence each.
void apply_plugin_settings(const std::string& text, OverrideSettings& settings,
                           std::vector<std::string>& problems);

}  // namespace megatron::frontends
