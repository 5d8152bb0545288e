#include "megatron/interchange/hf/folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>

#include "megatron/core/checksums.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/log.h"
#include "megatron/formats/json_file.h"
#include "megatron/interchange/hf/names.h"
#include "megatron/interchange/source_settings.h"
#include "megatron/tokenizers/tokenizer_files.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

// transformers' BERT always has a table of token types; one of zeros changes nothing.
constexpr int64_t kHfTokenTypes = 2;

constexpr const char* kUnfinished = ".converting";
constexpr const char* kModelConfigFile = "config.json";

std::string text_in(const ArgMap& args, const char* name) {
  const auto found = args.find(name);
  const std::string* text =
      found != args.end() ? std::get_if<std::string>(&found->second) : nullptr;
  return text != nullptr ? *text : "";
}

std::optional<int64_t> integer_in(const ArgMap& args, const char* name) {
  const auto found = args.find(name);
  const int64_t* value = found != args.end() ? std::get_if<int64_t>(&found->second) : nullptr;
  return value != nullptr ? std::optional(*value) : std::nullopt;
}

void copy_if_there(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (fs::is_regular_file(from, error)) copy_whole_file(from, to);
}

void copy_tokenizer(const fs::path& directory, const ArgMap& args, const fs::path& tokenizer) {
  const bool is_bert = text_in(args, "tokenizer_type").starts_with("BertWordPiece");
  copy_if_there(text_in(args, "vocab_file"), directory / (is_bert ? "vocab.txt" : "vocab.json"));
  copy_if_there(text_in(args, "merge_file"), directory / "merges.txt");
  if (is_bert && fs::exists(directory / "vocab.txt")) {
    const bool is_lower_case = text_in(args, "tokenizer_type") == "BertWordPieceLowerCase";
    const nlohmann::json config = {{"tokenizer_class", "BertTokenizer"},
                                   {"do_lower_case", is_lower_case}};
    write_text_atomically(directory / "tokenizer_config.json", config.dump(2) + "\n");
  }
  if (tokenizer.empty()) return;
  copy_if_there(tokenizer / "generation_config.json", directory / "generation_config.json");
  for (const TokenizerFile& file : files_of_tokenizer_folder(tokenizer)) {
    const fs::path copy = directory / file.name;
    fs::create_directories(copy.parent_path());
    copy_if_there(file.path, copy);
  }
}

// The tokenizer whose files are in the folder; null if there is none that can be opened.
std::unique_ptr<Tokenizer> tokenizer_in(const fs::path& directory) {
  try {
    const std::optional<TokenizerConfig> config = tokenizer_of_model(directory);
    return config ? make_tokenizer(*config) : nullptr;
  } catch (const Error& error) {
    warn(fmt::format("the model's tokenizer cannot be opened: {}", error.what()));
    return nullptr;
  }
}

// The ids that the source stored, or else those of the tokenizer whose files are in the folder.
void set_special_tokens(HfModel& model, const fs::path& directory, const ArgMap& args,
                        int64_t default_end) {
  model.bos_token_id = integer_in(args, "bos_token_id");
  model.eos_token_ids = end_tokens_of(args);
  model.pad_token_id = integer_in(args, "pad_token_id");
  model.decoder_start_token_id = integer_in(args, "decoder_start_token_id");
  const bool is_gpt = model.transformer.is_decoder_only();
  if (!model.transformer.has_decoder() || !model.eos_token_ids.empty()) return;
  const std::unique_ptr<Tokenizer> tokenizer = tokenizer_in(directory);
  const auto id_of = [&](SpecialToken token) -> std::optional<int64_t> {
    return tokenizer != nullptr ? tokenizer->special_id(token) : std::nullopt;
  };
  std::optional<int64_t> end = id_of(is_gpt ? SpecialToken::kEod : SpecialToken::kEos);
  if (!end) {
    const bool has_default = default_end > 0 && default_end < model.vocab_size;
    if (has_default) end = default_end;
    const std::string result =
        has_default ? fmt::format("config.json gets the eos_token_id {} by default", default_end)
                    : "config.json gets no eos_token_id, and transformers' generate() will not "
                      "stop by itself";
    warn(
        fmt::format("{}: the source names no token that ends a text{}; give --tokenizer_name with "
                    "the folder of the model's tokenizer",
                    result, tokenizer == nullptr ? " and no tokenizer" : ""));
  }
  if (!end) return;
  model.eos_token_ids = {*end};
  // A GPT-2 has one token for both ends.
  if (is_gpt && !model.bos_token_id) model.bos_token_id = id_of(SpecialToken::kBos).value_or(*end);
}

