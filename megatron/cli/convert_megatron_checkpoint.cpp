#include "megatron/cli/convert_megatron_checkpoint.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "megatron/cli/command.h"
#include "megatron/cli/convert_checkpoint.h"
#include "megatron/core/error.h"
#include "megatron/formats/json_file.h"
#include "megatron/settings/flag_table.h"

namespace megatron::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConvertUsage =
    "megatron convert-megatron-checkpoint [flags] <path>\n\n"
    "Writes config.json and pytorch_model.bin beside <path>: a file model_optim_rng.pt of "
    "Megatron-LM, or a .zip archive of a release.";

// The directory that holds `path`, or `path` itself if it is a directory.
fs::path directory_of(const fs::path& path) {
  if (fs::is_directory(path)) return path;
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// The sizes in a config.json that tensors do not show, as flags of convert-checkpoint.
std::vector<std::string> size_flags(const std::string& config_file) {
  const nlohmann::json config = read_json(config_file);
  std::vector<std::string> words;
  const auto add = [&](const char* key, const char* flag) {
    const auto value = config.find(key);
    if (value == config.end() || !value->is_number_integer()) return;
    words.insert(words.end(), {flag, value->dump()});
  };
  add("n_head", "--num-attention-heads");               // of a GPT-2
  add("num_attention_heads", "--num-attention-heads");  // of a BERT
  add("vocab_size", "--true-vocab-size");
  return words;
}

}  // namespace

int convert_megatron_checkpoint(std::span<const std::string> words) {
  bool print_structure = false;
  std::string config_file;
  std::string tokenizer_name;
  int64_t heads = 0;
  FlagTable flags;
  flags.group("conversion");
  flags.add_switch("--print-checkpoint-structure", print_structure,
                   "List the tensors of the checkpoint.");
  flags.add_optional("--config_file", config_file,
                     "A config.json for a checkpoint without stored sizes.");
  flags.add_optional("--num-attention-heads", heads,
                     "Attention heads, for a checkpoint without stored settings.");
  flags.add_optional("--tokenizer_name", tokenizer_name,
                     "Folder of a tokenizer, or name of a model in Hugging Face's cache (gpt2): "
                     "its files are copied.");
  std::vector<std::string> rest(words.begin(), words.end());
  std::vector<std::string> own = flags.take_own(rest);
  std::string path;
  if (!rest.empty() && !rest.front().starts_with('-')) {
    path = rest.front();
    rest.erase(rest.begin());
  }
  own.insert(own.end(), rest.begin(), rest.end());
  if (!parse_flags(flags, kConvertUsage, own)) return 0;
  if (path.empty()) throw ConfigError("the path of the checkpoint is missing; give it as a word");

  std::vector<std::string> conversion = {"--load-dir",
                                         path,
                                         "--save-dir",
                                         directory_of(path).string(),
                                         "--saver",
                                         "hf",
                                         "--no-safe-serialization"};
  // Compat: transformers' script gives each GPT-2 the end of a text of the published one.
  conversion.insert(conversion.end(), {"--default-eos-token-id", "50256"});
  if (print_structure) conversion.emplace_back("--print-checkpoint-structure");
  if (!config_file.empty()) {
    const std::vector<std::string> sizes = size_flags(config_file);
    conversion.insert(conversion.end(), sizes.begin(), sizes.end());
  }
  if (!tokenizer_name.empty()) {
    conversion.insert(conversion.end(), {"--tokenizer_name", tokenizer_name});
  }
  if (heads > 0) {
    conversion.insert(conversion.end(), {"--num-attention-heads", std::to_string(heads)});
  }
  return convert_checkpoint(conversion);
}

}  // namespace megatron::cli
