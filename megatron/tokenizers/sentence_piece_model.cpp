#include "megatron/tokenizers/sentence_piece_model.h"

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <exception>
#include <new>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/tokenizers/sentence_piece_settings.h"
#include "megatron/tokenizers/text_rules.h"

namespace megatron {
namespace {

std::optional<int32_t> unless_negative(int32_t id) {
  if (id < 0) return std::nullopt;
  return id;
}

}  // namespace

SentencePieceModel::SentencePieceModel(const std::string& file)
    : file_(file), processor_(std::make_unique<sentencepiece::SentencePieceProcessor>()) {
  const std::string bytes = read_text(file);
  if (!load(bytes)) {
    throw FormatError(
        fmt::format("{}: this is not a SentencePiece model; give a file such as tokenizer.model or "
                    "spiece.model",
                    file));
  }
  const SentencePieceSettings settings = read_sentence_piece_settings(bytes);
  removes_extra_blanks_ = settings.removes_extra_blanks;
  const bool bpe_has_words = settings.is_bpe && settings.charsmap.empty();
  // Blanks produced by rules are removed at word boundaries.
  const bool unigram_has_words = settings.is_unigram && !settings.has_user_pieces &&
                                 !settings.falls_back_to_bytes && settings.removes_extra_blanks &&
                                 rules_keep_to_words(settings.charsmap);
  has_words_ = (bpe_has_words || unigram_has_words) && settings.adds_dummy_prefix &&
               settings.escapes_blanks && !settings.has_blanks_behind && pieces_keep_to_words();
  if (has_words_ && settings.is_unigram) unigram_words_ = make_unigram_words();
}

bool SentencePieceModel::load(const std::string& bytes) {
  // The library accepts an empty file as a model without pieces.
  if (bytes.empty() || !is_sentence_piece_message(bytes)) return false;
  if (!has_sound_rules(bytes)) {
    throw FormatError(fmt::format(
        "{}: the SentencePiece model is damaged: the rules by which characters are replaced point "
        "outside of the file; restore it",
        file_));
  }
  try {
    return processor_->LoadFromSerializedProto(bytes).ok() && num_pieces() > 0;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {  // the library cannot make a trie of the pieces
    throw FormatError(fmt::format(
        "{}: the SentencePiece model is damaged: a piece is empty or stands twice; restore it",
        file_));
  }
}

bool SentencePieceModel::pieces_keep_to_words() const {
  if (!id_of(kBlankMark))
    return false;  // a blank would join unknown characters on both of its sides
  for (int32_t id = 0; id < num_pieces(); ++id) {
    if (!keeps_to_words(piece(id)) || piece(id).find(' ') != std::string::npos) return false;
  }
  return true;
}

UnigramWords SentencePieceModel::make_unigram_words() const {
  UnigramWords words(processor_->unk_id());
  for (int32_t id = 0; id < num_pieces(); ++id) {
    const bool has_meaning = processor_->IsControl(id) || processor_->IsUnknown(id);
    if (has_meaning || processor_->IsUnused(id) || processor_->IsByte(id)) continue;
    words.add_piece(piece(id), id, processor_->GetScore(id));
  }
  return words;
}

std::string SentencePieceModel::normalized(std::string_view word) const {
  std::string text;
  const sentencepiece::ImmutableSentencePieceText whole = processor_->EncodeAsImmutableProto(word);
  for (const auto& piece : whole.pieces()) text += piece.piece();
  return text;
}

bool SentencePieceModel::has_words(std::string_view text) const {
  return has_words_ && text.find(kBlankMark) == std::string_view::npos;
}

SentencePieceModel::~SentencePieceModel() = default;
SentencePieceModel::SentencePieceModel(SentencePieceModel&& other) noexcept = default;

int32_t SentencePieceModel::num_pieces() const { return processor_->GetPieceSize(); }

void SentencePieceModel::encode(std::string_view text, std::vector<int32_t>& ids) const {
  std::vector<int> own;
  const sentencepiece::util::Status status = processor_->Encode(text, &own);
  if (!status.ok()) {
    throw FormatError(fmt::format("{}: the text cannot be encoded: {}", file_, status.ToString()));
  }
  ids.insert(ids.end(), own.begin(), own.end());
}

std::string SentencePieceModel::decode(const std::vector<int32_t>& ids) const {
  std::string text;
  const sentencepiece::util::Status status = processor_->Decode(ids, &text);
  if (!status.ok()) {
    throw FormatError(fmt::format("{}: ids cannot be decoded: {}", file_, status.ToString()));
  }
  return text;
}

const std::string& SentencePieceModel::piece(int32_t id) const { return processor_->IdToPiece(id); }

std::string SentencePieceModel::bytes_of(int32_t id) const {
  if (processor_->IsByte(id)) {  // <0x0A>
    return {static_cast<char>(std::stoi(piece(id).substr(3, 2), nullptr, 16))};
  }
  if (processor_->IsControl(id) || processor_->IsUnknown(id)) return decode({id});
  std::string text = piece(id);
  replace_all(text, kBlankMark, " ");
  return text;
}

std::optional<int32_t> SentencePieceModel::id_of(std::string_view piece) const {
  const int32_t id = processor_->PieceToId(piece);
  // The library returns the id of unknown pieces.
  if (id < 0 || id >= num_pieces() || this->piece(id) != piece) return std::nullopt;
  return id;
}

std::optional<int32_t> SentencePieceModel::bos_id() const {
  return unless_negative(processor_->bos_id());
}
std::optional<int32_t> SentencePieceModel::eos_id() const {
  return unless_negative(processor_->eos_id());
}
std::optional<int32_t> SentencePieceModel::pad_id() const {
  return unless_negative(processor_->pad_id());
}

}  // namespace megatron
