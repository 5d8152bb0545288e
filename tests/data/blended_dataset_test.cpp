#include "megatron/data/blended_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::ElementsAre;

// Sample k is the one token 100 * number + k, and one more.
class NumberedDataset final : public SampleDataset {
 public:
  NumberedDataset(int64_t number, int64_t size) : number_(number), size_(size) {}
  int64_t num_samples() const override { return size_; }
  int64_t sample_size() const override { return 2; }
  void read(int64_t sample, std::span<int64_t> out) const override {
    out[0] = 100 * number_ + sample;
    out[1] = 0;
  }

 private:
  int64_t number_;
  int64_t size_;
};

BlendedDataset blend(std::vector<double> weights, int64_t size, int64_t member_size,
                     const BlendedDataset::Options& options = {}) {
  std::vector<std::shared_ptr<const SampleDataset>> datasets;
  std::vector<nlohmann::ordered_json> descriptions;
  for (size_t d = 0; d < weights.size(); ++d) {
    datasets.push_back(
        std::make_shared<const NumberedDataset>(static_cast<int64_t>(d), member_size));
    descriptions.push_back({{"class", "Numbered"}, {"number", d}});
  }
  return BlendedDataset(datasets, descriptions, weights, size, options);
}

// Expected orders come from Megatron-LM core_r0.5.0.
TEST(BlendIndexTest, DealsByWeight) {
  const BlendIndex quarters = build_blend_index(std::vector<double>{0.5, 0.25, 0.25}, 12);
  EXPECT_THAT(quarters.dataset_index.values(), ElementsAre(0, 1, 2, 0, 0, 1, 2, 0, 0, 1, 2, 0));
  EXPECT_THAT(quarters.dataset_sample_index.values(),
              ElementsAre(0, 0, 0, 1, 2, 1, 1, 3, 4, 2, 2, 5));
  const BlendIndex uneven = build_blend_index(std::vector<double>{0.3, 0.7}, 10);
  EXPECT_THAT(uneven.dataset_index.values(), ElementsAre(1, 0, 1, 1, 0, 1, 1, 0, 1, 1));
  EXPECT_THAT(uneven.dataset_sample_index.values(), ElementsAre(0, 0, 1, 2, 1, 3, 4, 2, 5, 6));
  const BlendIndex thirds = build_blend_index(std::vector<double>(3, 1.0 / 3), 7);
  EXPECT_THAT(thirds.dataset_index.values(), ElementsAre(0, 1, 2, 0, 1, 2, 0));
}

TEST(BlendedDatasetTest, ReadsItsMembers) {
  const BlendedDataset dataset = blend({3, 7}, 10, 10);
  EXPECT_EQ(dataset.num_samples(), 10);
  std::vector<int64_t> sample(2);
  dataset.read(4, sample);
  EXPECT_EQ(sample[0], 1);
  dataset.read(9, sample);
  EXPECT_EQ(sample[0], 106);
  EXPECT_THROW(dataset.read(10, sample), Error);
}

TEST(BlendedDatasetTest, RejectsWhatCannotBeDealt) {
  EXPECT_THROW(blend({1, 0}, 10, 10), ConfigError);
  EXPECT_THROW(blend({3, 7}, 10, 6), ConfigError);
  EXPECT_THROW(blend(std::vector<double>(32767, 1.0), 1, 1), ConfigError);
}

TEST(BlendedDatasetTest, CachesOnlyWhereAsked) {
  const TemporaryDirectory directory;
  blend({3, 7}, 10, 10);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  const BlendedDataset::Options options{.cache_path = directory.path()};
  const BlendedDataset built = blend({3, 7}, 10, 10, options);
  const BlendedDataset loaded = blend({3, 7}, 10, 10, options);
  EXPECT_TRUE(std::ranges::equal(built.index().dataset_index.values(),
                                 loaded.index().dataset_index.values()));
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
    ++files;
    if (!entry.path().string().ends_with("-BlendedDataset-description.txt")) continue;
    EXPECT_EQ(
        read_text(entry.path()),
        "{\n    \"class\": \"BlendedDataset\",\n    \"datasets\": [\n        {\n            "
        "\"class\": \"Numbered\",\n            \"number\": 0\n        },\n        {\n         "
        "   \"class\": \"Numbered\",\n            \"number\": 1\n        }\n    ],\n    "
        "\"weights\": [\n        0.3,\n        0.7\n    ],\n    \"size\": 10\n}");
  }
  EXPECT_EQ(files, 3);
}

}  // namespace
}  // namespace megatron
