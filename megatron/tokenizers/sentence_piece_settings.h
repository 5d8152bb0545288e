#pragma once

#include <string_view>

namespace megatron {

// Settings of a SentencePiece model that the library does not tell.
struct SentencePieceSettings {
  bool is_unigram = true;
  bool is_bpe = false;
  bool has_user_pieces = false;      // which go before all others
  bool falls_back_to_bytes = false;  // an unknown character becomes pieces of its bytes
  std::string_view charsmap;  // rules by which characters are replaced first; a view of the file
  bool adds_dummy_prefix = true;  // a blank goes before the text
  bool removes_extra_blanks = true;
  bool escapes_blanks = true;      // a blank becomes U+2581
  bool has_blanks_behind = false;  // a blank belongs to the word before it
};

// The library trusts its files. Before it reads one:
// Are the bytes whole fields of a protobuf message?
bool is_sentence_piece_message(std::string_view model);
// Do the rules of its normalizers stay inside of the message?
bool has_sound_rules(std::string_view model);

// Reads them from the bytes of a model file, which is a protobuf message that the library accepts.
SentencePieceSettings read_sentence_piece_settings(std::string_view model);

}  // namespace megatron
