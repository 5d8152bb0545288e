#include "megatron/tokenizers/hf/hf_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "megatron/core/error.h"
#include "megatron/core/json.h"
#include "megatron/tokenizers/byte_map.h"
#include "megatron/tokenizers/text_rules.h"
#include "megatron/tokenizers/unicode.h"
#include "megatron/tokenizers/unicode_text.h"
#include "megatron/tokenizers/word_cache.h"

namespace megatron::hf {
namespace {

using Json = nlohmann::json;

// The name of a special token in the files, and its usual values.
struct SpecialName {
  SpecialToken token;
  const char* name;
  std::vector<std::string> usual;
};

const std::vector<SpecialName>& special_names() {
  static const std::vector<SpecialName> names = {
      {SpecialToken::kCls, "cls_token", {"[CLS]"}},
      {SpecialToken::kSep, "sep_token", {"[SEP]"}},
      {SpecialToken::kMask, "mask_token", {"[MASK]", "<mask>"}},
      {SpecialToken::kPad, "pad_token", {"[PAD]", "<pad>"}},
      {SpecialToken::kBos, "bos_token", {"<s>", "<|begin_of_text|>", "<bos>", "[BOS]"}},
      {SpecialToken::kEos,
       "eos_token",
       {"</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "[EOS]"}},
  };
  return names;
}

bool marked(const Json& token, const char* name) {
  const Json value = token.value(name, Json());
  return value.is_boolean() && value.get<bool>();
}

}  // namespace

HfTokenizer::HfTokenizer(const std::string& path, Options options) : options_(std::move(options)) {
  const HfFiles files = read_hf_files(path);
  source_ = path;
  try {
    build(files);
  } catch (const Json::exception& error) {
    throw FormatError(fmt::format(
        "{}: a field of tokenizer.json is missing or of another type than it must be: {}; copy the "
        "file again",
        path, json_problem(error)));
  } catch (const FormatError& error) {
    throw FormatError(fmt::format("{}: tokenizer.json: {}", path, error.what()));
  }
}

void HfTokenizer::build(const HfFiles& files) {
  const auto part = [&](const char* name) { return files.tokenizer.parts.value(name, Json()); };
  normalizer_ = make_normalizer(part("normalizer"));
  normalizes_ = !part("normalizer").is_null();
  pre_tokenizer_ = make_pre_tokenizer(part("pre_tokenizer"));
  model_ = make_model(files.tokenizer.model);
  decoder_ = make_decoder(part("decoder"));
  byte_decoder_ = make_decoder(part("decoder"), BrokenText::kKept);
  if (options_.include_special_tokens)
    post_processor_ = make_post_processor(part("post_processor"));
  removes_extra_blanks_ = files.removes_extra_blanks;
  add_all_tokens(files);
  std::vector<AddedToken> normalized;
  for (const AddedToken& token : added_) {
    if (!token.normalized) {
      raw_tokens_.add(token, token.content);
      continue;
    }
    AddedToken& normal = normalized.emplace_back(token);
    normalizer_(normal.content);
    if (normal.content != token.content) normal_texts_[token.id] = normal.content;
    normalized_tokens_.add(normal, normal.content);
  }
  cuts_ = TextCuts(part("normalizer"), part("pre_tokenizer"), *model_, normalized);
  find_special_ids(files);
}

void HfTokenizer::add_all_tokens(const HfFiles& files) {
  const Json list = files.tokenizer.parts.value("added_tokens", Json::array());
  for (const Json& token : list) {
    add_token({.content = token.at("content").get<std::string>(),
               .single_word = marked(token, "single_word"),
               .lstrip = marked(token, "lstrip"),
               .rstrip = marked(token, "rstrip"),
               .normalized = token.value("normalized", true),
               .special = marked(token, "special")});
  }
  const auto add_missing = [&](const AddedToken& token) {
    if (!added_ids_.id_of(token.content)) add_token(token);
  };
  for (const AddedToken& token : files.more_tokens) add_missing(token);
  const auto add_special = [&](const std::string& content) {
    add_missing({.content = content, .normalized = false, .special = true});
  };
  for (const auto& [name, content] : files.named_tokens) add_special(content);
  for (const std::string& content : files.additional_special_tokens) add_special(content);
  for (const std::string& content : options_.special_tokens) add_special(content);
  for (int64_t i = 0; i < options_.vocab_extra_ids; ++i) {
    const std::string content = fmt::format("<extra_id_{}>", i);
    add_special(content);
    sentinels_.push_back(*id_of(content));
  }
  int64_t new_tokens = 0;
  for (const AddedToken& token : added_) new_tokens += model_->id_of(token.content) ? 0 : 1;
  vocab_size_ = model_->size() + new_tokens;
}

int32_t HfTokenizer::next_id() const {
  int32_t next = static_cast<int32_t>(model_->size());
  for (const AddedToken& token : added_) next = std::max(next, token.id + 1);
  return next;
}

void HfTokenizer::add_token(AddedToken token) {
  if (token.content.empty()) return;
  if (const std::optional<int32_t> id = added_ids_.id_of(token.content)) {
    token.id = *id;
    for (AddedToken& known : added_) {
      if (known.id == *id) known = token;
    }
    return;
  }
  const std::optional<int32_t> id = model_->id_of(token.content);
  token.id = id ? *id : next_id();
  added_ids_.add(token.content, token.id);
  added_.push_back(std::move(token));
}

void HfTokenizer::find_special_ids(const HfFiles& files) {
  for (const SpecialName& special : special_names()) {
    const auto named = files.named_tokens.find(special.name);
    std::vector<std::string> candidates = special.usual;
    if (named != files.named_tokens.end()) candidates = {named->second};
    for (const std::string& content : candidates) {
      const std::optional<int32_t> id = added_ids_.id_of(content);
      if (!id || special_ids_.contains(special.token)) continue;
      special_ids_[special.token] = *id;
    }
  }
  if (options_.vocab_extra_ids == 0) {
    for (const std::string& content : files.additional_special_tokens) {
      sentinels_.push_back(*id_of(content));
    }
  }
  if (options_.type != "HuggingFaceTokenizer") return;
  // Compat: Megatron-LM of 2026 uses either token of these two pairs for the other.
  const auto copy = [&](SpecialToken from, SpecialToken to) {
    if (special_ids_.contains(from)) special_ids_.try_emplace(to, special_ids_.at(from));
  };
  copy(SpecialToken::kSep, SpecialToken::kEos);
  copy(SpecialToken::kEos, SpecialToken::kSep);
  copy(SpecialToken::kCls, SpecialToken::kBos);
  copy(SpecialToken::kBos, SpecialToken::kCls);
}

class HfTokenizer::TextEncoder final : public Encoder {
 public:
  explicit TextEncoder(const HfTokenizer& tokenizer)
      : tokenizer_(tokenizer), parts_batch_(parts_cache_), batch_(cache_) {}

  void append(std::string_view text, std::vector<int32_t>& ids) override {
    std::string valid;
    if (!is_valid_utf8(text)) text = valid = with_valid_utf8(text);
    const PostProcessor& around = tokenizer_.post_processor_;
    ids.insert(ids.end(), around.before.begin(), around.before.end());
    tokenizer_.raw_tokens_.split(text, raw_);
    for (const TokenFinder::Segment& segment : raw_) {
      if (segment.id >= 0) {
        ids.push_back(segment.id);
      } else {
        append_raw(segment.text, segment.text.data() == text.data(), ids);
      }
    }
    ids.insert(ids.end(), around.after.begin(), around.after.end());
  }

 private:
  void append_raw(std::string_view text, bool is_first, std::vector<int32_t>& ids) {
    const TextCuts& cuts = tokenizer_.cuts_;
    if (!cuts.may_cut(text)) return append_part(text, is_first, ids);
    const auto encode = [&](std::string_view part, std::vector<int32_t>& own) {
      append_part(part, false, own);
    };
    parts_batch_.append(text, ids, encode, [&](const auto& emit) { cuts.cut(text, emit); });
  }

  void append_part(std::string_view text, bool is_first, std::vector<int32_t>& ids) {
    if (tokenizer_.normalizes_) {
      normal_ = text;
      tokenizer_.normalizer_(normal_);
      text = normal_;
    }
    tokenizer_.normalized_tokens_.split(text, segments_);
    for (const TokenFinder::Segment& part : segments_) {
      if (part.id >= 0) {
        ids.push_back(part.id);
        continue;
      }
      pieces_.reset({part.text, is_first && part.text.data() == text.data()});
      for (const PreTokenizerStep& step : tokenizer_.pre_tokenizer_.steps) step(pieces_);
      append_words(ids);
    }
  }

  void append_words(std::vector<int32_t>& ids) {
    const auto encode = [&](std::string_view word, std::vector<int32_t>& own) {
      const bool maps_bytes = tokenizer_.pre_tokenizer_.maps_bytes;
      tokenizer_.model_->append(maps_bytes ? printable_from_bytes(word) : std::string(word), own);
    };
    for (const Piece& piece : pieces_.list()) {
      tokenizer_.pre_tokenizer_.words.cut(piece.text, batch_.emit_for(piece.text, ids, encode));
    }
    batch_.drain(ids, encode);
  }

  const HfTokenizer& tokenizer_;
  WordCache parts_cache_;  // of parts as they come
  WordBatch parts_batch_;
  WordCache cache_;  // of words as the model gets them
  WordBatch batch_;
  std::string normal_;
  std::vector<TokenFinder::Segment> raw_;
  std::vector<TokenFinder::Segment> segments_;
  Pieces pieces_;
};

std::unique_ptr<Encoder> HfTokenizer::make_encoder() const {
  return std::make_unique<TextEncoder>(*this);
}

std::vector<int32_t> HfTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  TextEncoder(*this).append(text, ids);
  return ids;
}

const std::string* HfTokenizer::text_of(int32_t id) const {
  const std::string* added = added_ids_.piece(id);
  return added != nullptr ? added : model_->piece(id);
}

const std::string* HfTokenizer::decoded_piece(int32_t id) const {
  const auto normal = normal_texts_.find(id);
  return normal != normal_texts_.end() ? &normal->second : text_of(id);
}

std::string HfTokenizer::decode(std::span<const int32_t> ids) const {
  std::vector<std::string> pieces;
  for (const int32_t id : ids) {
    if (const std::string* piece = decoded_piece(id)) pieces.push_back(*piece);
  }
  decoder_(pieces);
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return removes_extra_blanks_ ? without_extra_blanks(std::move(text)) : text;
}

std::string HfTokenizer::token_bytes(int32_t id) const {
  const std::string* piece = decoded_piece(id);
  if (piece == nullptr) return {};
  const std::string before = "a";  // the text has begun
  std::vector<std::string> pieces = {before, *piece};
  byte_decoder_(pieces);
  std::string bytes;
  for (const std::string& part : pieces) bytes += part;
  return bytes.starts_with(before) ? bytes.substr(before.size()) : bytes;
}

std::string HfTokenizer::piece(int32_t id) const {
  const std::string* text = text_of(id);
  if (text == nullptr) throw FormatError(fmt::format("{}: no token has id {}", source_, id));
  return *text;
}

std::optional<int32_t> HfTokenizer::id_of(std::string_view piece) const {
  const std::optional<int32_t> added = added_ids_.id_of(piece);
  return added ? added : model_->id_of(piece);
}

std::optional<int32_t> HfTokenizer::special_id(SpecialToken token) const {
  const auto found = special_ids_.find(token == SpecialToken::kEod ? SpecialToken::kEos : token);
  if (found == special_ids_.end()) return std::nullopt;
  return found->second;
}

TokenizerDescription HfTokenizer::description() const {
  return {options_.type == "PretrainedFromHF" ? "_AutoTokenizer" : "_HuggingFaceTokenizer",
          {source_},
          {{"vocab_extra_ids", std::to_string(options_.vocab_extra_ids)}}};
}

}  // namespace megatron::hf
