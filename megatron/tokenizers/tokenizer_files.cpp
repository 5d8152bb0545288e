#include "megatron/tokenizers/tokenizer_files.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "megatron/core/checksums.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/folder.h"
#include "megatron/core/hub_cache.h"
#include "megatron/core/json.h"

namespace megatron {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kFlagsFile = "tokenizer_flags.json";

// Files in the folder of a Hugging Face or GPT-2 tokenizer.
constexpr const char* kFolderFiles[] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "spiece.model",
    "chat_template.jinja",
};
// Where transformers writes named chat templates beside chat_template.jinja.
constexpr const char* kTemplatesFolder = "additional_chat_templates";

bool is_hugging_face(const TokenizerConfig& config) {
  return config.tokenizer_type == "HuggingFaceTokenizer" ||
         config.tokenizer_type == "PretrainedFromHF";
}

// True for a file that people edit.
bool is_settings_file(const fs::path& file) {
  const fs::path name = file.filename();
  return name == "tokenizer_config.json" || name == "special_tokens_map.json" ||
         name.extension() == ".jinja";
}

// The name of the copy of --tokenizer-model.
std::string model_name(const TokenizerConfig& config) {
  return config.tokenizer_type == "TikTokenizer" || is_hugging_face(config) ? "tokenizer.json"
                                                                            : "tokenizer.model";
}

// The config with each path changed.
template <class Change>
TokenizerConfig with_paths(TokenizerConfig config, const Change& change) {
  for (std::string* path : {&config.vocab_file, &config.merge_file, &config.tokenizer_model}) {
    if (!path->empty()) *path = change(fs::path(*path)).string();
  }
  return config;
}

// The config of the copies, with paths relative to their folder.
TokenizerConfig config_of_copies(TokenizerConfig config) {
  const bool is_bert = config.tokenizer_type.starts_with("Bert");
  if (!config.vocab_file.empty()) config.vocab_file = is_bert ? "vocab.txt" : "vocab.json";
  if (!config.merge_file.empty()) config.merge_file = "merges.txt";
  if (config.tokenizer_model.empty()) return config;
  const bool is_folder = is_hugging_face(config) || fs::is_directory(config.tokenizer_model);
  config.tokenizer_model = is_folder ? "." : model_name(config);
  return config;
}

Json to_json(const TokenizerConfig& config) {
  return {{"tokenizer_type", config.tokenizer_type},
          {"vocab_file", config.vocab_file},
          {"merge_file", config.merge_file},
          {"tokenizer_model", config.tokenizer_model},
          {"vocab_size", config.vocab_size},
          {"vocab_extra_ids", config.vocab_extra_ids},
          {"tiktoken_pattern", config.tiktoken_pattern},
          {"tiktoken_num_special_tokens", config.tiktoken_num_special_tokens},
          {"tokenizer_special_tokens", config.tokenizer_special_tokens},
          {"tokenizer_hf_include_special_tokens", config.tokenizer_hf_include_special_tokens}};
}

TokenizerConfig from_json(const Json& json) {
  TokenizerConfig config;
  json.at("tokenizer_type").get_to(config.tokenizer_type);
  json.at("vocab_file").get_to(config.vocab_file);
  json.at("merge_file").get_to(config.merge_file);
  json.at("tokenizer_model").get_to(config.tokenizer_model);
  json.at("vocab_size").get_to(config.vocab_size);
  json.at("vocab_extra_ids").get_to(config.vocab_extra_ids);
  json.at("tiktoken_pattern").get_to(config.tiktoken_pattern);
  json.at("tiktoken_num_special_tokens").get_to(config.tiktoken_num_special_tokens);
  json.at("tokenizer_special_tokens").get_to(config.tokenizer_special_tokens);
  json.at("tokenizer_hf_include_special_tokens").get_to(config.tokenizer_hf_include_special_tokens);
  return config;
}

void create(const fs::path& folder) {
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure) {
    throw IoError(
        fmt::format("{}: cannot create the folder: {}", folder.string(), failure.message()));
  }
}

}  // namespace

std::vector<TokenizerFile> files_of_tokenizer_folder(const fs::path& folder) {
  std::vector<TokenizerFile> files;
  for (const char* name : kFolderFiles) {
    if (fs::is_regular_file(folder / name)) files.push_back({fs::absolute(folder / name), name});
  }
  const fs::path templates = folder / kTemplatesFolder;
  if (!fs::is_directory(templates)) return files;
  for (const fs::directory_entry& entry : fs::directory_iterator(templates)) {
    if (!entry.is_regular_file() || entry.path().extension() != ".jinja") continue;
    files.push_back({fs::absolute(entry.path()),
                     (fs::path(kTemplatesFolder) / entry.path().filename()).string()});
  }
  return files;
}

