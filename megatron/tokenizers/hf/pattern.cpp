#include "megatron/tokenizers/hf/pattern.h"

#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "megatron/core/error.h"
#include "megatron/core/parts.h"
#include "megatron/tokenizers/unicode.h"

namespace megatron::hf {

Finder find_text(std::string pattern) {
  return [pattern = std::move(pattern)](std::string_view text, std::vector<Regex::Match>& matches) {
    matches.clear();
    if (pattern.empty()) return;
    for (size_t at = text.find(pattern); at != std::string_view::npos;
         at = text.find(pattern, at + pattern.size())) {
      matches.push_back({at, at + pattern.size()});
    }
  };
}

Finder find_characters(std::function<bool(char32_t)> holds) {
  std::array<bool, 128> ascii{};
  for (char32_t c = 0; c < ascii.size(); ++c) ascii[c] = holds(c);
  return
      [holds = std::move(holds), ascii](std::string_view text, std::vector<Regex::Match>& matches) {
        matches.clear();
        const char* const end = text.data() + text.size();
        for (const char* p = text.data(); p < end;) {
          const auto byte = static_cast<uint8_t>(*p);
          if (byte < ascii.size()) {
            const auto at = static_cast<size_t>(p - text.data());
            if (ascii[byte]) matches.push_back({at, at + 1});
            ++p;
            continue;
          }
          const CodePoint c = decode_utf8(p, end);
          const auto begin = static_cast<size_t>(p - text.data());
          p += c.length;
          if (holds(c.value)) matches.push_back({begin, begin + static_cast<size_t>(c.length)});
        }
      };
}

Finder make_finder(const nlohmann::json& pattern) {
  if (pattern.contains("String")) return find_text(pattern.at("String").get<std::string>());
  if (!pattern.contains("Regex")) {
    throw FormatError("a pattern must be {\"String\": text} or {\"Regex\": expression}");
  }
  const std::string expression = pattern.at("Regex").get<std::string>();
  if constexpr (kHasPcre2) {
    return [regex = std::make_shared<const Regex>(expression)](std::string_view text,
                                                               std::vector<Regex::Match>& matches) {
      regex->find_all(text, matches);
    };
  } else {
    refuse_missing("the regular expression " + expression, "MG_PCRE2");
  }
}

}  // namespace megatron::hf
