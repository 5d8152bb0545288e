#include "megatron/data/split_datasets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "megatron/core/error.h"
#include "megatron/tokenizers/null_tokenizer.h"
#include "tests/data/write_dataset.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::ElementsAre;

class SplitDatasetsTest : public testing::Test {
 protected:
  SplitDatasetsTest() {
    write_counting_dataset(a_, {5, 3, 8, 2, 7, 4, 6, 1, 9, 5});
    write_counting_dataset(b_, std::vector<int32_t>(40, 10), 1000);
  }

  SplitDatasets build(const DataConfig& config, const SampleCounts& samples) const {
    return build_gpt_datasets(config, samples, 4, 1234, tokenizer_);
  }

  TemporaryDirectory directory_;
  std::string a_ = (directory_.path() / "a").string();
  std::string b_ = (directory_.path() / "b").string();
  NullTokenizer tokenizer_{2000};
};

TEST_F(SplitDatasetsTest, SplitsOnePrefix) {
  DataConfig config;
  config.data_path = {b_};
  config.split = "8,1,1";
  const SplitDatasets datasets = build(config, {.train = 10, .valid = 5, .test = 0});
  EXPECT_EQ(datasets.train->num_samples(), 79);  // (320 - 1) / 4
  EXPECT_EQ(datasets.valid->num_samples(), 9);
  EXPECT_EQ(datasets.test, nullptr);
  std::vector<int64_t> sample(5);
  datasets.valid->read(0, sample);
  for (const int64_t token : sample) EXPECT_TRUE(token >= 1320 && token < 1360) << token;
}

// With few documents --split may leave none for a split; training needs some.
TEST_F(SplitDatasetsTest, ASplitWithoutDocumentsIsNotEvaluated) {
  DataConfig config;
  config.data_path = {b_};
  config.split = "99,0.5,0.5";
  const SplitDatasets datasets = build(config, {.train = 10, .valid = 5, .test = 5});
  EXPECT_EQ(datasets.train->num_samples(), 99);
  EXPECT_EQ(datasets.valid, nullptr);
  EXPECT_EQ(datasets.test, nullptr);
  config.split = "0.5,99,0.5";
  EXPECT_THROW(build(config, {.train = 10, .valid = 5, .test = 5}), ConfigError);
}

TEST_F(SplitDatasetsTest, BlendsByWeight) {
  DataConfig config;
  config.data_path = {"3", a_, "7", b_};
  config.split = "1";
  const SplitDatasets datasets = build(config, {.train = 100, .valid = 7, .test = 7});
  EXPECT_EQ(datasets.train->num_samples(), 102);  // ceil(30.15) + ceil(70.35)
  EXPECT_EQ(datasets.valid, nullptr);
  std::vector<int64_t> sample(5);
  datasets.train->read(0, sample);
  EXPECT_GE(sample[0], 1000);
  datasets.train->read(1, sample);
  EXPECT_LT(sample[0], 1000);
}

TEST_F(SplitDatasetsTest, DealsUnweightedPrefixesBySize) {
  DataConfig config;
  config.data_path = {a_, b_, b_};
  config.split = "1";
  EXPECT_EQ(build(config, {.train = 50}).train->num_samples(), 50);
  EXPECT_EQ(build(config, {.train = 1000}).train->num_samples(), 12 + 99 + 99);
}

TEST_F(SplitDatasetsTest, TakesPathsPerSplit) {
  DataConfig config;
  config.train_data_path = {b_};
  config.valid_data_path = {"1", a_};
  const SplitDatasets datasets = build(config, {.train = 10, .valid = 6, .test = 6});
  EXPECT_EQ(datasets.train->num_samples(), 99);
  EXPECT_EQ(datasets.valid->num_samples(), 7);  // one weight still makes a blend: ceil(6.03)
  EXPECT_EQ(datasets.test, nullptr);
}

TEST_F(SplitDatasetsTest, KeepsGroupsApart) {
  DataConfig config;
  config.train_data_path = {"TRAIN: 1 0:0.5 " + b_};
  config.valid_data_path = {"first: 1 0.5:0.75 " + b_, "second: 1 0.75:1 " + b_ + ", 1 0:1 " + a_};
  config.test_data_path = {a_};
  const SplitDatasets datasets = build(config, {.train = 10, .valid = 6, .test = 6});
  EXPECT_NE(datasets.train, nullptr);
  EXPECT_EQ(datasets.valid, nullptr);
  const std::vector<DatasetGroup> valid = datasets.of(Split::kValid);
  ASSERT_EQ(valid.size(), 2u);
  EXPECT_EQ(valid[0].name, "first");
  EXPECT_EQ(valid[1].name, "second");
  std::vector<int64_t> sample(5);
  for (int64_t i = 0; i < valid[0].dataset->num_samples(); ++i) {
    valid[0].dataset->read(i, sample);
    for (const int64_t token : sample) EXPECT_TRUE(token >= 1200 && token < 1300) << token;
  }
  ASSERT_EQ(datasets.of(Split::kTest).size(), 1u);
  EXPECT_EQ(datasets.of(Split::kTest)[0].name, "");
  EXPECT_EQ(datasets.of(Split::kTrain).size(), 1u);
}

TEST_F(SplitDatasetsTest, MakesMockData) {
  DataConfig config;
  config.mock_data = true;
  const SplitDatasets datasets = build_gpt_datasets(config, {.train = 1}, 1024, 1234, tokenizer_);
  EXPECT_EQ(datasets.valid, nullptr);
  std::vector<int64_t> sample(1025);
  datasets.train->read(0, sample);
  EXPECT_EQ(sample[0], 871);
  EXPECT_EQ(sample[1], 1);
  EXPECT_EQ(sample[871], 1);
  EXPECT_EQ(sample[872], 0);
  EXPECT_EQ(sample[873], 2);
  EXPECT_EQ(sample[1024], 2);
  EXPECT_THROW(datasets.train->read(32767, sample), Error);
}

TEST_F(SplitDatasetsTest, NeedsData) {
  EXPECT_THROW(build(DataConfig{}, {.train = 1}), ConfigError);
  DataConfig config;
  config.data_path = {(directory_.path() / "none").string()};
  EXPECT_THROW(build(config, {.train = 1}), IoError);
}

}  // namespace
}  // namespace megatron
