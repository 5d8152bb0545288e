#include "megatron/tokenizers/sentence_piece_tokenizer.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "megatron/core/error.h"
#include "megatron/tokenizers/word_cache.h"

namespace megatron {
struct SentencePieceTokenizer::Special {
  std::string text;
  int32_t id = 0;
};

SentencePieceTokenizer::~SentencePieceTokenizer() = default;

SentencePieceTokenizer::SentencePieceTokenizer(const std::string& model_file, Options options)
    : model_(model_file), options_(options) {
  if (options.kind == Kind::kWithSpecials) {
    add_all_specials();
  } else if (options.vocab_extra_ids > 0) {
    throw ConfigError(fmt::format(
        "--vocab-extra-ids {} needs a tokenizer with sentinels, and --tokenizer-type {} has none; "
        "use SentencePieceTokenizer",
        options.vocab_extra_ids, type()));
  }
  if (options.kind == Kind::kLlama2 && !model_.bos_id()) {
    throw FormatError(
        fmt::format("{}: the model has no bos, with which Llama2Tokenizer begins each text; use "
                    "--tokenizer-type GPTSentencePieceTokenizer",
                    model_file));
  }
}

void SentencePieceTokenizer::add_all_specials() {
  for (const char* text : {"<CLS>", "<SEP>", "<EOD>", "<MASK>"}) add_special(text);
  const auto name_of = [&](std::optional<int32_t> id, const char* otherwise) {
    return id ? model_.piece(*id) : std::string(otherwise);
  };
  add_special(name_of(model_.pad_id(), "<PAD>"));
  add_special(name_of(model_.bos_id(), "<BOS>"));
  add_special(name_of(model_.eos_id(), "<EOS>"));
  for (int64_t i = 0; i < options_.vocab_extra_ids; ++i) {
    sentinels_.push_back(add_special(fmt::format("<extra_id_{}>", i)));
  }
}

int32_t SentencePieceTokenizer::add_special(const std::string& text) {
  std::optional<int32_t> id = id_of(text);
  if (!id) {
    id = static_cast<int32_t>(vocab_size());
    added_.push_back(text);
  }
  // A repeated text keeps its first registration.
  if (special_texts_.emplace(*id, text).second) specials_.push_back({text, *id});
  return *id;
}

template <class EncodePart>
void SentencePieceTokenizer::append(std::string_view text, std::vector<int32_t>& ids,
                                    const EncodePart& encode_part) const {
  if (options_.kind == Kind::kLlama2) ids.push_back(*model_.bos_id());
  // The next position of each special token; searched again only after it has been passed.
  std::vector<size_t> next(specials_.size(), 0);
  for (size_t i = 0; i < specials_.size(); ++i) next[i] = text.find(specials_[i].text);
  size_t at = 0;
  while (!specials_.empty()) {
    size_t first = 0;
    for (size_t i = 0; i < specials_.size(); ++i) {
      if (next[i] < at) next[i] = text.find(specials_[i].text, at);
      if (next[i] < next[first]) first = i;
    }
    if (next[first] == std::string_view::npos) break;
    encode_part(text.substr(at, next[first] - at));
    ids.push_back(specials_[first].id);
    at = next[first] + specials_[first].text.size();
  }
  encode_part(text.substr(at));
}

class SentencePieceTokenizer::TextEncoder final : public Encoder {
 public:
  explicit TextEncoder(const SentencePieceTokenizer& tokenizer)
      : tokenizer_(tokenizer), batch_(cache_) {}

  void append(std::string_view text, std::vector<int32_t>& ids) override {
    tokenizer_.append(text, ids, [&](std::string_view part) { encode_part(part, ids); });
  }

 private:
  void encode_part(std::string_view text, std::vector<int32_t>& ids) {
    const SentencePieceModel& model = tokenizer_.model_;
    if (!model.has_words(text)) return model.encode(text, ids);
    if (model.unigram_words() != nullptr) return encode_unigram(text, ids);
    const auto encode = [&](std::string_view word, std::vector<int32_t>& own) {
      model.encode(word, own);
    };
    batch_.append(text, ids, encode, [&](const auto& emit) { model.cut_words(text, emit); });
  }

