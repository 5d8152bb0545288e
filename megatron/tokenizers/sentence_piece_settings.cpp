#include "megatron/tokenizers/sentence_piece_settings.h"

#include <cstdint>
#include <cstring>
#include <vector>

namespace megatron {
namespace {

// Iterates over the fields of a protobuf message.
class Message {
 public:
  explicit Message(std::string_view bytes) : rest_(bytes) {}

  // Advances to the next field; false at the end, or if the message is malformed.
  bool next() {
    if (rest_.empty()) return false;
    is_broken_ = !read_field();
    return !is_broken_;
  }
  bool is_broken() const { return is_broken_; }
  uint64_t field() const { return field_; }
  uint64_t number() const { return number_; }
  std::string_view bytes() const { return bytes_; }

 private:
  bool read_field() {
    const uint64_t tag = read_number();
    field_ = tag >> 3;
    number_ = 0;
    bytes_ = {};
    switch (tag & 7) {
      case 0:
        number_ = read_number();
        return true;
      case 1:
        return skip(8);
      case 2:
        return skip(read_number());
      case 5:
        return skip(4);
      default:
        return false;
    }
  }

  // A varint: seven bits per byte, lowest first; the upper bit is set if more follow.
  uint64_t read_number() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) break;
    }
    return value;
  }
  bool skip(uint64_t count) {
    if (count > rest_.size()) return false;
    bytes_ = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return true;
  }

  std::string_view rest_;
  bool is_broken_ = false;
  uint64_t field_ = 0;
  uint64_t number_ = 0;
  std::string_view bytes_;
};

constexpr uint64_t kPiece = 1;  // fields of the model
constexpr uint64_t kTrainer = 2;
constexpr uint64_t kNormalizer = 3;
constexpr uint64_t kDenormalizer = 5;
constexpr uint64_t kCharsmap = 2;  // of a normalizer

void read_piece(Message piece, SentencePieceSettings& settings) {
  constexpr uint64_t kType = 3;
  constexpr uint64_t kUserDefined = 4;
  while (piece.next()) {
    if (piece.field() == kType) settings.has_user_pieces |= piece.number() == kUserDefined;
  }
}

void read_trainer(Message trainer, SentencePieceSettings& settings) {
  constexpr uint64_t kModelType = 3;
  constexpr uint64_t kBlanksBehind = 24;
  constexpr uint64_t kByteFallback = 35;
  constexpr uint64_t kUnigram = 1;
  constexpr uint64_t kBpe = 2;
  while (trainer.next()) {
    if (trainer.field() == kModelType) {
      settings.is_unigram = trainer.number() == kUnigram;
      settings.is_bpe = trainer.number() == kBpe;
    }
    if (trainer.field() == kByteFallback) settings.falls_back_to_bytes = trainer.number() != 0;
    if (trainer.field() == kBlanksBehind) settings.has_blanks_behind = trainer.number() != 0;
  }
}

void read_normalizer(Message normalizer, SentencePieceSettings& settings) {
  constexpr uint64_t kDummyPrefix = 3;
  constexpr uint64_t kExtraBlanks = 4;
  constexpr uint64_t kEscapes = 5;
  while (normalizer.next()) {
    if (normalizer.field() == kCharsmap) settings.charsmap = normalizer.bytes();
    if (normalizer.field() == kDummyPrefix) settings.adds_dummy_prefix = normalizer.number() != 0;
    if (normalizer.field() == kExtraBlanks) {
      settings.removes_extra_blanks = normalizer.number() != 0;
    }
    if (normalizer.field() == kEscapes) settings.escapes_blanks = normalizer.number() != 0;
  }
}

// True if every transition of the trie stays inside it, and every replacement is inside the texts
// and terminated. For the format see hf/charsmap.h.
bool is_sound_charsmap(std::string_view bytes) {
  constexpr size_t kHead = sizeof(uint32_t);
  uint32_t trie_bytes = 0;
  if (bytes.size() <= kHead) return false;
  std::memcpy(&trie_bytes, bytes.data(), kHead);
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes >= bytes.size() - kHead) return false;
  std::vector<uint32_t> units(trie_bytes / 4);
  std::memcpy(units.data(), bytes.data() + kHead, trie_bytes);
  const std::string_view texts = bytes.substr(kHead + trie_bytes);
  if (texts.back() != '\0') return false;
  constexpr uint32_t kIsValue = 0x80000000;
  for (size_t i = 0; i < units.size(); ++i) {
    const uint32_t unit = units[i];
    if ((unit & kIsValue) != 0) continue;
    const size_t next = i ^ ((unit >> 10) << ((unit & 0x200u) >> 6));
    if ((next | 0xFF) >= units.size()) return false;
    const bool has_value = ((unit >> 8) & 1u) != 0;
    if (has_value && (units[next] & ~kIsValue) >= texts.size()) return false;
  }
  return true;
}

}  // namespace

bool is_sentence_piece_message(std::string_view model) {
  Message message(model);
  while (message.next()) {
  }
  return !message.is_broken();
}

bool has_sound_rules(std::string_view model) {
  for (Message message(model); message.next();) {
    if (message.field() != kNormalizer && message.field() != kDenormalizer) continue;
    Message normalizer(message.bytes());
    while (normalizer.next()) {
      const bool has_rules = normalizer.field() == kCharsmap && !normalizer.bytes().empty();
      if (has_rules && !is_sound_charsmap(normalizer.bytes())) return false;
    }
    if (normalizer.is_broken()) return false;
  }
  return true;
}

SentencePieceSettings read_sentence_piece_settings(std::string_view model) {
  SentencePieceSettings settings;
  for (Message message(model); message.next();) {
    if (message.field() == kPiece) read_piece(Message(message.bytes()), settings);
    if (message.field() == kTrainer) read_trainer(Message(message.bytes()), settings);
    if (message.field() == kNormalizer) read_normalizer(Message(message.bytes()), settings);
  }
  return settings;
}

}  // namespace megatron
