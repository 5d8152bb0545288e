#include "megatron/cli/fill_mask.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "megatron/cli/agreement.h"
#include "megatron/cli/json_lines.h"
#include "megatron/cli/model_flags.h"
#include "megatron/cli/text_flags.h"
#include "megatron/core/log.h"
#include "megatron/inference/bert.h"

namespace megatron::cli {
namespace {

using nlohmann::json;

struct FillFlags {
  ModelFlags model;
  PromptFlags texts;
  int64_t top_k = 5;
  bool as_json = false;
};

FlagTable flags_of(FillFlags& flags) {
  FlagTable table;
  add_model_flags(table, flags.model);
  table.group("prompts");
  add_prompt_flags(table, flags.texts, "Texts with [MASK] for missing words.",
                   "{\"text\": ...} or {\"ids\": [...]}");
  table.group("output");
  table.add("--top-k", flags.top_k, "Number of words for each [MASK].");
  table.add_switch("--json", flags.as_json, "Print one JSON object per text.");
  return table;
}

std::vector<std::string> problems(const FillFlags& flags) {
  std::vector<std::string> found;
  if (flags.top_k < 1) found.push_back(fmt::format("--top-k {} must be at least 1", flags.top_k));
  if (!flags.texts.are_given()) {
    found.emplace_back(
        "there is nothing to fill; give --prompt \"text with [MASK]\" or "
        "--prompt-file");
  }
  return found;
}

// [CLS] text [SEP]. The text of the mask's piece stands for its id.
std::vector<int32_t> encoded(const std::string& text, const Tokenizer& tokenizer) {
  const int32_t mask = tokenizer.required_id(SpecialToken::kMask);
  const std::string marker = tokenizer.piece(mask);
  std::vector<int32_t> ids = {tokenizer.required_id(SpecialToken::kCls)};
  for (size_t begin = 0;;) {
    const size_t end = text.find(marker, begin);
    const std::vector<int32_t> part = inner_ids(text.substr(begin, end - begin), tokenizer);
    ids.insert(ids.end(), part.begin(), part.end());
    if (end == std::string::npos) break;
    ids.push_back(mask);
    begin = end + marker.size();
  }
  ids.push_back(tokenizer.required_id(SpecialToken::kSep));
  return ids;
}

// The request of a line, for all ranks.
json request_of(std::vector<int32_t> ids, const LoadedModel& loaded) {
  const int32_t mask = loaded.required_tokenizer().required_id(SpecialToken::kMask);
  std::vector<int64_t> positions;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] == mask) positions.push_back(static_cast<int64_t>(i));
  }
  if (positions.empty()) {
    throw ConfigError(fmt::format("the text has no {}, so there is nothing to fill",
                                  loaded.required_tokenizer().piece(mask)));
  }
  return {{"ids", std::move(ids)}, {"positions", positions}, {"vocab_size", loaded.vocab_size}};
}

json request_of(const std::string& line, const LoadedModel& loaded) {
  if (!line.starts_with("{")) return request_of(encoded(line, loaded.required_tokenizer()), loaded);
  const json object = object_of(line);
  const auto text = object.find("text");
  if (object.contains("ids") || text == object.end() || !text->is_string()) {
    return request_of(ids_of(object, loaded), loaded);
  }
  return request_of(encoded(text->get<std::string>(), loaded.required_tokenizer()), loaded);
}

// The text of ids without the surrounding special tokens.
std::string text_of(const std::vector<int32_t>& ids, const Tokenizer& tokenizer) {
  std::vector<int32_t> inner;
  for (const int32_t id : ids) {
    const bool is_frame = id == tokenizer.special_id(SpecialToken::kCls) ||
                          id == tokenizer.special_id(SpecialToken::kSep) ||
                          id == tokenizer.special_id(SpecialToken::kPad);
    if (!is_frame) inner.push_back(id);
  }
  return tokenizer.decode(inner);
}

using Filled = std::vector<std::vector<LikelyWord>>;  // by mask, best first

void print_filled(bool as_json, const LoadedModel& loaded, std::vector<int32_t> ids,
                  const std::vector<int64_t>& positions, const Filled& filled) {
  const Tokenizer& tokenizer = *loaded.tokenizer;
  json masks = json::array();
  std::vector<std::string> lines;
  for (size_t i = 0; i < positions.size(); ++i) {
    ids[static_cast<size_t>(positions[i])] = filled[i].front().id;
    json words = json::array();
    for (const LikelyWord& word : filled[i]) {
      const std::string piece = tokenizer.piece(word.id);
      words.push_back({{"id", word.id}, {"word", piece}, {"probability", word.probability}});
      lines.push_back(fmt::format("  {} {:.4f} {}", positions[i], word.probability, piece));
    }
    masks.push_back({{"position", positions[i]}, {"words", std::move(words)}});
  }
  if (as_json) {
    print_line(json{{"text", text_of(ids, tokenizer)}, {"ids", ids}, {"masks", masks}}.dump(
        -1, ' ', false, json::error_handler_t::replace));
    return;
  }
  print_line(text_of(ids, tokenizer));
  for (const std::string& line : lines) print_line(line);
}

}  // namespace

int fill_mask(std::span<const std::string> words, const comm::Group& world) {
  const LogScope on_first(world.rank() == 0);
  FillFlags flags;
  FlagTable table = flags_of(flags);
  const CommonCommand command = {.usage = "megatron fill-mask --load DIR --prompt TEXT ... [flags]",
                                 .problems = [&] { return problems(flags); }};
  if (!parse_common_flags(table, command, words, world)) return 0;

  const LoadedModel loaded = load_model(flags.model, world, is_encoder_only);
  const auto fill = [&](const json& request) {
    const auto ids = request.at("ids").get<std::vector<int32_t>>();
    const auto positions = request.at("positions").get<std::vector<int64_t>>();
    const Filled filled = likely_words(loaded.bert_inference(), ids, positions, flags.top_k,
                                       request.at("vocab_size"));
    if (world.rank() == 0) print_filled(flags.as_json, loaded, ids, positions, filled);
  };
  for (const std::string& text : flags.texts.prompts) {
    json request;
    if (world.rank() == 0) request = request_of(text, loaded);
    fill(shared(request, world));
  }
  if (flags.texts.prompt_file.empty()) return 0;
  each_request(
      flags.texts.prompt_file, world,
      [&](const std::string& line) { return request_of(line, loaded); }, fill);
  return 0;
}

}  // namespace megatron::cli
