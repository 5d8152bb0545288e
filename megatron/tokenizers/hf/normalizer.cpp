#include "megatron/tokenizers/hf/normalizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>

#include "megatron/core/error.h"
#include "megatron/tokenizers/base64.h"
#include "megatron/tokenizers/byte_map.h"
#include "megatron/tokenizers/hf/charsmap.h"
#include "megatron/tokenizers/hf/pattern.h"
#include "megatron/tokenizers/unicode.h"
#include "megatron/tokenizers/unicode_text.h"

namespace megatron::hf {
namespace {

using Json = nlohmann::json;

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

Normalizer to_form(NormalForm form) {
  return [form](std::string& text) {
    if (!is_ascii(text)) text = to_utf8(normalized(code_points(text), form));
  };
}

// The first position from `p` on that NFC may change.
const char* end_of_nfc(const char* p, const char* end) {
  while (p < end) {
    if (static_cast<uint8_t>(*p) < 0x80) {
      ++p;
      continue;
    }
    const CodePoint c = decode_utf8(p, end);
    if (!begins_nfc(c.value)) break;
    p += c.length;
  }
  return p;
}

// Most text is NFC already; the rest is normalized in independent pieces.
void to_nfc(std::string& text) {
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const char* done = begin;
  std::string result;
  for (const char* p = end_of_nfc(begin, end); p < end; p = end_of_nfc(done, end)) {
    const char* const start = p > begin ? p - last_code_point(begin, p).length : p;
    result.append(done, start);
    CodePoint c;
    for (done = p; done < end; done += c.length) {
      c = decode_utf8(done, end);
      if (begins_nfc(c.value)) break;
    }
    const std::string_view piece(start, static_cast<size_t>(done - start));
    result += to_utf8(normalized(code_points(piece), NormalForm::kNfc));
  }
  if (done == begin) return;
  result.append(done, end);
  text = std::move(result);
}

// Keeps the code points for which `keep` holds.
template <class Keep>
void filter(std::string& text, const Keep& keep) {
  std::u32string points = code_points(text);
  std::erase_if(points, [&](char32_t c) { return !keep(c); });
  text = to_utf8(points);
}

void to_lower(std::string& text) {
  if (is_ascii(text)) {
    for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  } else {
    text = to_utf8(lower_case(code_points(text)));
  }
}

Normalizer make_strip_normalizer(const Json& json) {
  const bool left = json.value("strip_left", true);
  const bool right = json.value("strip_right", true);
  return [left, right](std::string& text) {
    const std::u32string points = code_points(text);
    size_t begin = 0;
    size_t end = points.size();
    while (left && begin < end && is_white_space(points[begin])) ++begin;
    while (right && end > begin && is_white_space(points[end - 1])) --end;
    text = to_utf8(std::u32string_view(points).substr(begin, end - begin));
  };
}

Normalizer make_replace_normalizer(const Json& json) {
  return [find = make_finder(json.at("pattern")),
          content = json.at("content").get<std::string>()](std::string& text) {
    std::vector<Regex::Match> matches;
    find(text, matches);
    if (matches.empty()) return;
    std::string result;
    size_t end = 0;
    for (const Regex::Match& match : matches) {
      result.append(text, end, match.begin - end);
      result += content;
      end = match.end;
    }
    result.append(text, end);
    text = std::move(result);
  };
}

Normalizer make_precompiled(const Json& json) {
  const Json& map = json.at("precompiled_charsmap");
  if (map.is_null()) return [](std::string&) {};
  const std::optional<std::string> bytes = bytes_from_base64(map.get<std::string>());
  if (!bytes) throw FormatError("precompiled_charsmap is not valid base64; copy the file again");
  return [rules = std::make_shared<const Charsmap>(*bytes)](std::string& text) {
    text = rules->apply(text);
  };
}

// Removes control characters and maps other kinds of blanks to blanks, as SentencePiece's nmt
// rules.
void apply_nmt(std::string& text) {
  const auto is_dropped = [](char32_t c) {
    return (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F ||
           c == 0x8F || c == 0x9F;
  };
  const auto is_blank = [](char32_t c) {
    return c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
           (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
           c == 0xFEFF || c == 0xFFFD;
  };
  std::u32string points = code_points(text);
  std::erase_if(points, is_dropped);
  std::replace_if(points.begin(), points.end(), is_blank, U' ');
  text = to_utf8(points);
}

struct BertRules {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool strip_accents = true;
  bool lowercase = true;
};

// Compat: Hugging Face's blocks of ideographs leave U+2B820-2B91F out.
bool is_ideograph(char32_t c) { return is_bert_ideograph(c) && !(c >= 0x2B820 && c < 0x2B920); }

std::u32string cleaned(std::u32string_view text, const BertRules& rules) {
  std::u32string result;
  for (const char32_t c : text) {
    const bool is_blank = c == '\t' || c == '\n' || c == '\r' || is_white_space(c);
    if (rules.clean_text) {
      const bool is_line_blank = c == '\t' || c == '\n' || c == '\r';
      if (c == 0 || c == 0xFFFD) continue;
      if (!is_line_blank && (is_control_or_format(c) || is_private_use(c))) continue;
    }
    const bool stands_apart = rules.handle_chinese_chars && is_ideograph(c);
    if (stands_apart) result += U' ';
    result += rules.clean_text && is_blank ? U' ' : c;
    if (stands_apart) result += U' ';
  }
  return result;
}

// The replacement of an ASCII character; empty if it is removed.
std::array<std::string, 128> ascii_table(const BertRules& rules) {
  std::array<std::string, 128> table;
  for (char32_t c = 0; c < table.size(); ++c) {
    std::u32string text = cleaned(std::u32string_view(&c, 1), rules);
    if (rules.lowercase) text = lower_case(text);
    table[c] = to_utf8(text);
  }
  return table;
}

std::string applied(std::string_view text, const BertRules& rules) {
  std::u32string points = cleaned(code_points(text), rules);
  if (rules.strip_accents) {
    points = normalized(points, NormalForm::kNfd);
    std::erase_if(points, is_nonspacing_mark);
  }
  if (rules.lowercase) points = lower_case(points);
  return to_utf8(points);
}

Normalizer make_bert(const Json& json) {
  BertRules rules;
  rules.clean_text = json.value("clean_text", true);
  rules.handle_chinese_chars = json.value("handle_chinese_chars", true);
  rules.lowercase = json.value("lowercase", true);
  const Json accents = json.value("strip_accents", Json());
  rules.strip_accents = accents.is_null() ? rules.lowercase : accents.get<bool>();
  return [rules, ascii = ascii_table(rules)](std::string& text) {
    std::string result;
    result.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
      if (static_cast<uint8_t>(text[at]) < 0x80) {
        result += ascii[static_cast<uint8_t>(text[at++])];
        continue;
      }
      // Accents are ordered among each other and never move past an ASCII character.
      size_t end = at;
      while (end < text.size() && static_cast<uint8_t>(text[end]) >= 0x80) ++end;
      result += applied(std::string_view(text).substr(at, end - at), rules);
      at = end;
    }
    text = std::move(result);
  };
}

Normalizer make_sequence_normalizer(const Json& json) {
  std::vector<Normalizer> parts;
  for (const Json& part : json.at("normalizers")) parts.push_back(make_normalizer(part));
  return [parts = std::move(parts)](std::string& text) {
    for (const Normalizer& part : parts) part(text);
  };
}

}  // namespace

Normalizer make_normalizer(const Json& json) {
  if (json.is_null()) return [](std::string&) {};
  const std::string type = json.at("type");
  if (type == "Sequence") return make_sequence_normalizer(json);
  if (type == "BertNormalizer") return make_bert(json);
  if (type == "NFC") return to_nfc;
  if (type == "NFD") return to_form(NormalForm::kNfd);
  if (type == "NFKC") return to_form(NormalForm::kNfkc);
  if (type == "NFKD") return to_form(NormalForm::kNfkd);
  if (type == "Lowercase") return to_lower;
  if (type == "StripAccents") {
    return [](std::string& text) { filter(text, [](char32_t c) { return !is_mark(c); }); };
  }
  if (type == "Strip") return make_strip_normalizer(json);
  if (type == "Replace") return make_replace_normalizer(json);
  if (type == "Prepend") {
    return [prefix = json.at("prepend").get<std::string>()](std::string& text) {
      if (!text.empty()) text.insert(0, prefix);
    };
  }
  if (type == "Precompiled") return make_precompiled(json);
  if (type == "Nmt") return apply_nmt;
  if (type == "ByteLevel") return [](std::string& text) { text = printable_from_bytes(text); };
  throw FormatError(fmt::format("the normalizer {} is not available", type));
}

}  // namespace megatron::hf
