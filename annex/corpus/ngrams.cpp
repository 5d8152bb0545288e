#include "annex/corpus/ngrams.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "annex/corpus/json_object.h"
#include "annex/corpus/lines.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/json.h"
#include "megatron/tokenizers/unicode_text.h"

namespace megatron::corpus {
namespace {

// A sequence of words has the hash sum of hash(word) * kBase^(words behind it), modulo 2^64. So the
// hash of any sequence of a text is a difference of hashes of prefixes.
constexpr uint64_t kBase = 0x9E3779B97F4A7C15u;

uint64_t hash_of(const std::string& word) { return std::hash<std::string>()(word); }

uint64_t power_of_base(int64_t exponent) {
  uint64_t power = 1;
  for (; exponent > 0; --exponent) power *= kBase;
  return power;
}

bool is_in_word(char32_t c) { return is_letter(c) || is_number(c) || c == U'_'; }

}  // namespace

std::string Words::joined(int64_t first, int64_t size) const {
  std::string text = texts[static_cast<size_t>(first)];
  for (int64_t i = first + 1; i < first + size; ++i) text += ' ' + texts[static_cast<size_t>(i)];
  return text;
}

int64_t Words::joined_length(int64_t first, int64_t size) const {
  int64_t length = size - 1;
  for (int64_t i = first; i < first + size; ++i) length += lengths[static_cast<size_t>(i)];
  return length;
}

Words words_of(std::u32string_view text) {
  Words words;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin;
    while (end < text.size() && is_in_word(text[end])) ++end;
    if (end > begin) {
      const std::u32string lower = lower_case_in_context(text.substr(begin, end - begin));
      words.texts.push_back(to_utf8(lower));
      words.begins.push_back(static_cast<int64_t>(begin));
      words.lengths.push_back(std::ssize(lower));
    }
    begin = end + 1;
  }
  return words;
}

void NgramDictionary::add(const Words& words, int64_t first, int64_t size, int64_t count) {
  counts_.try_emplace(words.joined(first, size), count);
  uint64_t hash = 0;
  for (int64_t i = first; i < first + size; ++i) {
    hash = hash * kBase + hash_of(words.texts[static_cast<size_t>(i)]);
  }
  hashes_.insert(hash);
  sizes_.insert(size);
}

void NgramDictionary::add_text(std::string_view text, int64_t min_size, int64_t max_size) {
  const Words words = words_of(code_points(text));
  if (words.count() < min_size) return;
  if (words.count() < max_size) add(words, 0, words.count(), 0);
  for (int64_t i = 0; i + max_size <= words.count(); ++i) add(words, i, max_size, 0);
}

int64_t NgramDictionary::drop_frequent(int64_t threshold) {
  const auto dropped = static_cast<int64_t>(
      std::erase_if(counts_, [&](const auto& entry) { return entry.second >= threshold; }));
  sizes_.clear();
  for (const auto& [sequence, count] : counts_) {
    sizes_.insert(std::ranges::count(sequence, ' ') + 1);
  }
  return dropped;
}

void NgramDictionary::save(const std::filesystem::path& path) const {
  std::vector<std::pair<std::string, int64_t>> sorted(counts_.begin(), counts_.end());
  std::ranges::sort(sorted);
  FileWriter writer(path);
  for (const auto& [sequence, count] : sorted) {
    writer.write(fmt::format("{{\"ngram\": {}, \"count\": {}}}\n", json_text(sequence), count));
  }
  writer.commit();
}

void NgramDictionary::load(const std::filesystem::path& path) {
  using Json = nlohmann::json;
  const auto parser = [] {
    return [](const Line& line) { return try_parse_json(line.text, kJsonLine); };
  };
  each_line<Json>({&path, 1}, {}, parser, [&](const Line& line, Json& entry) {
    const bool is_good = entry.is_object() && entry.contains("ngram") &&
                         entry["ngram"].is_string() && entry.contains("count") &&
                         entry["count"].is_number_integer();
    const Words words =
        is_good ? words_of(code_points(entry["ngram"].get<std::string>())) : Words{};
    if (words.count() == 0) {
      throw FormatError(about(line,
                              "expected {\"ngram\": \"words\", \"count\": 0}; give a file of "
                              "--save-dictionary"));
    }
    add(words, 0, words.count(), entry["count"].get<int64_t>());
  });
}

NgramDictionary::Finder::Finder(const NgramDictionary& dictionary, const Words& words)
    : dictionary_(dictionary), words_(words), prefixes_(1, 0) {
  for (const std::string& word : words.texts) {
    prefixes_.push_back(prefixes_.back() * kBase + hash_of(word));
  }
}

bool NgramDictionary::Finder::has(int64_t first, int64_t size) const {
  const uint64_t hash = prefixes_[static_cast<size_t>(first + size)] -
                        prefixes_[static_cast<size_t>(first)] * power_of_base(size);
  if (!dictionary_.hashes_.contains(hash)) return false;
  return dictionary_.contains(words_.joined(first, size));
}

}  // namespace megatron::corpus
