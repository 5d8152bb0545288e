#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace megatron::corpus {

// The words of a text: runs of letters, numbers and underscores, in lower case.
// Compat: so does the regular expression \w+ of Python's re module.
struct Words {
  std::vector<std::string> texts;
  std::vector<int64_t> begins;   // code points before each word in the text
  std::vector<int64_t> lengths;  // of each word in lower case, in code points

  int64_t count() const { return static_cast<int64_t>(texts.size()); }
  // The words [first, first + size) with blanks between them, and the code points of that.
  std::string joined(int64_t first, int64_t size) const;
  int64_t joined_length(int64_t first, int64_t size) const;
};
Words words_of(std::u32string_view text);

// Texts that a corpus must not contain: sequences of words, and how often the corpus has each. A
// sequence takes its text and about 120 bytes more.
class NgramDictionary {
 public:
  // Adds the sequences of a text: all of max_size words; the whole text if it has fewer words; none
  // if it has less than min_size.
  void add_text(std::string_view text, int64_t min_size, int64_t max_size);

  int64_t size() const { return static_cast<int64_t>(counts_.size()); }
  // The numbers of words of its sequences.
  const std::set<int64_t>& sizes() const { return sizes_; }
  bool contains(const std::string& sequence) const { return counts_.contains(sequence); }

  // REQUIRES: contains(sequence).
  void count(const std::string& sequence) { ++counts_.at(sequence); }
  // Removes the sequences with at least `threshold` counts; returns how many they were.
  int64_t drop_frequent(int64_t threshold);

  // A line {"ngram": "...", "count": 3} for each sequence, sorted. load() adds to the dictionary
  // and throws FormatError for other lines. Both throw IoError.
  void save(const std::filesystem::path& path) const;
  void load(const std::filesystem::path& path);

  // Finds sequences in one text without joining its words at each place.
  class Finder {
   public:
    Finder(const NgramDictionary& dictionary, const Words& words);
    bool has(int64_t first, int64_t size) const;

   private:
    const NgramDictionary& dictionary_;
    const Words& words_;
    std::vector<uint64_t> prefixes_;  // hashes of the words before each place
  };

 private:
  void add(const Words& words, int64_t first, int64_t size, int64_t count);

  std::unordered_map<std::string, int64_t> counts_;
  std::unordered_set<uint64_t> hashes_;  // of all sequences, also of dropped ones
  std::set<int64_t> sizes_;
};

}  // namespace megatron::corpus