  // The table stores, before the pieces of a word, the bits of the score up to which they are
  // valid.
  void encode_unigram(std::string_view text, std::vector<int32_t>& ids) {
    const SentencePieceModel& model = tokenizer_.model_;
    const UnigramWords& words = *model.unigram_words();
    float score = 0;  // of the text so far, as the library rounds it
    const auto encode = [&](std::string_view word, std::vector<int32_t>& own) {
      own.push_back(0);
      const float limit = words.divide_exactly(model.normalized(word), own);
      own[0] = std::bit_cast<int32_t>(limit);
    };
    const auto append = [&](std::string_view word, std::span<const int32_t> known) {
      std::span<const int32_t> pieces = known.subspan(1);
      if (!(std::abs(score) < std::bit_cast<float>(known[0]))) {
        pieces_.clear();
        words.divide(model.normalized(word), score, pieces_);
        pieces = pieces_;
      }
      for (size_t i = 0; i < pieces.size(); ++i) {
        score += words.score(pieces[i]);
        // A run of unknown characters is one piece.
        const bool goes_on = pieces[i] == words.unknown_id() && i > 0 && pieces[i - 1] == pieces[i];
        if (!goes_on) ids.push_back(pieces[i]);
      }
    };
    batch_.visit(text, encode, append, [&](const auto& emit) { model.cut_words(text, emit); });
  }

  const SentencePieceTokenizer& tokenizer_;
  std::vector<int32_t> pieces_;  // of one word
  WordCache cache_;
  WordBatch batch_;
};

std::unique_ptr<Encoder> SentencePieceTokenizer::make_encoder() const {
  return std::make_unique<TextEncoder>(*this);
}

std::string SentencePieceTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  std::vector<int32_t> part;
  for (const int32_t id : ids) {
    const auto special = special_texts_.find(id);
    if (special == special_texts_.end()) {
      piece(id);  // refuses an unknown id
      part.push_back(id);
      continue;
    }
    text += model_.decode(part) + " " + special->second + " ";
    part.clear();
  }
  return text + model_.decode(part);
}

std::string SentencePieceTokenizer::token_bytes(int32_t id) const {
  const auto special = special_texts_.find(id);
  if (special != special_texts_.end()) return " " + special->second + " ";
  piece(id);  // refuses an unknown id
  return model_.bytes_of(id);
}

std::string SentencePieceTokenizer::piece(int32_t id) const {
  if (id < 0 || id >= vocab_size()) {
    throw FormatError(fmt::format("{}: no piece has id {}; ids go from 0 to {}", model_.file(), id,
                                  vocab_size() - 1));
  }
  if (id < model_.num_pieces()) return model_.piece(id);
  return added_[static_cast<size_t>(id - model_.num_pieces())];
}

std::optional<int32_t> SentencePieceTokenizer::id_of(std::string_view piece) const {
  if (const std::optional<int32_t> id = model_.id_of(piece)) return id;
  for (size_t i = 0; i < added_.size(); ++i) {
    if (added_[i] == piece) return model_.num_pieces() + static_cast<int32_t>(i);
  }
  return std::nullopt;
}

int64_t SentencePieceTokenizer::vocab_size() const {
  return model_.num_pieces() + static_cast<int64_t>(added_.size());
}

std::optional<int32_t> SentencePieceTokenizer::special_id(SpecialToken token) const {
  const bool has_specials = options_.kind == Kind::kWithSpecials;
  const auto or_added = [&](std::optional<int32_t> id, const char* text) {
    return id || !has_specials ? id : id_of(text);
  };
  const auto added = [&](const char* text) {
    return has_specials ? id_of(text) : std::optional<int32_t>();
  };
  switch (token) {
    case SpecialToken::kCls:
      return added("<CLS>");
    case SpecialToken::kSep:
      return added("<SEP>");
    case SpecialToken::kMask:
      return added("<MASK>");
    case SpecialToken::kPad:
      return or_added(model_.pad_id(), "<PAD>");
    case SpecialToken::kBos:
      return or_added(model_.bos_id(), "<BOS>");
    case SpecialToken::kEos:
      return or_added(model_.eos_id(), "<EOS>");
    case SpecialToken::kEod:
      return has_specials ? id_of("<EOD>") : model_.eos_id();
  }
  return std::nullopt;
}

std::string_view SentencePieceTokenizer::type() const {
  switch (options_.kind) {
    case Kind::kWithSpecials:
      return "SentencePieceTokenizer";
    case Kind::kPlain:
      return "GPTSentencePieceTokenizer";
    case Kind::kLlama2:
      return "Llama2Tokenizer";
  }
  throw InternalError("SentencePieceTokenizer: no such kind");
}

TokenizerDescription SentencePieceTokenizer::description() const {
  return {"_" + std::string(type()),
          {model_.file()},
          {{"vocab_extra_ids", std::to_string(options_.vocab_extra_ids)}}};
}

}  // namespace megatron
