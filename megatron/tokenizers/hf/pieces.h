#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megatron::hf {

// A part of a text on its way to the model.
struct Piece {
  std::string_view text;
  bool is_first = false;  // the whole text begins with it
};

// The parts of a text, in order, and the memory of those that are no longer part of it.
class Pieces {
 public:
  // One part: `text`, which must outlive the pieces.
  void reset(Piece piece);
  const std::vector<Piece>& list() const { return list_; }

  // Replaces each piece by what split(piece, add) hands to add(piece); empty pieces vanish.
  template <class Split>
  void split_each(const Split& split) {
    next_.clear();
    const auto add = [&](Piece piece) {
      if (!piece.text.empty()) next_.push_back(piece);
    };
    for (const Piece& piece : list_) split(piece, add);
    std::swap(list_, next_);
  }
  // A view of a new text that lives as long as the pieces.
  std::string_view keep(std::string text);

 private:
  std::vector<Piece> list_;
  std::vector<Piece> next_;
  std::deque<std::string> texts_;
};

}  // namespace megatron::hf
