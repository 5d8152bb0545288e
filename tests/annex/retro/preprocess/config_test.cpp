#include "annex/retro/preprocess/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron/core/error.h"
#include "tests/support/message_of.h"

namespace megatron::retro {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

RetroConfig valid() {
  RetroConfig config;
  config.retro_workdir = "W";
  config.retro_gpt_data_path = {"1", "data/wiki"};
  config.retro_gpt_eval_interval = 100;
  config.retro_gpt_eval_iters = 4;
  config.gpt_tokenizer = {
      .tokenizer_type = "GPT2BPETokenizer", .vocab_file = "v", .merge_file = "m"};
  config.retro_gpt_seq_length = 256;
  config.retro_gpt_global_batch_size = 8;
  config.bert_tokenizer = {.tokenizer_type = "BertWordPieceLowerCase", .vocab_file = "b"};
  config.retro_index_str = "IVF64,Flat";
  config.retro_index_ntrain = 4096;
  return config;
}

TEST(RetroTasksTest, StandForSteps) {
  EXPECT_THAT(tasks_of("build"), ElementsAre(Task::kBuildDatabase, Task::kTrainIndex,
                                             Task::kAddToIndex, Task::kQueryNeighbors));
  EXPECT_THAT(tasks_of("index-build"), ElementsAre(Task::kTrainIndex, Task::kAddToIndex));
  EXPECT_THAT(tasks_of("index-add,db-build"), ElementsAre(Task::kAddToIndex, Task::kBuildDatabase));
  EXPECT_THAT(tasks_of("pretraining-query-neighbors"), ElementsAre(Task::kQueryNeighbors));
  EXPECT_THAT(message_of([] { tasks_of("db-build,index"); }),
              HasSubstr("there is no task \"index\""));
  EXPECT_THROW(tasks_of(""), ConfigError);
}

TEST(RetroConfigTest, NamesEachProblem) {
  EXPECT_THAT(problems(valid()), IsEmpty());
  EXPECT_THAT(problems(RetroConfig()),
              testing::IsSupersetOf({"--retro-workdir is required", "--retro-index-str is required",
                                     "--retro-bert-vocab-file is required"}));
  struct Case {
    void (*change)(RetroConfig&);
    const char* problem;
  };
  const Case cases[] = {
      {[](RetroConfig& c) { c.retro_gpt_data_path = {"data/wiki"}; },
       "--retro-gpt-data-path must be weights and prefixes"},
      {[](RetroConfig& c) {
         c.retro_gpt_data_path = {"data/a", "data/b"};
       },
       "data/a must be the weight of data/b"},
      {[](RetroConfig& c) {
         c.retro_gpt_data_path = {"1", "x/wiki", "1", "y/wiki"};
       },
       "x/wiki and y/wiki have the same name wiki"},
      {[](RetroConfig& c) { c.retro_gpt_seq_length = 250; },
       "--retro-gpt-seq-length 250 must be a multiple of --retro-gpt-chunk-length 64"},
      {[](RetroConfig& c) { c.gpt_tokenizer.tokenizer_type = "NullTokenizer"; },
       "--retro-gpt-tokenizer-type NullTokenizer is not supported; use GPT2BPETokenizer or "},
      {[](RetroConfig& c) { c.gpt_tokenizer.merge_file.clear(); },
       "--retro-gpt-merge-file is required"},
      {[](RetroConfig& c) { c.bert_tokenizer.tokenizer_type = "BertWordPiece"; },
       "--retro-bert-tokenizer-type BertWordPiece is not supported"},
      {[](RetroConfig& c) { c.retro_index_add_load_fraction = 1.5; },
       "--retro-index-add-load-fraction 1.5 must be above 0 and at most 1"},
      {[](RetroConfig& c) { c.retro_query_num_neighbors_save = 201; },
       "--retro-query-num-neighbors-save 201 must be at most --retro-query-num-neighbors-query "
       "200"},
      {[](RetroConfig& c) { c.retro_bert_max_chunk_length = 2; },
       "--retro-bert-max-chunk-length 2 must be at least 3"},
  };
  for (const Case& wrong : cases) {
    RetroConfig config = valid();
    wrong.change(config);
    EXPECT_THAT(problems(config), ElementsAre(HasSubstr(wrong.problem)));
  }
}

}  // namespace
}  // namespace megatron::retro
