#include "megatron/tokenizers/word_piece.h"

#include <algorithm>

#include "megatron/tokenizers/unicode.h"

namespace megatron {

void WordPiece::add_piece(std::string_view piece, int32_t id) {
  first_.insert(piece, id);
  if (piece.starts_with(options_.continuing_prefix)) {
    continuing_.insert(piece.substr(options_.continuing_prefix.size()), id);
  }
}

void WordPiece::append(std::string_view word, std::vector<int32_t>& ids) const {
  if (num_characters(word) > options_.max_characters) {
    ids.push_back(options_.unknown_id);
    return;
  }
  const size_t start = ids.size();
  for (size_t at = 0; at < word.size();) {
    const ByteTrie& pieces = at == 0 ? first_ : continuing_;
    const ByteTrie::Match match = pieces.longest_prefix(word.substr(at));
    if (match.number < 0) {
      ids.resize(start);
      ids.push_back(options_.unknown_id);
      return;
    }
    ids.push_back(match.number);
    at += match.length;
  }
}

}  // namespace megatron
