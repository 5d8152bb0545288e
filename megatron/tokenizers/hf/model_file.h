#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace megatron::hf {

// The "model" of a tokenizer.json. Its tables have up to some hundred thousand entries, for which a
// general tree of JSON takes most of the start of a program, so they are lists.
struct ModelFile {
  using Ids = std::vector<std::pair<std::string_view, int32_t>>;    // {piece: id, ...}
  using Scores = std::vector<std::pair<std::string_view, double>>;  // [[piece, score], ...]
  using Merges = std::vector<std::pair<std::string_view, std::string_view>>;

  nlohmann::json settings = {};          // the other members
  std::variant<Ids, Scores> vocab = {};  // as the file has it
  bool has_merges = false;
  Merges merges = {};
  std::shared_ptr<const void> texts = {};  // which the views point to

  // Throw FormatError if the file has the other kind of vocab.
  const Ids& ids() const;
  const Scores& scores() const;
};

// A tokenizer.json.
struct TokenizerJson {
  nlohmann::json parts;  // without the model
  ModelFile model;
};

// Throws FormatError if the text is no JSON, has no "model", or an entry of a table is wrong.
TokenizerJson read_tokenizer_json(std::string_view text);
// The same of the text of a model alone.
ModelFile read_model(std::string_view text);

}  // namespace megatron::hf
