#include "megatron/data/gpt_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace megatron {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;

// Two samples of five inputs; 0 is the end of a document.
class TwoSamples final : public SampleDataset {
 public:
  int64_t num_samples() const override { return 2; }
  int64_t sample_size() const override { return 6; }
  void read(int64_t sample, std::span<int64_t> out) const override {
    const std::vector<int64_t> tokens = sample == 0 ? std::vector<int64_t>{5, 0, 6, 0, 7, 0}
                                                    : std::vector<int64_t>{0, 1, 2, 3, 4, 5};
    std::copy(tokens.begin(), tokens.end(), out.begin());
  }
};

TEST(GptBatchTest, ShiftsLabels) {
  const GptBatch batch = make_gpt_batch(TwoSamples(), {{1, 0}, 42}, {});
  EXPECT_EQ(batch.micro_batch_size, 2);
  EXPECT_EQ(batch.seq_length, 5);
  EXPECT_EQ(batch.first_sample, 42);
  EXPECT_THAT(batch.tokens, ElementsAre(0, 1, 2, 3, 4, 5, 0, 6, 0, 7));
  EXPECT_THAT(batch.labels, ElementsAre(1, 2, 3, 4, 5, 0, 6, 0, 7, 0));
  EXPECT_THAT(batch.loss_mask, Each(1.0F));
  EXPECT_THAT(batch.position_ids, ElementsAre(0, 1, 2, 3, 4, 0, 1, 2, 3, 4));
  EXPECT_THAT(batch.document_starts, IsEmpty());
}

TEST(GptBatchTest, AppliesDocumentRulesToInputs) {
  const GptSampleOptions all{
      .eod = 0, .eod_mask_loss = true, .reset_position_ids = true, .reset_attention_mask = true};
  const GptBatch batch = make_gpt_batch(TwoSamples(), {{0, 1}, 0}, all);
  EXPECT_THAT(batch.position_ids, ElementsAre(0, 1, 0, 1, 0, 0, 0, 1, 2, 3));
  EXPECT_THAT(batch.loss_mask, ElementsAre(1, 0, 1, 0, 1, 0, 1, 1, 1, 1));
  EXPECT_THAT(batch.document_starts, ElementsAre(0, 0, 2, 2, 4, 0, 1, 1, 1, 1));
}

TEST(GptBatchTest, ShortensSequences) {
  const GptSampleOptions all{
      .eod = 0, .eod_mask_loss = true, .reset_position_ids = true, .reset_attention_mask = true};
  GptBatch whole = make_gpt_batch(TwoSamples(), {{0, 1}, 42}, all);
  whole.loss_divisor = 7;
  const GptBatch batch = first_tokens(whole, 3);
  EXPECT_EQ(batch.micro_batch_size, 2);
  EXPECT_EQ(batch.seq_length, 3);
  EXPECT_EQ(batch.first_sample, 42);
  EXPECT_EQ(batch.loss_divisor, 7);
  EXPECT_THAT(batch.tokens, ElementsAre(5, 0, 6, 0, 1, 2));
  EXPECT_THAT(batch.labels, ElementsAre(0, 6, 0, 1, 2, 3));
  EXPECT_THAT(batch.loss_mask, ElementsAre(1, 0, 1, 0, 1, 1));
  EXPECT_THAT(batch.position_ids, ElementsAre(0, 1, 0, 0, 0, 1));
  EXPECT_THAT(batch.document_starts, ElementsAre(0, 0, 2, 0, 1, 1));
}

TEST(GptBatchTest, CutsTheChunksOfARank) {
  const GptBatch batch{.micro_batch_size = 2,
                       .seq_length = 4,
                       .tokens = {10, 11, 12, 13, 20, 21, 22, 23},
                       .labels = {11, 12, 13, 14, 21, 22, 23, 24},
                       .loss_mask = {1, 1, 0, 1, 1, 1, 0, 0},
                       .position_ids = {0, 1, 2, 3, 0, 1, 0, 1},
                       .document_starts = {0, 0, 0, 0, 0, 0, 2, 2},
                       .first_sample = 6};
  const std::vector<int64_t> chunks = {0, 3};
  const GptBatch part = chunks_of(batch, chunks, 4);
  EXPECT_EQ(part.micro_batch_size, 2);
  EXPECT_EQ(part.seq_length, 2);
  EXPECT_EQ(part.first_sample, 6);
  EXPECT_THAT(part.tokens, ElementsAre(10, 13, 20, 23));
  EXPECT_THAT(part.labels, ElementsAre(11, 14, 21, 24));
  EXPECT_THAT(part.loss_mask, ElementsAre(1, 1, 1, 0));
  EXPECT_THAT(part.position_ids, ElementsAre(0, 3, 0, 1));
  EXPECT_THAT(part.document_starts, ElementsAre(0, 0, 0, 2));  // by chunk, then by sample
  EXPECT_EQ(part.loss_divisor, 2.5F);                          // of 5 that count, half

  GptBatch weighted = batch;
  weighted.loss_divisor = 6;  // of the task's choice
  EXPECT_EQ(chunks_of(weighted, chunks, 4).loss_divisor, 3);
}

}  // namespace
}  // namespace megatron
