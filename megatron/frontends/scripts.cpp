#include "megatron/frontends/scripts.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "megatron/core/error.h"

namespace megatron::frontends {
namespace {

struct Script {
  std::string_view name;       // of the file; with a folder where the file's name says too little
  std::string_view command;    // empty: there is none yet
  std::string_view tool = {};  // the word behind the command, if it has several tools
};

constexpr Script kScripts[] = {
    {"pretrain_gpt.py", "pretrain-gpt"},
    {"pretrain_bert.py", "pretrain-bert"},
    {"pretrain_t5.py", "pretrain-t5"},
    {"pretrain_ict.py", ""},
    {"pretrain_retro.py", "pretrain-retro"},
    {"pretrain_prefix_lm.py", "pretrain-prefix-lm"},
    {"pretrain_vision_classify.py", ""},
    {"pretrain_vision_inpaint.py", ""},
    {"pretrain_vision_dino.py", ""},
    {"finetune_t0_non_causal_decoder.py", ""},
    {"megatron_lm_gpt_pretraining.py", "finetune"},
    {"run_clm_no_trainer.py", "finetune"},
    {"run_clm.py", "finetune"},
    {"run_mlm_no_trainer.py", "finetune"},
    {"run_mlm.py", "finetune"},
    {"run_glue_no_trainer.py", "finetune"},
    {"run_glue.py", "finetune"},
    {"run_summarization_no_trainer.py", "finetune"},
    {"run_summarization.py", "finetune"},
    {"retro/main.py", "retro-preprocess"},
    {"retro/preprocess_data.py", "retro-preprocess"},
    {"sft_retro.py", "retro-finetune"},
    {"retro_text_generation.py", "retro-generate"},
    {"text_generation/evaluate.py", "retro-eval"},
    {"preprocess_data.py", "preprocess-data"},
    {"preprocess_data_many_cores.py", "preprocess-data"},
    {"merge_datasets.py", "merge-datasets"},
    {"merge_preprocessed_data.py", "merge-datasets"},
    {"generate_samples_gpt.py", "generate"},
    {"megatron_gpt2_generation.py", "generate"},
    {"run_text_generation_server.py", "serve"},
    {"text_generation_cli.py", "text-generation-cli"},
    {"checkpoint/util.py", "convert-checkpoint"},
    {"checkpoint/convert.py", "convert-checkpoint"},
    {"checkpoint_util.py", "convert-checkpoint"},
    {"checkpoint_reshaping_and_interoperability.py", "convert-checkpoint"},
    {"convert_megatron_gpt2_checkpoint.py", "convert-megatron-checkpoint"},
    {"convert_megatron_bert_checkpoint.py", "convert-megatron-checkpoint"},
    {"merge_mp_partitions.py", "merge-mp-partitions"},
    {"deepspeed_to_megatron.py", "convert-checkpoint"},
    {"deepspeed_to_transformers.py", "convert-checkpoint", "--saver=hf"},
    // Not needed here: native checkpoints load in any parallel layout.
    {"deepspeed_to_deepspeed.py", "convert-checkpoint", "--saver=native"},
    {"ds_to_universal.py", "convert-checkpoint", "--saver=native"},
    {"zero_to_fp32.py", "convert-checkpoint", "zero-to-fp32"},
    {"blacklist_urls.py", "corpus", "blacklist-urls"},
    {"cleanup_dataset.py", "corpus", "clean"},
    {"cleanup_fix_dataset.py", "corpus", "fix"},
    {"find_duplicates.py", "corpus", "find-duplicates"},
    {"group_duplicate_url.py", "corpus", "group-duplicates"},
    {"remove_group_duplicates.py", "corpus", "remove-duplicates"},
    {"merge_jsons.py", "corpus", "merge"},
    {"add_id.py", "corpus", "add-id"},
    {"filter_ngrams.py", "corpus", "filter-ngrams"},
    {"perspective_api_annotate.py", "corpus", "annotate-toxicity"},
    {"filter-selfgeneration.py", "corpus", "keep-least-toxic"},
    {"perspective_api.py", "corpus", "measure-toxicity"},
    {"finetune_gpt.py", "pretrain-gpt"},
    {"tasks/main.py", "evaluate"},
    {"tasks/eval_harness/evaluate.py", ""},
};

struct Module {
  std::string_view name;
  std::string_view command;
  std::string_view tool = {};
};

constexpr Module kModules[] = {
    {"torch.distributed.launch", "launch"},
    {"torch.distributed.run", "launch"},
    {"accelerate.commands.launch", "accelerate", "launch"},
    {"accelerate.commands.accelerate_cli", "accelerate"},
    {"deepspeed.launcher.runner", "deepspeed"},
};

// True if `path` is `name`, or ends with it after a slash.
bool is_file(std::string_view path, std::string_view name) {
  if (!path.ends_with(name)) return false;
  return path.size() == name.size() || path[path.size() - name.size() - 1] == '/';
}

}  // namespace

std::string command_of_script(const std::string& script) { return words_of_script(script).front(); }

std::vector<std::string> words_of_script(const std::string& script) {
  if (!script.ends_with(".py")) return {script};
  for (const Script& known : kScripts) {
    if (!is_file(script, known.name)) continue;
    if (known.command.empty()) {
      throw ConfigError(
          fmt::format("{} has no command here yet; --help lists the commands", script));
    }
    if (known.tool.empty()) return {std::string(known.command)};
    return {std::string(known.command), std::string(known.tool)};
  }
  throw ConfigError(fmt::format(
      "{} is a Python script that no command stands for; name a command, such as pretrain-gpt",
      script));
}

bool imports_package(const std::string& script) {
  if (!script.ends_with(".py")) return false;
  std::ifstream file(script);
  std::string line;
  while (std::getline(file, line)) {
    const size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string::npos) continue;
    const std::string_view text = std::string_view(line).substr(begin);
    if (text.starts_with("import megatron_cpp") || text.starts_with("from megatron_cpp"))
      return true;
  }
  return false;
}

std::vector<std::string> words_of_python(std::span<const std::string> words) {
  constexpr std::string_view kOptions[] = {"-u", "-B", "-E", "-I", "-O", "-OO", "-s", "-S"};
  size_t next = 0;
  while (next < words.size() && std::ranges::find(kOptions, words[next]) != std::end(kOptions)) {
    ++next;
  }
  std::vector<std::string> all;
  if (next + 1 < words.size() && words[next] == "-m") {
    const std::string& module = words[next + 1];
    const auto* known = std::ranges::find(kModules, std::string_view(module), &Module::name);
    if (known == std::end(kModules)) {
      throw ConfigError(
          fmt::format("-m {} is a Python module that no command stands for; those of the launchers "
                      "torch.distributed.launch, torch.distributed.run, accelerate and deepspeed "
                      "are known",
                      module));
    }
    all.emplace_back(known->command);
    if (!known->tool.empty()) all.emplace_back(known->tool);
    next += 2;
  }
  all.insert(all.end(), words.begin() + static_cast<std::ptrdiff_t>(next), words.end());
  return all;
}

std::vector<std::string> words_of_link(std::string_view path) {
  const size_t slash = path.rfind('/');
  const std::string_view name = slash == std::string_view::npos ? path : path.substr(slash + 1);
  constexpr std::string_view kPrefix = "accelerate-";
  if (name == "accelerate" || name == "deepspeed") return {std::string(name)};
  if (name == "torchrun") return {"launch"};
  if (name.starts_with(kPrefix)) return {"accelerate", std::string(name.substr(kPrefix.size()))};
  return {};
}

}  // namespace megatron::frontends
