#include "megatron/interchange/megatron/dist_writer.h"

#include <gmock/gmock.h>

#include "megatron/checkpoint/directory.h"
#include "megatron/comm/threads.h"
#include "megatron/core/error.h"
#include "megatron/interchange/megatron/reader.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

CheckpointContents dist_writer_golden(const std::string& name) {
  return open_megatron_checkpoint(source_path("tests/golden/torch_dist/" + name));
}

void expect_same(const CheckpointContents& got, const CheckpointContents& want) {
  EXPECT_EQ(got.optimizer_problem, "");
  EXPECT_EQ(got.iteration, want.iteration);
  EXPECT_EQ(got.consumed_train_samples, want.consumed_train_samples);
  EXPECT_EQ(got.consumed_valid_samples, want.consumed_valid_samples);
  EXPECT_EQ(got.scalars, want.scalars);
  ASSERT_EQ(got.sections.size(), want.sections.size());
  for (const auto& [section, tensors] : want.sections) {
    ASSERT_EQ(got.sections.at(section).size(), tensors.size()) << section;
    for (const auto& [name, tensor] : tensors) {
      expect_identical(read_whole(got.sections.at(section).at(name)), read_whole(tensor), name);
    }
  }
}

// gpt: fp32, learned positions, biases; llama: bf16, untied, gated; buckets: of several ranks.
class DistWriterTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, DistWriterTest,
                         testing::Values("gpt/iter_0000010", "llama/iter_0000002",
                                         "buckets/iter_0000010"));

TEST_P(DistWriterTest, IsReadAgain) {
  const TemporaryDirectory directory;
  CheckpointContents want = dist_writer_golden(GetParam());
  want.scalars["tokenizer"] = {{"type", std::string("GPT2BPETokenizer")},
                               {"vocab_size", int64_t{502}}};
  want.scalars["optimizer"]["group_steps"] = std::vector<int64_t>{2, 3};
  save_dist_checkpoint(directory.path(), want, {.tensor_model_parallel_size = 2}, {});
  EXPECT_EQ(latest_iteration(directory.path()), want.iteration);
  const fs::path saved = directory.path() / iteration_directory_name(want.iteration);
  EXPECT_TRUE(fs::exists(saved / "rng_state_0_1.distcp"));
  expect_same(open_megatron_checkpoint(saved), want);
}

// Each rank writes its part: here every other tensor, and halves of embeddings.
TEST_P(DistWriterTest, RanksWriteTheirParts) {
  const TemporaryDirectory directory;
  const CheckpointContents want = dist_writer_golden(GetParam());
  constexpr int kRanks = 3;
  comm::run_ranks(kRanks, [&](const comm::Group& world) {
    CheckpointContents own = want;
    int i = 0;
    for (auto& [section, tensors] : own.sections) {
      tensors.clear();
      for (const auto& [name, whole] : want.sections.at(section)) {
        const bool is_divided = name.starts_with("embedding.");
        if (!is_divided && i++ % kRanks == world.rank()) tensors[name] = whole;
        if (!is_divided || world.rank() == 2) continue;
        const int64_t half = whole.shape[0] / 2;
        const Region region{{world.rank() * half, 0}, whole.shape.with(0, half)};
        const auto read = [&from = whole, region] { return elements_of(from, region); };
        tensors[name] = {whole.shape, whole.dtype, {{region, read}}};
      }
    }
    save_dist_checkpoint(directory.path(), own, {}, world);
  });
  const fs::path saved = directory.path() / iteration_directory_name(want.iteration);
  EXPECT_TRUE(fs::exists(saved / "__2_0.distcp"));
  expect_same(open_megatron_checkpoint(saved), want);
}

TEST(DistWriterErrors, NamesWhatHasNoPlace) {
  const TemporaryDirectory directory;
  CheckpointContents contents = dist_writer_golden("gpt/iter_0000010");
  contents.sections["momentum_buffer"] = contents.sections.at("exp_avg");
  EXPECT_THAT(dist_problems(contents),
              testing::ElementsAre(HasSubstr("torch_dist has no place for momentum_buffer; use")));
  contents.sections.erase("momentum_buffer");
  StoredSection& weights = contents.sections.at(kWeightsSection);
  weights["binary_head.weight"] = weights.at("decoder.final_layernorm.weight");
  EXPECT_THAT(dist_problems(contents),
              testing::ElementsAre(HasSubstr("a GPT alone, which has no binary_head.weight")));
  weights.erase("binary_head.weight");
  weights["decoder.layers.0.bogus"] = weights.at("decoder.final_layernorm.weight");
  EXPECT_THAT(dist_problems(contents),
              testing::ElementsAre(HasSubstr("no place for decoder.layers.{i}.bogus: the model")));
  EXPECT_THROW(save_dist_checkpoint(directory.path(), contents, {}, {}), ConfigError);
  EXPECT_TRUE(fs::is_empty(directory.path()));
}

TEST(DistWriterErrors, LeavesNothingOfACheckpointThatFails) {
  const TemporaryDirectory directory;
  CheckpointContents contents = dist_writer_golden("gpt/iter_0000010");
  StoredTensor& tensor = contents.sections.at("exp_avg").begin()->second;
  tensor.pieces[0].read = []() -> FileElements { throw IoError("the disk is full"); };
  EXPECT_THROW(save_dist_checkpoint(directory.path(), contents, {}, {}), IoError);
  EXPECT_TRUE(fs::is_empty(directory.path()));
}

}  // namespace
}  // namespace megatron
