#include "megatron/tokenizers/hf/decoder.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "megatron/core/error.h"
#include "megatron/tokenizers/byte_map.h"
#include "megatron/tokenizers/hf/normalizer.h"
#include "megatron/tokenizers/text_rules.h"
#include "megatron/tokenizers/unicode.h"
#include "megatron/tokenizers/unicode_text.h"

namespace megatron::hf {
namespace {

using Json = nlohmann::json;
using TokenPieces = std::vector<std::string>;

void put_blanks(TokenPieces& pieces) {
  for (size_t i = 1; i < pieces.size(); ++i) pieces[i].insert(0, 1, ' ');
}

void fuse(TokenPieces& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  pieces = {std::move(text)};
}

// Maps characters to bytes; a piece with an unmapped character is literal text.
Decoder make_byte_level(BrokenText broken) {
  return [broken](TokenPieces& pieces) {
    std::string bytes;
    for (const std::string& piece : pieces) bytes += bytes_from_printable(piece).value_or(piece);
    pieces = {broken == BrokenText::kKept ? bytes : with_valid_utf8(bytes)};
  };
}

// The byte of a piece <0xNN>.
std::optional<char> byte_of(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || !piece.ends_with('>')) return std::nullopt;
  unsigned value = 0;
  const char* const end = piece.data() + 5;
  if (std::from_chars(piece.data() + 3, end, value, 16).ptr != end) return std::nullopt;
  return static_cast<char>(value);
}

// Decodes runs of <0xNN>; a run that is not UTF-8 becomes one U+FFFD per byte.
Decoder make_byte_fallback(BrokenText broken) {
  return [broken](TokenPieces& pieces) {
    TokenPieces result;
    std::string run;
    const auto flush = [&] {
      if (run.empty()) return;
      if (broken == BrokenText::kKept || is_valid_utf8(run)) {
        result.push_back(run);
      } else {
        for (size_t i = 0; i < run.size(); ++i) result.emplace_back("\xEF\xBF\xBD");
      }
      run.clear();
    };
    for (std::string& piece : pieces) {
      if (const std::optional<char> byte = byte_of(piece)) {
        run += *byte;
        continue;
      }
      flush();
      result.push_back(std::move(piece));
    }
    flush();
    pieces = std::move(result);
  };
}

Decoder make_word_piece(const Json& json) {
  const auto prefix = json.value("prefix", std::string("##"));
  const bool cleanup = json.value("cleanup", true);
  return [prefix, cleanup](TokenPieces& pieces) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      std::string& piece = pieces[i];
      if (i > 0) {
        if (piece.starts_with(prefix)) {
          piece.erase(0, prefix.size());
        } else {
          piece.insert(0, 1, ' ');
        }
      }
      if (cleanup) piece = without_extra_blanks(std::move(piece), BlankRules::kWithDoNot);
    }
  };
}

Decoder make_metaspace_decoder(const Json& json) {
  const auto mark = json.at("replacement").get<std::string>();
  const Json scheme = json.value("prepend_scheme", Json());
  const bool never = scheme.is_null() ? !json.value("add_prefix_space", true) : scheme == "never";
  return [mark, never](TokenPieces& pieces) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      replace_all(pieces[i], mark, i == 0 && !never ? "" : " ");
    }
  };
}

Decoder make_strip_decoder(const Json& json) {
  const auto content = json.at("content").get<std::string>();
  const auto start = json.value("start", int64_t{0});
  const auto stop = json.value("stop", int64_t{0});
  return [content, start, stop](TokenPieces& pieces) {
    for (std::string& piece : pieces) {
      for (int64_t i = 0; i < start && piece.starts_with(content); ++i) {
        piece.erase(0, content.size());
      }
      for (int64_t i = 0; i < stop && piece.ends_with(content); ++i) {
        piece.resize(piece.size() - content.size());
      }
    }
  };
}

Decoder make_bpe(const Json& json) {
  const auto suffix = json.value("suffix", std::string("</w>"));
  return [suffix](TokenPieces& pieces) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      replace_all(pieces[i], suffix, i + 1 == pieces.size() ? "" : " ");
    }
  };
}

Decoder make_replace_decoder(const Json& json) {
  return [replace = make_normalizer(json)](TokenPieces& pieces) {
    for (std::string& piece : pieces) replace(piece);
  };
}

Decoder make_sequence_decoder(const Json& json, BrokenText broken) {
  std::vector<Decoder> parts;
  for (const Json& part : json.at("decoders")) parts.push_back(make_decoder(part, broken));
  return [parts = std::move(parts)](TokenPieces& pieces) {
    for (const Decoder& part : parts) part(pieces);
  };
}

}  // namespace

Decoder make_decoder(const Json& json, BrokenText broken) {
  if (json.is_null()) return put_blanks;
  const std::string type = json.at("type");
  if (type == "Sequence") return make_sequence_decoder(json, broken);
  if (type == "ByteLevel") return make_byte_level(broken);
  if (type == "WordPiece") return make_word_piece(json);
  if (type == "Metaspace") return make_metaspace_decoder(json);
  if (type == "ByteFallback") return make_byte_fallback(broken);
  if (type == "Fuse") return fuse;
  if (type == "Strip") return make_strip_decoder(json);
  if (type == "Replace") return make_replace_decoder(json);
  if (type == "BPEDecoder") return make_bpe(json);
  throw FormatError(fmt::format("the decoder {} is not available", type));
}

}  // namespace megatron::hf
