#include "megatron/tokenizers/string_table.h"

#include <gmock/gmock.h>

#include <map>
#include <random>

namespace megatron {
namespace {

TEST(StringTable, KeepsTheOrderOfTheFirstInsertions) {
  StringTable table;
  EXPECT_EQ(table.find("a"), std::nullopt);
  EXPECT_EQ(table.insert("a"), 0u);
  EXPECT_EQ(table.insert(""), 1u);
  EXPECT_EQ(table.insert("a"), 0u);
  EXPECT_EQ(table.insert(std::string("a\0", 2)), 2u);
  EXPECT_EQ(table.find(""), 1u);
  EXPECT_EQ(table.find("b"), std::nullopt);
  EXPECT_EQ(table.size(), 3u);
  EXPECT_EQ(table.key(0), "a");
  EXPECT_EQ(table.key(1), "");
}

TEST(StringTable, EqualsAMapOfRandomStrings) {
  std::mt19937 random(3);
  std::map<std::string, size_t> want;
  StringTable table;
  table.reserve(100);
  for (int i = 0; i < 20000; ++i) {
    std::string key;
    for (size_t length = random() % 8; length > 0; --length) key += "abcd"[random() % 4];
    if (random() % 3 == 0) {
      const auto known = want.find(key);
      ASSERT_EQ(table.find(key), known == want.end() ? std::nullopt : std::optional(known->second));
    } else {
      ASSERT_EQ(table.insert(key), want.emplace(key, want.size()).first->second);
    }
  }
  ASSERT_EQ(table.size(), want.size());
  for (const auto& [key, place] : want) EXPECT_EQ(table.key(place), key);
  const StringTable copy = table;
  for (const auto& [key, place] : want) EXPECT_EQ(copy.find(key), place);
}

}  // namespace
}  // namespace megatron
