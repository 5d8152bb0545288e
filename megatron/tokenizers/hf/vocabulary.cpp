#include "megatron/tokenizers/hf/vocabulary.h"

#include <fmt/format.h>

#include "megatron/core/error.h"

namespace megatron::hf {
Vocabulary::Vocabulary(std::span<const std::pair<std::string_view, int32_t>> ids) {
  table_.reserve(ids.size());
  ids_.reserve(ids.size());
  pieces_.reserve(ids.size());
  for (const auto& [piece, id] : ids) add(piece, id);
}

void Vocabulary::add(std::string_view piece, int32_t id) {
  const size_t place = table_.insert(piece);
  if (place == ids_.size()) ids_.push_back(id);
  ids_[place] = id;
  const auto index = static_cast<size_t>(id);
  if (index >= pieces_.size()) pieces_.resize(index + 1);
  pieces_[index] = piece;
}

std::optional<int32_t> Vocabulary::id_of(std::string_view piece) const {
  const std::optional<size_t> place = table_.find(piece);
  if (!place) return std::nullopt;
  return ids_[*place];
}

int32_t Vocabulary::required_id(std::string_view piece, std::string_view use) const {
  const std::optional<int32_t> id = id_of(piece);
  if (!id) {
    throw FormatError(
        fmt::format("the vocab of the model has no piece \"{}\", which is its {}; add "
                    "it, or correct the {}",
                    piece, use, use));
  }
  return *id;
}

const std::string* Vocabulary::piece(int32_t id) const {
  const auto index = static_cast<size_t>(id);
  return id >= 0 && index < pieces_.size() && pieces_[index] ? &*pieces_[index] : nullptr;
}

}  // namespace megatron::hf
