#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::hf {

struct ModelFile;

// Encodes words. Immutable after construction, so thread safe.
class Model {
 public:
  virtual ~Model() = default;
  // Appends the ids of a non-empty word.
  virtual void append(std::string_view word, std::vector<int32_t>& ids) const = 0;
  virtual std::optional<int32_t> id_of(std::string_view piece) const = 0;
  // The piece of an id; null if there is none.
  virtual const std::string* piece(int32_t id) const = 0;
  // Number of pieces; ids may be larger.
  virtual int64_t size() const = 0;
  // True if a text with U+2581 for blanks may be split before each run of them without changing its
  // ids: no piece has U+2581 after another character.
  virtual bool keeps_to_words() const { return false; }
};

// The "model" of a tokenizer.json: BPE, Unigram, WordPiece or WordLevel. Throws FormatError.
std::unique_ptr<Model> make_model(const ModelFile& file);

}  // namespace megatron::hf
