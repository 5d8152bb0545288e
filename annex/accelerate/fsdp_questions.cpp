#include "annex/accelerate/fsdp_questions.h"

namespace megatron::frontends {
namespace {

using nlohmann::json;
using Version = AccelerateVersion;
using Rows = std::vector<std::string>;

std::string chosen(Prompt& prompt, const char* question, const Rows& rows, size_t initial = 0) {
  return rows[prompt.choose(question, rows, initial)];
}

void ask_for_wrapping(Prompt& prompt, json& answers) {
  const std::string policy = chosen(prompt, "How are modules wrapped?",
                                    {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"});
  answers["fsdp_auto_wrap_policy"] = policy;
  if (policy == "TRANSFORMER_BASED_WRAP") {
    if (!prompt.yes("Wrap the modules that the model names itself?", false)) {
      answers["fsdp_transformer_layer_cls_to_wrap"] =
          prompt.any_text("Which classes are wrapped (names with commas)?");
    }
  } else if (policy == "SIZE_BASED_WRAP") {
    answers["fsdp_min_num_params"] =
        prompt.integer("From how many parameters on is a module wrapped?", 100000000);
  }
}

void ask_for_loading(Prompt& prompt, bool is_first_version, json& answers) {
  answers["fsdp_cpu_ram_efficient_loading"] = prompt.yes("Load the model on one rank only?", true);
  if (!is_first_version) return;
  answers["fsdp_sync_module_states"] =
      answers["fsdp_cpu_ram_efficient_loading"] == true ||
      prompt.yes("Broadcast the parameters of rank 0 at the start?", true);
}

}  // namespace

json ask_for_fsdp(Prompt& prompt, AccelerateVersion version) {
  json answers = json::object();
  bool is_first_version = true;  // of FSDP
  if (version >= Version::k1_15) {
    is_first_version = prompt.choose("Which version of FSDP?", {"1", "2"}, 1) == 0;
    answers["fsdp_version"] = is_first_version ? 1 : 2;
  }
  if (is_first_version) {
    answers["fsdp_sharding_strategy"] =
        chosen(prompt, "What is sharded?",
               {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"});
  } else {
    answers["fsdp_reshard_after_forward"] = prompt.yes("Shard again after the forward pass?", true);
  }
  answers["fsdp_offload_params"] = prompt.yes("Keep parameters and gradients on the CPU?", false);
  ask_for_wrapping(prompt, answers);
  if (is_first_version) {
    answers["fsdp_backward_prefetch"] = chosen(prompt, "What does the backward pass fetch ahead?",
                                               {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"});
    answers["fsdp_state_dict_type"] =
        chosen(prompt, "What does a checkpoint hold?",
               {"FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"}, 2);
    answers["fsdp_forward_prefetch"] = prompt.yes("Does the forward pass fetch ahead?", false);
    answers["fsdp_use_orig_params"] = prompt.yes("Keep the original parameters visible?", true);
  } else {
    answers["fsdp_state_dict_type"] =
        chosen(prompt, "What does a checkpoint hold?", {"SHARDED_STATE_DICT", "FULL_STATE_DICT"});
  }
  ask_for_loading(prompt, is_first_version, answers);
  if (version >= Version::k1_0) {
    answers["fsdp_activation_checkpointing"] = prompt.yes("Recompute activations?", false);
  }
  while (version >= Version::k1_15 && prompt.yes("Use the map parallelism_config?", false)) {
    prompt.say("The parallelism config is not available here; answer no.");
  }
  return answers;
}

}  // namespace megatron::frontends
