#include "annex/retro/preprocess/neighbor_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/data/numpy_random.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron::retro {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kDimension = 16;

// Points around 20 centres.
std::vector<float> points(int64_t count, uint32_t seed) {
  NumpyRandom centres(7);
  std::vector<float> centre(20 * kDimension);
  for (float& value : centre) value = static_cast<float>(centres.random());
  NumpyRandom random(seed);
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t c = random.randint(0, 20);
    for (int64_t k = 0; k < kDimension; ++k) {
      values.push_back(centre[static_cast<size_t>(c * kDimension + k)] +
                       0.2F * static_cast<float>(random.random()));
    }
  }
  return values;
}

// The definition: the k nearest of `all`, by squared distance.
std::vector<int64_t> nearest(const std::vector<float>& all, std::span<const float> query,
                             size_t k) {
  std::vector<std::pair<double, int64_t>> order;
  for (size_t i = 0; i * kDimension < all.size(); ++i) {
    double distance = 0;
    for (size_t d = 0; d < kDimension; ++d) {
      const double difference = static_cast<double>(all[i * kDimension + d]) - query[d];
      distance += difference * difference;
    }
    order.emplace_back(distance, static_cast<int64_t>(i));
  }
  std::ranges::sort(order);
  std::vector<int64_t> ids;
  for (size_t i = 0; i < k; ++i) ids.push_back(order[i].second);
  return ids;
}

struct Kind {
  const char* description;
  int64_t code_size;
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.description; }

class NeighborIndexTest : public testing::TestWithParam<Kind> {};

// What faiss-par-add does equals what faiss-base does.
TEST_P(NeighborIndexTest, CodesAddWhatVectorsAdd) {
  const std::vector<float> all = points(1500, 1);
  const std::vector<float> queries = points(50, 2);
  const auto trained = [&] {
    return NeighborIndex::trained(GetParam().description, kDimension, all);
  };
  NeighborIndex by_vectors = trained();
  NeighborIndex by_codes = trained();
  EXPECT_EQ(by_codes.size(), 0);
  ASSERT_TRUE(by_codes.has_codes());
  EXPECT_EQ(by_codes.code_size(), GetParam().code_size);
  // Two blocks, with a gap between their numbers.
  const std::span<const float> values(all);
  const size_t half = all.size() / 2;
  for (const auto& [part, first_id] : {std::pair(values.first(half), int64_t{0}),
                                       std::pair(values.subspan(half), int64_t{1000})}) {
    by_vectors.add(part, first_id);
    by_codes.add_codes(by_codes.codes_of(part), first_id);
  }
  EXPECT_EQ(by_codes.size(), 1500);
  by_vectors.set_effort(4, 32);
  by_codes.set_effort(4, 32);
  const std::vector<int64_t> found = by_codes.search(queries, 10);
  EXPECT_EQ(found, by_vectors.search(queries, 10));
  EXPECT_TRUE(std::ranges::all_of(
      found, [](int64_t id) { return (0 <= id && id < 750) || (1000 <= id && id < 1750); }));
}

INSTANTIATE_TEST_SUITE_P(Kinds, NeighborIndexTest,
                         testing::Values(Kind{"IVF16,Flat", 1 + 64}, Kind{"IVF16_HNSW8,PQ8x4np", 5},
                                         Kind{"PCAR8,IVF16_HNSW8,PQ4x4np", 3}),
                         [](const auto& kind) { return std::to_string(kind.param.code_size); });

TEST(FlatIndexTest, IsExact) {
  const std::vector<float> all = points(300, 1);
  NeighborIndex index = NeighborIndex::trained("Flat", kDimension, all);
  EXPECT_FALSE(index.has_codes());
  index.add(all, 0);
  index.set_effort(1000, 1000);
  const std::vector<float> query = points(1, 3);
  EXPECT_EQ(index.search(query, 5), nearest(all, query, 5));
  EXPECT_THAT(message_of([&] { index.add(points(1, 4), 500); }),
              HasSubstr("leaves gaps between the numbers of chunks"));
}

TEST(IvfIndexTest, RecallOfAtLeastNineTenths) {
  const std::vector<float> all = points(2000, 1);
  const std::vector<float> queries = points(50, 2);
  NeighborIndex index = NeighborIndex::trained("IVF32,Flat", kDimension, all);
  index.add(all, 0);
  index.set_effort(8, 32);
  const std::vector<int64_t> found = index.search(queries, 20);
  int64_t common = 0;
  for (size_t q = 0; q < 50; ++q) {
    const std::vector<int64_t> exact =
        nearest(all, std::span(queries).subspan(q * kDimension, kDimension), 20);
    for (size_t i = 0; i < 20; ++i) {
      common += std::ranges::count(exact, found[q * 20 + i]);
    }
  }
  EXPECT_GE(static_cast<double>(common) / (50 * 20), 0.9);
  index.set_effort(32, 32);  // all lists
  EXPECT_EQ(index.search(std::span(queries).first(kDimension), 20),
            nearest(all, std::span(queries).first(kDimension), 20));
}

