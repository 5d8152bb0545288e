#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megatron::hf {

// A part of a text before it is encoded.
struct Piece {
  std::string_view text;
  bool is_first = false;  // at the beginning of the whole text
};

// The parts of a text, in order; owns the memory of modified ones.
class Pieces {
 public:
  // One part: `text`, which must outlive the pieces.
  void reset(Piece piece);
  const std::vector<Piece>& list() const { return list_; }

  // Replaces each piece by the pieces that split(piece, add) passes to add(piece); drops empty
  // ones.
  template <class Split>
  void split_each(const Split& split) {
    next_.clear();
    const auto add = [&](Piece piece) {
      if (!piece.text.empty()) next_.push_back(piece);
    };
    for (const Piece& piece : list_) split(piece, add);
    std::swap(list_, next_);
  }
  // Stores a new text; the view lives as long as the pieces.
  std::string_view keep(std::string text);

 private:
  std::vector<Piece> list_;
  std::vector<Piece> next_;
  std::deque<std::string> texts_;
};

}  // namespace megatron::hf
