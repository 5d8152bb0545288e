#include "annex/retro/tasks/dialogue_dataset.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "megatron/core/error.h"
#include "tests/annex/retro/preprocess/letter_tokenizer.h"

namespace megatron {
namespace {

using testing::ElementsAre;

const LetterTokenizer kLetters(true);
constexpr int64_t kPreamble = 164;  // tokens of the prompt before the question
constexpr int32_t kEos = 2, kPad = 3;

DialogueSampleOptions options_for(int64_t seq_length) {
  return {
      .prompt = {.dataset = "oasst"}, .seq_length = seq_length, .eos = kEos, .pad = kPad, .eod = 0};
}

Dialogue asked(const std::string& question, const std::string& answer) {
  return {.question = question, .answer = answer, .contexts = {"xyz", "uv"}};
}

// A sample without its preamble.
std::vector<int64_t> sample(const Dialogue& dialogue, const DialogueSampleOptions& options) {
  const DialogueDataset dataset({dialogue}, options, 0, kLetters);
  std::vector<int64_t> all(static_cast<size_t>(dataset.sample_size()));
  dataset.read(0, all);
  return {all.begin() + kPreamble, all.end()};
}

TEST(DialogueDatasetTest, AnswerEndAndPaddingFollowThePrompt) {
  EXPECT_THAT(sample(asked("q?", "ab"), options_for(kPreamble + 6)),
              ElementsAre('q', '?', 'a', 'b', kEos, kPad, kPad, kPreamble + 2, kPreamble + 5));
}

TEST(DialogueDatasetTest, LongAnswersAndPromptsAreCut) {
  EXPECT_THAT(sample(asked("q?", "abcdefgh"), options_for(kPreamble + 5)),
              ElementsAre('q', '?', 'a', 'b', 'c', kEos, kPreamble + 2, kPreamble + 6));
  // A prompt of s tokens stays, a longer one loses one more than it must.
  EXPECT_THAT(sample(asked("qrs", "ab"), options_for(kPreamble + 3)),
              ElementsAre('q', 'r', 's', kEos, kPreamble + 3, kPreamble + 4));
  EXPECT_THAT(sample(asked("qrst", "ab"), options_for(kPreamble + 3)),
              ElementsAre('q', 'r', 'a', kEos, kPreamble + 2, kPreamble + 4));
}

TEST(DialogueDatasetTest, NeighboursAreTheContextsBehindThoseOfThePrompt) {
  DialogueSampleOptions options = options_for(kPreamble + 2);
  options.num_neighbors = 2;
  options.neighbor_length = 2;
  const auto neighbors = [&] {
    const std::vector<int64_t> all = sample(asked("q", "a"), options);
    return std::vector<int64_t>(all.end() - 4, all.end());
  };
  EXPECT_THAT(neighbors(), ElementsAre('u', 'v', 0, 0));
  options.reuse_top = true;
  EXPECT_THAT(neighbors(), ElementsAre('x', 'y', 'u', 'v'));
}

TEST(DialogueDatasetTest, RepeatsItsDialogues) {
  const DialogueDataset dataset({asked("q", "a"), asked("q", "b")}, options_for(kPreamble + 2), 5,
                                kLetters);
  EXPECT_EQ(dataset.num_samples(), 5);
  std::vector<int64_t> read(static_cast<size_t>(dataset.sample_size()));
  dataset.read(3, read);
  EXPECT_EQ(read[kPreamble + 1], 'b');
  EXPECT_THROW(DialogueDataset({}, options_for(8), 5, kLetters), ConfigError);
}

// Two dialogues of 12 tokens, the neighbours [k, r] = [1, 2].
class DialogueBatchTest : public testing::Test {
 protected:
  GptBatch batch(bool answer_loss_only, bool eod_mask_loss = false) const {
    DialogueSampleOptions options = options_for(kPreamble + 12);
    options.num_neighbors = 1;
    options.neighbor_length = 2;
    options.reuse_top = true;
    // Prompts of 164 + 4 and 164 + 9 tokens; the first answer has an end of a document inside.
    const DialogueDataset dataset(
        {asked("qrst", std::string("ab\0c", 4)), asked("qrstuvwxy", "abcdefgh")}, options, 0,
        kLetters);
    GptBatch made = make_gpt_batch(dataset, {.indices = {0, 1}, .first_sample = 0},
                                   {.eod = 0,
                                    .eod_mask_loss = eod_mask_loss,
                                    .neighbor_tokens = DialogueDataset::behind_text(options)});
    set_answers(made, options, answer_loss_only);
    return made;
  }
  // Of the labels behind the preamble, with the label that is the first of these tokens.
  static std::vector<int> mask(const GptBatch& batch, int64_t row) {
    const auto first = batch.loss_mask.begin() + row * batch.seq_length;
    EXPECT_EQ(std::count(first, first + kPreamble - 1, first[0]), kPreamble - 1);
    return {first + kPreamble - 1, first + batch.seq_length};
  }
};

TEST_F(DialogueBatchTest, OnlyAnswersAndTheirEndsCount) {
  const GptBatch made = batch(true);
  // labels:                             q  r  s  t  a  b \0  c  E  P  P  P  P
  EXPECT_THAT(mask(made, 0), ElementsAre(0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0));
  // labels:                             q  r  s  t  u  v  w  x  y  a  b  c  E
  EXPECT_THAT(mask(made, 1), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1));
  EXPECT_EQ(made.loss_mask[0], 0.0F);
  const auto labels = std::span(made.labels).subspan(kPreamble - 1, 13);
  EXPECT_THAT(labels,
              ElementsAre('q', 'r', 's', 't', 'a', 'b', 0, 'c', kEos, kPad, kPad, kPad, kPad));
}

TEST_F(DialogueBatchTest, WithoutTheFlagAllLabelsCountThatDid) {
  EXPECT_THAT(mask(batch(false), 0), ElementsAre(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1));
  // The label behind the end of a document.
  EXPECT_THAT(mask(batch(false, true), 0), ElementsAre(1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1));
  EXPECT_THAT(mask(batch(true, true), 0), ElementsAre(0, 0, 0, 0, 1, 1, 1, 0, 1, 0, 0, 0, 0));
}

TEST_F(DialogueBatchTest, TheShortestPromptIsTheFirstOfTwoChunks) {
  const GptBatch made = batch(true);
  // 176 tokens; the shortest prompt has more than half of them.
  EXPECT_EQ(made.chunk_length, 88);
  EXPECT_THAT(made.neighbor_tokens, ElementsAre('x', 'y', 'x', 'y', 'x', 'y', 'x', 'y'));
  DialogueSampleOptions options = options_for(11);
  GptBatch small;
  small.micro_batch_size = 2;
  small.seq_length = 11;
  small.loss_mask.assign(22, 1.0F);
  small.neighbor_tokens = {4, 7, 3, 9};
  set_answers(small, options, true);
  EXPECT_EQ(small.chunk_length, 8);  // 11 - 3
  EXPECT_TRUE(small.neighbor_tokens.empty());
  small.neighbor_tokens = {9, 10, 9, 11};
  set_answers(small, options, true);
  EXPECT_EQ(small.chunk_length, 6);  // two chunks of an odd number of tokens
}

}  // namespace
}  // namespace megatron