std::vector<TokenizerFile> tokenizer_files(const TokenizerConfig& config) {
  std::vector<TokenizerFile> files;
  const TokenizerConfig copies = config_of_copies(config);
  const auto add = [&](const std::string& path, const std::string& name) {
    if (!path.empty()) files.push_back({fs::absolute(path), name});
  };
  add(config.vocab_file, copies.vocab_file);
  add(config.merge_file, copies.merge_file);
  if (config.tokenizer_model.empty()) return files;
  const fs::path model = is_hugging_face(config)
                             ? model_path(config.tokenizer_model, "--tokenizer-model")
                             : fs::path(config.tokenizer_model);
  if (fs::is_directory(model)) {
    std::vector<TokenizerFile> all = files_of_tokenizer_folder(model);
    files.insert(files.end(), all.begin(), all.end());
    return files;
  }
  if (is_hugging_face(config)) {
    std::vector<TokenizerFile> all = files_of_tokenizer_folder(fs::absolute(model).parent_path());
    files.insert(files.end(), all.begin(), all.end());
  }
  // The file itself, whatever its name, and not a neighbour with the name of its copy.
  std::erase_if(files, [&](const TokenizerFile& file) { return file.name == model_name(config); });
  add(model, model_name(config));
  return files;
}

TokenizerConfig with_absolute_paths(const TokenizerConfig& config) {
  return with_paths(config, [](const fs::path& path) {
    std::error_code error;
    if (!fs::exists(path, error)) return path;  // a name on a hub
    const fs::path absolute = fs::absolute(path, error);
    return error ? path : absolute.lexically_normal();
  });
}

void save_tokenizer(const TokenizerConfig& config, const fs::path& folder, int64_t max_file_bytes) {
  std::vector<TokenizerFile> files = tokenizer_files(config);
  TokenizerConfig flags = config_of_copies(config);
  for (const TokenizerFile& file : files) {
    if (fs::is_regular_file(file.path) &&
        fs::file_size(file.path) <= static_cast<uintmax_t>(max_file_bytes)) {
      continue;
    }
    files.clear();
    flags = with_paths(config, [](const fs::path& path) { return fs::absolute(path); });
    break;
  }
  UnfinishedFolder unfinished(folder);
  for (const TokenizerFile& file : files) {
    const fs::path copy = unfinished.path() / file.name;
    create(copy.parent_path());
    write_text_atomically(copy, read_text(file.path));
  }
  write_text_atomically(unfinished.path() / kFlagsFile, to_json(flags).dump(1) + "\n");
  write_checksums(unfinished.path());
  unfinished.commit();
}

std::optional<TokenizerConfig> saved_tokenizer(const fs::path& folder) {
  const fs::path file = restored_folder(folder) / kFlagsFile;
  if (!fs::exists(file)) return std::nullopt;
  expect_checksums(file.parent_path());
  try {
    return with_paths(from_json(parse_json(read_text(file), {}, file.string())),
                      [&](const fs::path& path) {
                        return path.is_absolute() ? path : fs::absolute(file.parent_path()) / path;
                      });
  } catch (const Json::exception& error) {
    throw FormatError(fmt::format("{}: {}; give the flags of the tokenizer on the command line",
                                  file.string(), json_problem(error)));
  }
}

fs::path tokenizer_folder(const fs::path& save) { return save / "tokenizer"; }

std::optional<TokenizerConfig> tokenizer_of_checkpoint(const fs::path& checkpoint) {
  const std::optional<TokenizerConfig> inside = saved_tokenizer(tokenizer_folder(checkpoint));
  return inside ? inside : saved_tokenizer(tokenizer_folder(checkpoint.parent_path()));
}

std::optional<TokenizerConfig> tokenizer_of_model(const fs::path& folder) {
  const auto has = [&](const char* name) { return fs::exists(folder / name); };
  TokenizerConfig config;
  config.tokenizer_model = folder.string();
  if (has("vocab.json") && has("merges.txt")) {
    config.tokenizer_type = "GPT2BPETokenizer";
  } else if (has("tokenizer.json") || has("vocab.txt")) {
    config.tokenizer_type = "HuggingFaceTokenizer";
  } else if (has("tokenizer.model")) {
    config.tokenizer_type = "Llama2Tokenizer";
    config.tokenizer_model = (folder / "tokenizer.model").string();
  } else if (has("spiece.model")) {
    config.tokenizer_type = "GPTSentencePieceTokenizer";
    config.tokenizer_model = (folder / "spiece.model").string();
  } else {
    return std::nullopt;
  }
  for (const TokenizerFile& file : files_of_tokenizer_folder(folder)) {
    if (is_settings_file(file.path)) {
      warn_of_change(file.path);
    } else {
      expect_checksum(file.path);
    }
  }
  return config;
}

}  // namespace megatron