TEST(NeighborIndexFileTest, FewVectorsAndFiles) {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "IVF4,Flat.faissindex";
  const std::vector<float> all = points(200, 1);
  NeighborIndex index = NeighborIndex::trained("IVF4,Flat", kDimension, all);
  index.add(std::span(all).first(2 * kDimension), 5);
  index.write(path);
  NeighborIndex read(path);
  EXPECT_EQ(read.size(), 2);
  EXPECT_EQ(read.dimension(), kDimension);
  read.set_effort(1 << 20, 16);  // more lists than there are
  std::vector<int64_t> found = read.search(std::span(all).first(kDimension), 3);
  EXPECT_THAT(found, ElementsAre(5, 6, -1));
}

TEST(NeighborIndexFileTest, SaysWhatIsWrong) {
  const TemporaryDirectory directory;
  EXPECT_THAT(message_of([] { NeighborIndex::trained("IVF64,Flat", kDimension, points(20, 1)); }),
              testing::AllOf(HasSubstr("--retro-index-str IVF64,Flat: FAISS cannot train it with "
                                       "20 vectors of 16 numbers"),
                             HasSubstr("more chunks with --retro-index-ntrain")));
  EXPECT_THAT(message_of([] { NeighborIndex::trained("Nonsense", kDimension, points(20, 1)); }),
              HasSubstr("--retro-index-str Nonsense"));
  const std::string damaged = directory.write("a.faissindex", "no index");
  EXPECT_THAT(message_of<FormatError>([&] { NeighborIndex index(damaged); }),
              HasSubstr("FAISS cannot read it"));
  EXPECT_THROW(
      NeighborIndex::trained("Flat", kDimension, points(20, 1)).write(directory.path() / "x" / "y"),
      IoError);
}

class DamagedIndexTest : public testing::Test {
 protected:
  DamagedIndexTest() {
    NeighborIndex index = NeighborIndex::trained("IVF4,Flat", kDimension, points(200, 1));
    index.add(points(200, 1), 0);
    index.write(path_);
    text_ = read_text(path_);
  }

  TemporaryDirectory directory_;
  std::filesystem::path path_ = directory_.path() / "a.faissindex";
  std::filesystem::path checksum_ = directory_.path() / "a.faissindex.crc32c";
  std::string text_;
};

TEST_F(DamagedIndexTest, TheChecksumFindsEachDamage) {
  EXPECT_EQ(NeighborIndex(path_).size(), 200);
  text_[text_.size() / 2] ^= 1;
  write_text_atomically(path_, text_);
  EXPECT_THAT(message_of<FormatError>([&] { NeighborIndex index(path_); }),
              HasSubstr("is damaged, as it has not the checksum in " + checksum_.string()));
}

// An index of another program has no checksum: FAISS would end this process.
TEST_F(DamagedIndexTest, ACrashOfFaissIsASentence) {
  std::filesystem::remove(checksum_);
  EXPECT_EQ(NeighborIndex(path_).size(), 200);
  // The last fields of the inner index's head: a metric that no list can be searched with.
  const std::string head("\1\1\0\0\0", 5);  // is trained, METRIC_L2
  int refused = 0;
  for (size_t at = text_.find(head); at != std::string::npos; at = text_.find(head, at + 1)) {
    std::string damaged = text_;
    damaged[at + 1] = 23;
    write_text_atomically(path_, damaged);
    try {
      const NeighborIndex index(path_);
    } catch (const FormatError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
  write_text_atomically(path_, text_.substr(0, text_.size() / 2));
  EXPECT_THAT(message_of<FormatError>([&] { NeighborIndex index(path_); }),
              HasSubstr("delete it, so that it is made again"));
}

TEST_F(DamagedIndexTest, AGraphKeepsToItsVectors) {
  NeighborIndex::trained("IVF16_HNSW8,Flat", kDimension, points(1500, 1)).write(path_);
  text_ = read_text(path_);
  std::filesystem::remove(checksum_);
  EXPECT_EQ(NeighborIndex(path_).size(), 0);
  const size_t no_neighbors = text_.find(std::string(8, '\xff'));
  ASSERT_NE(no_neighbors, std::string::npos);
  text_.replace(no_neighbors, 4, std::string("\xe8\x03\x00\x00", 4));  // vector 1000
  write_text_atomically(path_, text_);
  EXPECT_THAT(message_of<FormatError>([&] { NeighborIndex index(path_); }),
              HasSubstr("has a graph with steps to vectors that do not exist"));
}

}  // namespace
}  // namespace megatron::retro