void write_model(const fs::path& directory, const CheckpointContents& contents,
                 const TransformerConfig& config, const HfFolderOptions& options) {
  const StoredSection& weights = contents.sections.at(kWeightsSection);
  const StoredTensor& words = vocabulary_of(contents);
  HfModel model;
  model.transformer = config;
  model.transformer.padded_vocab_size = words.shape[0];
  model.transformer.params_dtype = words.dtype;
  model.family = &hf_family_of(model.transformer, hf_model_type_of(contents.args));
  if (config.is_encoder_only() && config.tokentypes() == 0) {
    model.transformer.num_tokentypes = kHfTokenTypes;
  }
  model.vocab_size = options.vocab_size > 0 ? options.vocab_size : words.shape[0];
  copy_tokenizer(directory, contents.args, options.tokenizer);
  set_special_tokens(model, directory, contents.args, options.default_end_token);
  model.class_names = options.class_names;
  model.problem_type = options.problem_type;
  if (!model.class_names.empty()) {  // it has no LM head
    model.transformer.head_activation = model.transformer.activation;
  }
  std::vector<TensorSpec> tensors = hf_tensors(model);
  for (TensorSpec& spec : tensors) {
    const auto stored = weights.find(spec.name);
    if (stored != weights.end()) spec.dtype = stored->second.dtype;
  }
  save_hf_model(
      directory, model, tensors, options.max_shard_bytes,
      [&](const TensorSpec& spec) {
        const auto stored = weights.find(spec.name);
        if (stored != weights.end()) return whole_elements(stored->second);
        const Tensor added = zeros(spec.shape, spec.dtype, Stream{});  // token types
        return FileElements{added.view(), added};
      },
      options.format);
}

// True for names of weight files and their index, as written by write_sharded().
bool has_weights_name(const std::string& name) {
  const bool is_safetensors =
      name.starts_with("model") &&
      (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json"));
  const bool is_torch = name.starts_with("pytorch_model") &&
                        (name.ends_with(".bin") || name.ends_with(".bin.index.json"));
  return is_safetensors || is_torch;
}

// Moves all files of a directory into the one above, in place of all weights that are there. A
// folder without config.json is not a model: the old one is removed first, and the new one is
// written last.
void move_up(const fs::path& unfinished, const fs::path& directory) {
  std::vector<fs::path> stale = {directory / kModelConfigFile, directory / kChecksumsFile};
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (has_weights_name(entry.path().filename().string())) stale.push_back(entry.path());
  }
  for (const fs::path& path : stale) fs::remove(path);
  std::vector<fs::path> made;
  for (const fs::directory_entry& entry : fs::directory_iterator(unfinished)) {
    made.push_back(entry.path());
  }
  std::ranges::sort(made, {},
                    [](const fs::path& path) { return path.filename() == kModelConfigFile; });
  for (const fs::path& path : made) {
    const fs::path target = directory / path.filename();
    if (fs::is_directory(path)) fs::remove_all(target);
    fs::rename(path, target);
  }
  sync_directory(directory);
}

}  // namespace

void write_hf_folder(const fs::path& directory, const CheckpointContents& contents,
                     const TransformerConfig& config, const HfFolderOptions& options) {
  const fs::path unfinished = directory / kUnfinished;
  try {
    fs::create_directories(directory);
    fs::remove_all(unfinished);  // of a conversion that was killed
    fs::create_directory(unfinished);
    try {
      write_model(unfinished, contents, config, options);
      write_checksums(unfinished);
    } catch (...) {
      std::error_code ignored;
      fs::remove_all(unfinished, ignored);
      throw;
    }
    move_up(unfinished, directory);  // after an error in it, the rest of the model stays there
    fs::remove_all(unfinished);
  } catch (const fs::filesystem_error& error) {
    throw IoError(fmt::format("{}: cannot write the model: {}", error.path1().string(),
                              error.code().message()));
  }
}

}  // namespace megatron
