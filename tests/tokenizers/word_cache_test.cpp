#include "megatron/tokenizers/word_cache.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/support/rounds.h"

namespace megatron {
namespace {

// Ids that tell the word and its bytes, from none to ten.
std::vector<int32_t> ids_of(std::string_view word) {
  const size_t hash = std::hash<std::string_view>()(word);
  std::vector<int32_t> ids(word.size() % 11);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((hash >> i) % 100000);
  return ids;
}

std::string random_word(std::mt19937& random) {
  std::string word(1 + random() % (random() % 8 == 0 ? 300 : 20), 'a');
  for (char& c : word) c = static_cast<char>(random() % 5 == 0 ? random() % 256 : 'a');
  return word;
}

std::vector<int32_t> encoded(WordCache& cache, const std::vector<std::string>& words) {
  WordBatch batch(cache);
  std::vector<int32_t> ids;
  const auto encode = [](std::string_view word, std::vector<int32_t>& own) { own = ids_of(word); };
  for (const std::string& word : words) {
    batch.add(word, static_cast<int64_t>(word.size()));
    if (batch.is_full()) batch.drain(ids, encode);
  }
  batch.drain(ids, encode);
  return ids;
}

TEST(WordCache, GivesTheIdsOfTheVeryWord) {
  for (const int log2_slots : {6, 10, 19}) {
    std::mt19937 random(3);
    WordCache cache(log2_slots);
    std::vector<std::string> known;
    for (int64_t round = 0; round < rounds(3000); ++round) {
      std::vector<std::string> words;
      std::vector<int32_t> want;
      for (int i = 0; i < 100; ++i) {
        words.push_back(known.empty() || random() % 2 == 0 ? random_word(random)
                                                           : known[random() % known.size()]);
        known.push_back(words.back());
        const std::vector<int32_t> own = ids_of(words.back());
        want.insert(want.end(), own.begin(), own.end());
      }
      ASSERT_EQ(encoded(cache, words), want) << log2_slots << " round " << round;
    }
  }
}

// The length is part of the key, so zero bytes at the end tell words apart.
TEST(WordCache, TellsWordsWithZeroBytesApart) {
  WordCache cache;
  std::vector<std::string> words;
  for (size_t length = 1; length < 40; ++length) words.emplace_back(length, '\0');
  std::vector<int32_t> want;
  for (const std::string& word : words) {
    for (const int32_t id : ids_of(word)) want.push_back(id);
  }
  EXPECT_EQ(encoded(cache, words), want);
  EXPECT_EQ(encoded(cache, words), want);
}

TEST(WordCache, EncodesAWordOnce) {
  WordCache cache;
  WordBatch batch(cache);
  int calls = 0;
  std::vector<int32_t> ids;
  const auto encode = [&](std::string_view, std::vector<int32_t>& own) {
    own.push_back(7);
    ++calls;
  };
  for (const std::string_view word : {"a", "b", "a", "a word of many letters", "b"}) {
    batch.add(word, static_cast<int64_t>(word.size()));
  }
  batch.drain(ids, encode);
  batch.add("a word of many letters", 22);
  batch.drain(ids, encode);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(ids, std::vector<int32_t>(6, 7));
}

// Two long words with one key: their bytes decide.
TEST(WordCache, ComparesTheBytesOfLongWords) {
  WordCache cache;
  const std::string first(20, 'a');
  const std::string second(20, 'b');
  const WordKey key = WordKey::of(first, 20);
  const std::vector<int32_t> ids = {1, 2, 3, 4};
  cache.insert(first, key, ids);
  std::span<const int32_t> found;
  EXPECT_FALSE(cache.find(second, key, found));
  ASSERT_TRUE(cache.find(first, key, found));
  EXPECT_EQ(std::vector<int32_t>(found.begin(), found.end()), ids);
}

}  // namespace
}  // namespace megatron
