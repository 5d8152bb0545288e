#include "megatron/tokenizers/hf/hf_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/json.h"

namespace megatron::hf {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

Json read_json(const fs::path& path) { return parse_json(read_text(path), {}, path.string()); }

// Calls f, and adds the file and the remedy to its errors.
template <class F>
auto about(const fs::path& path, const F& f) {
  try {
    return f();
  } catch (const FormatError& error) {
    throw FormatError(fmt::format("{}: {}; copy the file again", path.string(), error.what()));
  }
}

// An empty object if the file does not exist.
Json read_json_if_there(const fs::path& path) {
  if (!fs::exists(path)) return Json::object();
  Json json = read_json(path);
  if (!json.is_object()) {
    throw FormatError(fmt::format("{}: expected one JSON object", path.string()));
  }
  return json;
}

std::optional<bool> optional_flag(const Json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_boolean()) return std::nullopt;
  return found->get<bool>();
}

// A token is a text or an object with the text as "content".
std::optional<std::string> content_of(const Json& token) {
  if (token.is_string()) return token.get<std::string>();
  if (token.is_object() && token.contains("content") && token["content"].is_string()) {
    return token["content"].get<std::string>();
  }
  return std::nullopt;
}

void read_named_tokens(const Json& json, HfFiles& files) {
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    if (!json.contains(name)) continue;
    if (const std::optional<std::string> content = content_of(json[name])) {
      files.named_tokens[name] = *content;
    }
  }
  const auto list = json.find("additional_special_tokens");
  if (list == json.end() || !list->is_array() || list->empty()) return;
  files.additional_special_tokens.clear();
  for (const Json& token : *list) {
    if (const auto content = content_of(token)) files.additional_special_tokens.push_back(*content);
  }
}

// {"32000": {"content": ...}, ...}, in the order of the ids.
void read_added_tokens_decoder(const Json& json, HfFiles& files) {
  const auto decoder = json.find("added_tokens_decoder");
  if (decoder == json.end() || !decoder->is_object()) return;
  std::map<int64_t, AddedToken> by_id;
  for (const auto& [id, token] : decoder->items()) {
    const std::optional<std::string> content = content_of(token);
    if (!content || id.find_first_not_of("0123456789") != std::string::npos || id.size() > 9) {
      continue;
    }
    by_id[std::stoll(id)] = {.content = *content,
                             .single_word = optional_flag(token, "single_word").value_or(false),
                             .lstrip = optional_flag(token, "lstrip").value_or(false),
                             .rstrip = optional_flag(token, "rstrip").value_or(false),
                             .normalized = optional_flag(token, "normalized").value_or(true),
                             .special = optional_flag(token, "special").value_or(false)};
  }
  for (const auto& [id, token] : by_id) files.more_tokens.push_back(token);
}

// {"<new>": 32000, ...}, in the order of the ids.
void read_added_tokens(const Json& json, HfFiles& files) {
  std::map<int64_t, std::string> by_id;
  for (const auto& [content, id] : json.items()) {
    if (id.is_number_integer()) by_id[id.get<int64_t>()] = content;
  }
  for (const auto& [id, content] : by_id) files.more_tokens.push_back({.content = content});
}

// Llama's tokenizer classes rebuild the post-processor.
void apply_llama_class(const Json& config, HfFiles& files) {
  const auto name = config.find("tokenizer_class");
  if (name == config.end() || !name->is_string()) return;
  if (!name->get<std::string>().starts_with("LlamaTokenizer")) return;
  Json single = Json::array();
  Json special_tokens = Json::object();
  const auto add = [&](const char* token_name) {
    const auto token = files.named_tokens.find(token_name);
    if (token == files.named_tokens.end()) return;
    const std::string& content = token->second;
    Json ids = Json::array();
    if (const auto* const vocab = std::get_if<ModelFile::Ids>(&files.tokenizer.model.vocab)) {
      const auto found = std::ranges::find(*vocab, content, &ModelFile::Ids::value_type::first);
      if (found != vocab->end()) ids.push_back(found->second);
    }
    for (const Json& added : files.tokenizer.parts.value("added_tokens", Json::array())) {
      if (ids.empty() && added.at("content") == content) ids.push_back(added.at("id"));
    }
    if (ids.empty()) return;
    single.push_back({{"SpecialToken", {{"id", content}, {"type_id", 0}}}});
    special_tokens[content] = {{"id", content}, {"ids", ids}, {"tokens", {content}}};
  };
  if (optional_flag(config, "add_bos_token").value_or(true)) add("bos_token");
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  if (optional_flag(config, "add_eos_token").value_or(false)) add("eos_token");
  files.tokenizer.parts["post_processor"] = {{"type", "TemplateProcessing"},
                                             {"single", single},
                                             {"pair", single},
                                             {"special_tokens", special_tokens}};
}

