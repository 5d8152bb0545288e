#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::hf {

struct ModelFile;

// Turns the words of a text into ids. Immutable after construction, so thread safe.
class Model {
 public:
  virtual ~Model() = default;
  // Appends the ids of a word that is not empty.
  virtual void append(std::string_view word, std::vector<int32_t>& ids) const = 0;
  virtual std::optional<int32_t> id_of(std::string_view piece) const = 0;
  // Null if no piece has the id.
  virtual const std::string* piece(int32_t id) const = 0;
  // Number of pieces; ids may be larger.
  virtual int64_t size() const = 0;
  // Whether a text in which U+2581 stands for blanks may be cut before each run of them, as no
  // piece has any behind another character: the parts have the same ids.
  virtual bool keeps_to_words() const { return false; }
};

// The "model" of a tokenizer.json: BPE, Unigram, WordPiece or WordLevel. Throws FormatError.
std::unique_ptr<Model> make_model(const ModelFile& file);

}  // namespace megatron::hf
