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

// The "model" of a tokenizer.json. Its tables have up to some hundred thousand entries and are
// parsed into lists, because building a JSON tree would dominate start-up time.
struct ModelFile {
  using Ids = std::vector<std::pair<std::string_view, int32_t>>;    // {piece: id, ...}
  using Scores = std::vector<std::pair<std::string_view, double>>;  // [[piece, score], ...]
  using Merges = std::vector<std::pair<std::string_view, std::string_view>>;

  nlohmann::json settings = {};          // the other members
  std::variant<Ids, Scores> vocab = {};  // in the file's form
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

// Throws FormatError if the text is not JSON, has no "model", or has an invalid table entry.
TokenizerJson read_tokenizer_json(std::string_view text);
// The same for the text of a model.
ModelFile read_model(std::string_view text);

}  // namespace megatron::hf
