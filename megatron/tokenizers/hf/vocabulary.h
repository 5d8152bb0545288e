#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/tokenizers/string_table.h"

namespace megatron::hf {

// Pieces and their ids, in both directions.
class Vocabulary {
 public:
  Vocabulary() = default;
  explicit Vocabulary(std::span<const std::pair<std::string_view, int32_t>> ids);

  // Replaces the id of an existing piece.
  void add(std::string_view piece, int32_t id);
  std::optional<int32_t> id_of(std::string_view piece) const;
  // Throws FormatError, which names `use`, if the piece is missing.
  int32_t required_id(std::string_view piece, std::string_view use) const;
  const std::string* piece(int32_t id) const;
  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  // Calls visit(std::string_view piece, int32_t id) for all.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (size_t place = 0; place < ids_.size(); ++place) visit(table_.key(place), ids_[place]);
  }

 private:
  StringTable table_;                               // of pieces
  std::vector<int32_t> ids_;                        // by index in table_
  std::vector<std::optional<std::string>> pieces_;  // by id
};

}  // namespace megatron::hf
