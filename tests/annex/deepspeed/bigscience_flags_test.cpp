#include "annex/deepspeed/bigscience_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "annex/deepspeed/partition.h"
#include "tests/support/temporary_directory.h"

namespace megatron::frontends {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Words = std::vector<std::string>;

struct Applied {
  TrainingArgs args;
  std::vector<std::string> problems;
};

Applied applied(const Words& words) {
  Applied result;
  result.args = parsed_flags(words, ModelKind::kGpt, result.problems);
  apply_bigscience_flags(result.args, result.problems);
  return result;
}

TEST(BigScienceFlags, MultiqueryIsOneGroup) {
  const Applied got = applied({"--attention-head-type", "multiquery"});
  EXPECT_THAT(got.problems, IsEmpty());
  EXPECT_TRUE(got.args.transformer.group_query_attention);
  EXPECT_EQ(got.args.transformer.num_query_groups, 1);
  EXPECT_FALSE(
      applied({"--attention-head-type", "multihead"}).args.transformer.group_query_attention);
  EXPECT_THAT(applied({"--attention-head-type", "multihead", "--group-query-attention"}).problems,
              ElementsAre(HasSubstr("exclude each other")));
}

TEST(BigScienceFlags, SavedActivationsAreDivided) {
  const Words asked = {"--partition-activations", "--tensor-model-parallel-size", "2"};
  const Applied alone = applied(asked);
  EXPECT_FALSE(alone.args.transformer.distribute_saved_activations);
  EXPECT_THAT(alone.args.warnings, ElementsAre(HasSubstr("--partition-activations has no effect")));
  Words recomputed = asked;
  recomputed.emplace_back("--checkpoint-activations");
  const Applied both = applied(recomputed);
  EXPECT_TRUE(both.args.transformer.distribute_saved_activations);
  EXPECT_THAT(both.args.warnings, IsEmpty());
}

TEST(BigScienceFlags, EmbeddingsCountInADivisionThatNamesThem) {
  const auto counts = [](const char* method) {
    const Applied got = applied({"--pp-partition-method", method});
    EXPECT_THAT(got.problems, IsEmpty()) << method;
    EXPECT_EQ(got.args.parallel.account_for_embedding_in_pipeline_split,
              got.args.parallel.account_for_loss_in_pipeline_split);
    return got.args.parallel.account_for_loss_in_pipeline_split;
  };
  EXPECT_FALSE(counts("type:transformer"));
  EXPECT_TRUE(counts("type:transformer|embedding"));
  EXPECT_TRUE(counts("type:Embedding|Transformer"));
  for (const char* method : {"profile", "type:embedding", "type:("}) {
    EXPECT_THAT(applied({"--pp-partition-method", method}).problems,
                ElementsAre(HasSubstr("is not available; use type:transformer")))
        << method;
  }
}

// Of 24 layers the list has 31 entries: 7, 7, 7 and 10, less 3 before and 4 behind the layers.
TEST(BigScienceFlags, AUniformDivisionCountsTheWholeList) {
  const auto with = [](const char* layers, const char* stages) {
    return applied({"--pp-partition-method", "uniform", "--num-layers", layers,
                    "--pipeline-model-parallel-size", stages});
  };
  const Applied got = with("24", "4");
  EXPECT_THAT(got.problems, IsEmpty());
  EXPECT_EQ(got.args.parallel.decoder_first_pipeline_num_layers, 4);
  EXPECT_EQ(got.args.parallel.decoder_last_pipeline_num_layers, 6);
  EXPECT_EQ(with("24", "1").args.parallel.decoder_first_pipeline_num_layers, 0);
  EXPECT_THAT(with("4", "4").problems,
              ElementsAre(HasSubstr("uniform leaves a stage without a layer of the transformer (4 "
                                    "layers for 4 stages)")));
}

// The numbers are those of DeepSpeed 0.8.3's partition_balanced(), for Megatron-DeepSpeed's list.
TEST(BigScienceFlags, ADivisionByParameters) {
  struct Case {
    const char* layers;
    const char* hidden;
    const char* rows;
    const char* positions;
    const char* stages;
    const char* tensor_ranks;
    int64_t first;
    int64_t last;
  };
  const auto with = [](const Case& c, const Words& more = {}) {
    Words words = {"--pp-partition-method",
                   "parameters",
                   "--num-layers",
                   c.layers,
                   "--hidden-size",
                   c.hidden,
                   "--num-attention-heads",
                   "8",
                   "--padded-vocab-size",
                   c.rows,
                   "--max-position-embeddings",
                   c.positions,
                   "--seq-length",
                   c.positions,
                   "--pipeline-model-parallel-size",
                   c.stages,
                   "--tensor-model-parallel-size",
                   c.tensor_ranks};
    words.insert(words.end(), more.begin(), more.end());
    return applied(words);
  };
  for (const Case& c : {Case{"24", "1024", "50304", "1024", "4", "1", 4, 4},
                        Case{"24", "1024", "50304", "1024", "4", "8", 4, 4},
                        Case{"12", "64", "1024", "64", "2", "1", 6, 6},
                        Case{"40", "1024", "50304", "1024", "8", "1", 2, 2},
                        Case{"30", "2048", "50304", "2048", "4", "2", 6, 6}}) {
    const Applied got = with(c);
    EXPECT_THAT(got.problems, IsEmpty());
    EXPECT_EQ(got.args.parallel.decoder_first_pipeline_num_layers, c.first) << c.layers;
    EXPECT_EQ(got.args.parallel.decoder_last_pipeline_num_layers, c.last) << c.layers;
  }
  EXPECT_THAT(with({"8", "512", "50304", "512", "8", "1", 0, 0}).problems,
              ElementsAre(HasSubstr("parameters leaves a stage without a layer of the transformer "
                                    "(8 layers for 8 stages); use type:transformer")));
  EXPECT_EQ(with({"24", "1024", "50304", "1024", "1", "1", 0, 0})
                .args.parallel.decoder_first_pipeline_num_layers,
            0);
  EXPECT_THAT(
      applied({"--pp-partition-method", "parameters", "--pipeline-model-parallel-size", "2"})
          .problems,
      ElementsAre(HasSubstr("must be given; use type:transformer")));
}

TEST(BigScienceFlags, BalancedPartsAreFilledFromTheLeft) {
  EXPECT_THAT(balanced_parts(std::vector<int64_t>{0, 5, 0, 2, 2, 2, 2, 0, 1, 5, 0}, 3),
              ElementsAre(4, 5, 2));
  EXPECT_THAT(balanced_parts(std::vector<int64_t>{0, 9, 1, 1, 0}, 3), ElementsAre(2, 3, 0));
}

TEST(BigScienceFlags, GroupsMayBeInAFile) {
  const TemporaryDirectory directory;
  const std::string file =
      directory.write("valid.txt", "\"A: 1 0:0.5 a, 1 0:1 b\" \"B: 1 0:1 c\"\n");
  const Applied got = applied({"--valid-weighted-split-paths-path", file});
  EXPECT_THAT(got.problems, IsEmpty());
  EXPECT_THAT(got.args.data.valid_data_path, ElementsAre("A: 1 0:0.5 a, 1 0:1 b", "B: 1 0:1 c"));
  EXPECT_THAT(
      applied({"--valid-weighted-split-paths-path", file, "--valid-data-path", "x"}).problems,
      ElementsAre(HasSubstr("keep the flag or the file")));
  EXPECT_THAT(
      applied({"--train-weighted-split-paths-path", directory.write("empty", "\n")}).problems,
      ElementsAre(HasSubstr("holds no group")));
  EXPECT_THAT(applied({"--test-weighted-split-paths-path", "/absent"}).problems,
              ElementsAre(HasSubstr("/absent")));
}

}  // namespace
}  // namespace megatron::frontends
