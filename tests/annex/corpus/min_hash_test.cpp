#include "annex/corpus/min_hash.h"

#include <gmock/gmock.h>

#include "annex/corpus/shingles.h"
#include "megatron/data/numpy_random.h"

namespace megatron::corpus {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

// Published test values of the hash.
TEST(Murmur3, HasTheKnownValues) {
  EXPECT_EQ(murmur3_32("", 0), 0u);
  EXPECT_EQ(murmur3_32("", 1), 0x514E28B7u);
  EXPECT_EQ(murmur3_32("", 0xffffffffu), 0x81F16F39u);
  EXPECT_EQ(murmur3_32("\xff\xff\xff\xff", 0), 0x76293B50u);
  EXPECT_EQ(murmur3_32("\x21\x43\x65\x87", 0), 0xF55B516Bu);
  EXPECT_EQ(murmur3_32("\x21\x43\x65", 0), 0x7E4A8634u);
  EXPECT_EQ(murmur3_32("\x21\x43", 0), 0xA0F7B07Au);
  EXPECT_EQ(murmur3_32("\x21", 0), 0x72661CF4u);
  EXPECT_EQ(murmur3_32("aaaa", 0x9747b28cu), 0x5A97808Au);
  EXPECT_EQ(murmur3_32("Hello, world!", 0x9747b28cu), 0x24884CBAu);
}

TEST(MinHasher, SeedsAreBelowAMillionAndReproducible) {
  const std::vector<uint32_t> seeds = min_hash_seeds(1000, 1234);
  EXPECT_EQ(seeds, min_hash_seeds(1000, 1234));
  EXPECT_NE(seeds, min_hash_seeds(1000, 1235));
  EXPECT_THAT(seeds, Each(testing::Lt(1000000u)));
}

TEST(MinHasher, AValueIsTheLeastHashOfTheNgrams) {
  const std::string text = "to be or not to be: \xC3\xA9\xE4\xBD\xA0";
  const std::vector<uint32_t> seeds = {0, 7, 999999};
  std::vector<uint32_t> want(3, UINT32_MAX);
  for (size_t i = 0; i + 5 <= text.size(); ++i) {
    for (size_t k = 0; k < 3; ++k) {
      want[k] = std::min(want[k], murmur3_32(text.substr(i, 5), seeds[k]));
    }
  }
  MinHasher hasher(seeds);
  EXPECT_EQ(hasher.fingerprint(text), want);
  EXPECT_THAT(hasher.fingerprint("four"), Each(UINT32_MAX));
  EXPECT_EQ(hasher.fingerprint(text), want);
}

TEST(MinHasher, EqualValuesEstimateTheSimilarity) {
  NumpyRandom random(5);
  std::string a;
  std::string b;
  for (int i = 0; i < 4000; ++i) {
    a += static_cast<char>('a' + random.randint(0, 26));
    b += i % 40 == 0 ? static_cast<char>('a' + random.randint(0, 26)) : a.back();
  }
  const double want = similarity(shingles_of(a), shingles_of(b), Jaccard::kUnion);
  MinHasher hasher(min_hash_seeds(1000, 1));
  const std::vector<uint32_t> x = hasher.fingerprint(a);
  const std::vector<uint32_t> y = hasher.fingerprint(b);
  int equal = 0;
  for (size_t i = 0; i < x.size(); ++i) equal += x[i] == y[i] ? 1 : 0;
  EXPECT_NEAR(equal / 1000.0, want, 0.05);  // three standard deviations of 1000 trials
}

TEST(Shingles, AreASetOfCharactersWithoutTheLast) {
  EXPECT_THAT(shingles_of("abcd"), IsEmpty());
  EXPECT_THAT(shingles_of("abcde"), IsEmpty());
  EXPECT_THAT(shingles_of("abcdef"), SizeIs(1));
  EXPECT_THAT(shingles_of("aaaaaaaaaa"), SizeIs(1));
  EXPECT_THAT(shingles_of("\xF0\x9F\x98\x80\xC3\xA9\xE4\xBD\xA0xyz"), SizeIs(1));  // 6 characters
}

TEST(Shingles, SimilarityHasThreeDenominators) {
  const auto a = shingles_of("abcdefghi");   // abcde bcdef cdefg defgh
  const auto b = shingles_of("bcdefghijk");  // bcdef cdefg defgh efghi fghij
  EXPECT_DOUBLE_EQ(similarity(a, b, Jaccard::kUnion), 3.0 / 6);
  EXPECT_DOUBLE_EQ(similarity(a, b, Jaccard::kMin), 3.0 / 4);
  EXPECT_DOUBLE_EQ(similarity(a, b, Jaccard::kMax), 3.0 / 5);
  EXPECT_EQ(similarity(a, {}, Jaccard::kMin), 0);
  EXPECT_EQ(similarity({}, {}, Jaccard::kUnion), 0);
  EXPECT_EQ(similarity(a, a, Jaccard::kUnion), 1);
}

}  // namespace
}  // namespace megatron::corpus
