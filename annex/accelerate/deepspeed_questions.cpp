#include "annex/accelerate/deepspeed_questions.h"

#include <fmt/format.h>

#include <filesystem>

#include "annex/deepspeed/relaxed_json.h"
#include "megatron/core/file.h"
#include "megatron/core/parts.h"

namespace megatron::frontends {
namespace {

using nlohmann::json;
using Version = AccelerateVersion;
using Rows = std::vector<std::string>;

void ask_for_offload(Prompt& prompt, const char* what, const char* key, json& answers) {
  const Rows devices = {"none", "cpu", "nvme"};
  const std::string device =
      devices[prompt.choose(fmt::format("Where are {} kept?", what), devices)];
  answers[fmt::format("{}_device", key)] = device;
  if (device == "nvme") {
    answers[fmt::format("{}_nvme_path", key)] =
        prompt.text(fmt::format("In which folder are {} kept?", what), "/nvme");
  }
}

void ask_for_stage(Prompt& prompt, json& answers) {
  const size_t stage = prompt.choose("Which stage of ZeRO?", {"0", "1", "2", "3"}, 2);
  answers["zero_stage"] = stage;
  if (stage >= 2) {
    ask_for_offload(prompt, "optimizer states", "offload_optimizer", answers);
    ask_for_offload(prompt, "parameters", "offload_param", answers);
  }
  answers["gradient_accumulation_steps"] =
      prompt.integer("How many micro-batches has an iteration?", 1);
  if (prompt.yes("Clip gradients?", false)) {
    answers["gradient_clipping"] = prompt.number("To which norm?", 1.0);
  }
  if (stage == 3) {
    answers["zero3_save_16bit_model"] =
        prompt.yes("Save the 16-bit weights as a whole in stage 3?", false);
  }
}

void ask_for_hosts(Prompt& prompt, Version version, json& answers) {
  Rows launchers = {"pdsh", "standard", "openmpi", "mvapich", "mpich"};
  if (version >= Version::k1_15) launchers.insert(launchers.end(), {"nossh", "slurm"});
  const std::string launcher =
      launchers[prompt.choose("Which launcher starts the other machines?", launchers)];
  answers["deepspeed_multinode_launcher"] = launcher;
  if (launcher == "standard") return;
  answers["deepspeed_hostfile"] = prompt.any_text("Which hostfile (lines such as: gpu0 slots=8)?");
  for (const char* const kind : {"exclusion", "inclusion"}) {
    if (prompt.yes(fmt::format("Give an {} filter?", kind), false)) {
      answers[fmt::format("deepspeed_{}_filter", kind)] =
          prompt.text(fmt::format("Which {} filter?", kind));
    }
  }
}

std::string ask_for_json_file(Prompt& prompt) {
  for (;;) {
    const std::string path = prompt.text("Which JSON file of DeepSpeed?");
    if (std::filesystem::exists(path)) return path;
    prompt.say(fmt::format("{} does not exist.", path));
  }
}

}  // namespace

json ask_for_deepspeed(Prompt& prompt, AccelerateVersion version, bool has_several_machines) {
  json answers = json::object();
  if (prompt.yes("Use a JSON file of DeepSpeed?", false)) {
    answers["deepspeed_config_file"] = ask_for_json_file(prompt);
  } else {
    ask_for_stage(prompt, answers);
  }
  answers["zero3_init_flag"] = prompt.yes("Build the model in shards in stage 3?", false);
  if (version >= Version::k1_0 && prompt.yes("Train a mixture of experts?", false)) {
    answers["deepspeed_moe_layer_cls_names"] =
        prompt.text("Which classes are its layers (names with commas)?");
  }
  if (has_several_machines) ask_for_hosts(prompt, version, answers);
  return answers;
}

bool names_precision(const json& deepspeed_config) {
  if (!deepspeed_config.contains("deepspeed_config_file")) return false;
  const std::string path = deepspeed_config["deepspeed_config_file"].get<std::string>();
  if constexpr (kHasDeepSpeed) {
    const json file = read_relaxed_json(read_text(path), path);
    return file.contains("fp16") || file.contains("bf16");
  } else {
    refuse_missing(path, "MG_DEEPSPEED");
  }
}

}  // namespace megatron::frontends
