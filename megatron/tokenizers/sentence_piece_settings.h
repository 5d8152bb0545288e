#pragma once

#include <string_view>

namespace megatron {

// Settings of a SentencePiece model that the library does not expose.
struct SentencePieceSettings {
  bool is_unigram = true;
  bool is_bpe = false;
  bool has_user_pieces = false;      // user-defined pieces, which match before all others
  bool falls_back_to_bytes = false;  // byte fallback for unknown characters
  std::string_view charsmap;         // normalization rules; a view of the file
  bool adds_dummy_prefix = true;     // puts a blank before the text
  bool removes_extra_blanks = true;
  bool escapes_blanks = true;      // a blank becomes U+2581
  bool has_blanks_behind = false;  // a blank belongs to the word before it
};

// The library does not validate its files; these functions do so first. True if the bytes are
// complete fields of a protobuf message.
bool is_sentence_piece_message(std::string_view model);
// True if all offsets of its normalizers' rules are inside the message.
bool has_sound_rules(std::string_view model);

// Reads them from the bytes of a model file, which is a protobuf message that the library accepts.
SentencePieceSettings read_sentence_piece_settings(std::string_view model);

}  // namespace megatron
