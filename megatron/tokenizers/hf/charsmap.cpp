#include "megatron/tokenizers/hf/charsmap.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <cstring>

#include "megatron/core/error.h"
#include "megatron/tokenizers/unicode.h"

namespace megatron::hf {
namespace {

// The fields of a unit.
bool has_leaf(uint32_t unit) { return ((unit >> 8) & 1u) != 0; }
uint32_t value_of(uint32_t unit) { return unit & 0x7FFFFFFFu; }
uint32_t label_of(uint32_t unit) { return unit & 0x800000FFu; }
uint32_t offset_of(uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }

}  // namespace

Charsmap::Charsmap(const std::string& bytes) {
  uint32_t trie_bytes = 0;
  if (bytes.size() >= 4) std::memcpy(&trie_bytes, bytes.data(), 4);
  if (bytes.size() < 4 || trie_bytes % 4 != 0 || trie_bytes == 0 || trie_bytes > bytes.size() - 4) {
    throw FormatError(
        fmt::format("precompiled_charsmap has {} bytes and a trie of {}, which does "
                    "not fit; copy the file again",
                    bytes.size(), trie_bytes));
  }
  units_.resize(trie_bytes / 4);
  std::memcpy(units_.data(), bytes.data() + 4, trie_bytes);
  replacements_ = bytes.substr(4 + trie_bytes);
  for (size_t byte = 0; byte < ascii_.size(); ++byte) {
    const char character = static_cast<char>(byte);
    const auto replacement = replacement_of({&character, 1});
    if (replacement) ascii_[byte] = *replacement;
  }
}

std::optional<std::string_view> Charsmap::replacement_of(std::string_view text) const {
  size_t at = offset_of(units_[0]);
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte == 0) return std::nullopt;  // marks the leaves
    at ^= byte;
    if (at >= units_.size() || label_of(units_[at]) != byte) return std::nullopt;
    const uint32_t unit = units_[at];
    at ^= offset_of(unit);
    if (at >= units_.size()) return std::nullopt;
    if (!has_leaf(unit)) continue;
    const size_t begin = value_of(units_[at]);
    if (begin >= replacements_.size()) return std::string_view();
    const size_t end = std::min(replacements_.find('\0', begin), replacements_.size());
    return std::string_view(replacements_).substr(begin, end - begin);
  }
  return std::nullopt;
}

std::string Charsmap::apply(std::string_view text) const {
  std::string result;
  result.reserve(text.size());
  const char* const end = text.data() + text.size();
  const auto append = [&](const char* begin, const char* stop) {
    const std::string_view part(begin, static_cast<size_t>(stop - begin));
    result += replacement_of(part).value_or(part);
  };
  const auto is_ascii = [](char c) { return static_cast<uint8_t>(c) < 0x80; };
  for (const char* p = text.data(); p < end;) {
    // Two ASCII characters are two clusters, but for CR LF.
    if (is_ascii(*p) && *p != '\r' && (p + 1 == end || is_ascii(p[1]))) {
      const std::optional<std::string>& by = ascii_[static_cast<uint8_t>(*p)];
      result += by ? std::string_view(*by) : std::string_view(p, 1);
      ++p;
      continue;
    }
    const char* stop = p;
    CodePoint c = decode_utf8(stop, end);
    stop += c.length;
    for (utf8proc_int32_t state = 0; stop < end; stop += c.length) {
      const auto before = static_cast<utf8proc_int32_t>(c.value);
      c = decode_utf8(stop, end);
      if (utf8proc_grapheme_break_stateful(before, static_cast<utf8proc_int32_t>(c.value),
                                           &state)) {
        break;
      }
    }
    const std::string_view cluster(p, static_cast<size_t>(stop - p));
    if (cluster.size() < 6) {
      if (const auto whole = replacement_of(cluster)) {
        result += *whole;
        p = stop;
        continue;
      }
    }
    while (p < stop) {
      const char* const next = p + decode_utf8(p, end).length;
      append(p, next);
      p = next;
    }
  }
  return result;
}

}  // namespace megatron::hf
