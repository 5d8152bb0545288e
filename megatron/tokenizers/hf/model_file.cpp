#include "megatron/tokenizers/hf/model_file.h"

#include <fmt/format.h>
#include <simdjson.h>

#include "megatron/core/error.h"
#include "megatron/core/json.h"

namespace megatron::hf {
namespace {

using simdjson::dom::element;

// Ids index a table; the limit is far above every vocabulary in use, to detect typos.
constexpr int64_t kMaxModelId = (int64_t{1} << 24) - 1;

std::string text_of(const element& json) { return simdjson::minify(json); }

ModelFile::Ids ids_of(const simdjson::dom::object& object) {
  ModelFile::Ids ids;
  ids.reserve(object.size());
  for (const simdjson::dom::key_value_pair field : object) {
    int64_t id = 0;
    if (field.value.get_int64().get(id) != simdjson::SUCCESS || id < 0 || id > kMaxModelId) {
      throw FormatError(fmt::format("the id of piece \"{}\" is {}, must be an integer in [0, {}]",
                                    field.key, text_of(field.value), kMaxModelId));
    }
    ids.emplace_back(field.key, static_cast<int32_t>(id));
  }
  return ids;
}

ModelFile::Scores scores_of(const simdjson::dom::array& list) {
  ModelFile::Scores scores;
  scores.reserve(list.size());
  for (const element& entry : list) {
    std::string_view piece;
    double score = 0;
    simdjson::dom::array pair;
    const bool is_right = entry.get_array().get(pair) == simdjson::SUCCESS && pair.size() == 2 &&
                          pair.at(0).get_string().get(piece) == simdjson::SUCCESS &&
                          pair.at(1).get_double().get(score) == simdjson::SUCCESS;
    if (!is_right) {
      throw FormatError(fmt::format("entry {} of vocab is {}, expected [piece, score]",
                                    scores.size(), text_of(entry)));
    }
    scores.emplace_back(piece, score);
  }
  return scores;
}

// A merge is "left right" or ["left", "right"].
ModelFile::Merges merges_of(const element& json) {
  simdjson::dom::array list;
  if (json.get_array().get(list) != simdjson::SUCCESS) {
    throw FormatError("the merges of the model must be an array");
  }
  ModelFile::Merges merges;
  merges.reserve(list.size());
  for (const element& merge : list) {
    std::string_view left;
    std::string_view right;
    simdjson::dom::array pair;
    bool is_right = false;
    if (merge.get_string().get(left) == simdjson::SUCCESS) {
      const size_t blank = left.find(' ');
      is_right =
          blank != std::string_view::npos && left.find(' ', blank + 1) == std::string_view::npos;
      if (is_right) {
        right = left.substr(blank + 1);
        left = left.substr(0, blank);
      }
    } else if (merge.get_array().get(pair) == simdjson::SUCCESS && pair.size() == 2) {
      is_right = pair.at(0).get_string().get(left) == simdjson::SUCCESS &&
                 pair.at(1).get_string().get(right) == simdjson::SUCCESS;
    }
    if (!is_right) {
      throw FormatError(
          fmt::format("merge {} is {}, expected two pieces with one blank between them",
                      merges.size(), text_of(merge)));
    }
    merges.emplace_back(left, right);
  }
  return merges;
}

ModelFile model_of(const element& json, std::shared_ptr<const void> texts) {
  simdjson::dom::object members;
  if (json.get_object().get(members) != simdjson::SUCCESS) {
    throw FormatError("the model must be an object");
  }
  ModelFile model{.settings = nlohmann::json::object(), .texts = std::move(texts)};
  bool has_vocab = false;
  for (const simdjson::dom::key_value_pair member : members) {
    if (member.key == "merges") {
      model.has_merges = true;
      model.merges = merges_of(member.value);
    } else if (member.key == "vocab") {
      has_vocab = true;
      if (member.value.is_object()) {
        model.vocab = ids_of(member.value);
      } else if (member.value.is_array()) {
        model.vocab = scores_of(member.value);
      } else {
        throw FormatError("the vocab of the model must be an object piece -> id, or a list");
      }
    } else {
      model.settings[std::string(member.key)] = parse_json(text_of(member.value), {}, member.key);
    }
  }
  if (!has_vocab) throw FormatError("the model has no vocab");
  return model;
}

// The parser owns the texts.
element parsed(const std::shared_ptr<simdjson::dom::parser>& parser, std::string_view text) {
  element json;
  if (const auto error = parser->parse(text).get(json)) {
    parse_json(text, {}, "not valid JSON");  // throws, with the place
    throw FormatError(fmt::format("not valid JSON: {}", simdjson::error_message(error)));
  }
  return json;
}

}  // namespace

const ModelFile::Ids& ModelFile::ids() const {
  if (const auto* const found = std::get_if<Ids>(&vocab)) return *found;
  throw FormatError("the vocab of the model must be an object piece -> id");
}

const ModelFile::Scores& ModelFile::scores() const {
  if (const auto* const found = std::get_if<Scores>(&vocab)) return *found;
  throw FormatError("the vocab of the model must be a list of [piece, score]");
}

TokenizerJson read_tokenizer_json(std::string_view text) {
  const auto parser = std::make_shared<simdjson::dom::parser>();
  const element json = parsed(parser, text);
  simdjson::dom::object members;
  if (json.get_object().get(members) != simdjson::SUCCESS) {
    throw FormatError("there is no \"model\"; is this a tokenizer.json?");
  }
  TokenizerJson file{.parts = nlohmann::json::object(), .model = {}};
  bool has_model = false;
  for (const simdjson::dom::key_value_pair member : members) {
    if (member.key == "model") {
      has_model = true;
      file.model = model_of(member.value, parser);
    } else {
      file.parts[std::string(member.key)] = parse_json(text_of(member.value), {}, member.key);
    }
  }
  if (!has_model) throw FormatError("there is no \"model\"; is this a tokenizer.json?");
  return file;
}

ModelFile read_model(std::string_view text) {
  const auto parser = std::make_shared<simdjson::dom::parser>();
  return model_of(parsed(parser, text), parser);
}

}  // namespace megatron::hf