TokenizerJson bert_tokenizer(const fs::path& vocab_file, const Json& config) {
  Json vocab = Json::object();
  const std::string text = read_text(vocab_file);
  int64_t id = 0;
  for (size_t begin = 0; begin < text.size(); ++id) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) line.pop_back();
    vocab[line] = id;
    begin = end + 1;
  }
  Json special_tokens = Json::object();
  Json added = Json::array();
  for (const char* token : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) {
    if (!vocab.contains(token)) {
      throw FormatError(fmt::format("{}: {} is missing; is this the vocab.txt of a BERT?",
                                    vocab_file.string(), token));
    }
    special_tokens[token] = {{"id", token}, {"ids", {vocab[token]}}, {"tokens", {token}}};
    added.push_back(
        {{"id", vocab[token]}, {"content", token}, {"normalized", false}, {"special", true}});
  }
  const auto special = [](const char* token) {
    return Json{{"SpecialToken", {{"id", token}, {"type_id", 0}}}};
  };
  const Json parts = {
      {"added_tokens", added},
      {"normalizer",
       {{"type", "BertNormalizer"},
        {"clean_text", true},
        {"handle_chinese_chars", optional_flag(config, "tokenize_chinese_chars").value_or(true)},
        {"strip_accents", config.value("strip_accents", Json())},
        {"lowercase", optional_flag(config, "do_lower_case").value_or(true)}}},
      {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single",
         {special("[CLS]"), {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}, special("[SEP]")}},
        {"special_tokens", special_tokens}}},
      {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}}};
  const Json model = {{"type", "WordPiece"},
                      {"unk_token", "[UNK]"},
                      {"continuing_subword_prefix", "##"},
                      {"max_input_chars_per_word", 100},
                      {"vocab", std::move(vocab)}};
  return {parts, read_model(model.dump())};
}

TokenizerJson gpt2_tokenizer(const fs::path& folder, const Json& config) {
  Json merges = Json::array();
  const std::string text = read_text(folder / "merges.txt");
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty() && !line.starts_with("#version")) merges.push_back(line);
    begin = end + 1;
  }
  const fs::path vocab = folder / "vocab.json";
  ModelFile model = about(vocab, [&] {
    return read_model(fmt::format(R"({{"type": "BPE", "vocab": {}, "merges": {}}})",
                                  read_text(vocab), merges.dump()));
  });
  constexpr std::string_view kEndOfText = "<|endoftext|>";
  Json added = Json::array();
  for (const auto& [piece, id] : model.ids()) {
    if (piece != kEndOfText) continue;
    added.push_back(
        {{"id", id}, {"content", kEndOfText}, {"normalized", false}, {"special", true}});
  }
  const bool prefix = optional_flag(config, "add_prefix_space").value_or(false);
  return {{{"added_tokens", added},
           {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", prefix}}},
           {"decoder", {{"type", "ByteLevel"}}}},
          std::move(model)};
}

TokenizerJson read_tokenizer(const fs::path& path) {
  return about(path, [&] { return read_tokenizer_json(read_text(path)); });
}

TokenizerJson tokenizer_of(const fs::path& folder, const Json& config) {
  if (fs::exists(folder / "tokenizer.json")) return read_tokenizer(folder / "tokenizer.json");
  if (fs::exists(folder / "vocab.json") && fs::exists(folder / "merges.txt")) {
    return gpt2_tokenizer(folder, config);
  }
  if (fs::exists(folder / "vocab.txt")) return bert_tokenizer(folder / "vocab.txt", config);
  for (const char* model : {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model"}) {
    if (!fs::exists(folder / model)) continue;
    throw ConfigError(fmt::format(
        "{}: there is no tokenizer.json, only the SentencePiece model {}; use --tokenizer-type "
        "Llama2Tokenizer or GPTSentencePieceTokenizer with --tokenizer-model {}",
        folder.string(), model, (folder / model).string()));
  }
  throw ConfigError(fmt::format(
      "{}: the folder has no tokenizer.json, no vocab.json with merges.txt and no vocab.txt; give "
      "the folder of a Hugging Face model or its tokenizer.json",
      folder.string()));
}

}  // namespace

HfFiles read_hf_files(const std::string& path) {
  const bool is_folder = fs::is_directory(path);
  if (!is_folder && !fs::exists(path)) {
    throw IoError(
        fmt::format("{}: no such file or folder; give a folder with tokenizer.json", path));
  }
  const fs::path folder = is_folder ? fs::path(path) : fs::path(path).parent_path();
  const Json config = read_json_if_there(folder / "tokenizer_config.json");
  HfFiles files;
  files.source = path;
  files.tokenizer = is_folder ? tokenizer_of(folder, config) : read_tokenizer(path);
  read_named_tokens(read_json_if_there(folder / "special_tokens_map.json"), files);
  read_named_tokens(config, files);
  read_added_tokens_decoder(config, files);
  read_added_tokens(read_json_if_there(folder / "added_tokens.json"), files);
  files.removes_extra_blanks =
      optional_flag(config, "clean_up_tokenization_spaces").value_or(false);
  apply_llama_class(config, files);
  return files;
}

}  // namespace megatron::hf
