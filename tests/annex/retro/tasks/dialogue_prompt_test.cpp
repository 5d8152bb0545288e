#include "annex/retro/tasks/dialogue_prompt.h"

#include <gmock/gmock.h>

#include "megatron/data/md5.h"
#include "tests/annex/retro/preprocess/letter_tokenizer.h"

namespace megatron {
namespace {

using testing::ElementsAre;

constexpr auto kRetro = PromptVariant::kRetro;
constexpr auto kPlain = PromptVariant::kPlain;
const LetterTokenizer kDialoguePromptLetters(true);
const Dialogue kDialogue = {
    .question = "Who?", .answer = " Ann", .contexts = {"first", "second", "third"}};

// The text of a prompt for which there is room.
std::string prompt(const PromptOptions& options, int64_t seq_length = 1000) {
  return kDialoguePromptLetters.decode(
      prompt_ids(kDialogue, options, 10, seq_length, kDialoguePromptLetters));
}
// The same without the preamble.
std::string behind_preamble(const PromptOptions& options) {
  const std::string text = prompt(options);
  const auto preamble = prompt_preamble(options.variant);
  EXPECT_TRUE(text.starts_with(preamble)) << text;
  return text.substr(preamble.size());
}

// Models were tuned with these bytes: their SHA-256 digests, compared by hand, begin with bd6d748d
// and 77fce49e.
TEST(DialoguePromptTest, PreamblesAreThoseOfMegatronLm) {
  EXPECT_EQ(prompt_preamble(kRetro).size(), 164u);
  EXPECT_EQ(prompt_preamble(kPlain).size(), 268u);
  EXPECT_EQ(md5_hex(prompt_preamble(kRetro)), "b28fcfb44f9097b1b2d51fb6b7146838");
  EXPECT_EQ(md5_hex(prompt_preamble(kPlain)), "d5eb8689933350119a5e12fdb9fb9079");
}

TEST(DialoguePromptTest, ADataSetDecidesHowItsQuestionsArePut) {
  const auto turn = [](PromptVariant variant, const std::string& dataset) {
    return behind_preamble({.variant = variant, .dataset = dataset, .ft_neighbours = 0});
  };
  EXPECT_EQ(turn(kRetro, "oasst"), "Who?");
  EXPECT_EQ(turn(kPlain, "open_inst"), "Who?");
  for (const PromptVariant variant : {kRetro, kPlain}) {
    for (const char* name : {"doc2dial", "quac", "qrecc", "sharc"}) {
      EXPECT_EQ(turn(variant, name), "Who?");
    }
  }
  EXPECT_EQ(turn(kPlain, "convqa"), "Who?");
  EXPECT_EQ(turn(kRetro, "nq"),
            "User: Who? Answer the above question with a short phrase.\n\n"
            "Assistant: The answer is");
  EXPECT_EQ(turn(kPlain, "nq"),
            "User: Answer the following question with a short span. Who?\n\n"
            "Assistant: The answer is");
  EXPECT_EQ(turn(kPlain, "BioASQ"), turn(kPlain, "nq"));
  EXPECT_EQ(turn(kRetro, "BoolQ"),
            "User: Who? Answer the above question with True or False.\n\nAssistant:");
  EXPECT_EQ(turn(kPlain, "boolq"),
            "User: Answer the following question with True or False. Who?\n\nAssistant:");
  EXPECT_EQ(turn(kPlain, "race"),
            "User: Answer the following question by selecting one of the provided options. Who?"
            "\n\nAssistant:");
  for (const char* name : {"convqa", "BioASQ", "boolq", "race", "other"}) {
    EXPECT_EQ(turn(kRetro, name),
              "User: Who? Answer the above question with a long complete answer.\n\nAssistant:");
  }
  EXPECT_EQ(turn(kPlain, "other"),
            "User: Please give a full and complete answer for the question. Who?\n\nAssistant:");
}

TEST(DialoguePromptTest, ContextsStandBeforeTheQuestion) {
  const auto with = [](int64_t count, const char* dataset = "quac") {
    return behind_preamble({.variant = kRetro, .dataset = dataset, .ft_neighbours = count});
  };
  EXPECT_EQ(with(0), "Who?");
  EXPECT_EQ(with(1), "first\n\nWho?");
  EXPECT_EQ(with(2), "first\n\nsecond\n\nWho?");
  EXPECT_EQ(with(9), "first\n\nsecond\n\nthird\n\nWho?");
  EXPECT_EQ(with(1, "oasst"), "Who?");  // a dialogue has none
}

// The preamble has 164 tokens, the question 4, the answer 10.
TEST(DialoguePromptTest, ContextsAreCutToTheRoomThatThereIs) {
  const PromptOptions options = {.variant = kRetro, .dataset = "quac", .ft_neighbours = 2};
  const auto with_room = [&](int64_t room) {
    return prompt(options, 164 + 4 + 10 + room).substr(164);
  };
  EXPECT_EQ(with_room(15), "first\n\nsecond\n\nWho?");
  EXPECT_EQ(with_room(9), "first\n\nseWho?");
  EXPECT_EQ(with_room(0), "Who?");
  EXPECT_EQ(with_room(-5), "Who?");
}

TEST(DialoguePromptTest, TemplatesLayOutContextsAndQuestion) {
  const auto layout = [](int64_t id, const char* dataset = "other") {
    return behind_preamble({.variant = kPlain, .dataset = dataset, .template_id = id});
  };
  const std::string end = "Who?\n\nAssistant:";
  EXPECT_EQ(layout(1), "User: Answer based on context:\n\nfirst\n\n" + end);
  EXPECT_EQ(layout(2), "User: first\n\nAnswer this question based on the article: " + end);
  EXPECT_EQ(layout(3), "User: first\n\n" + end);
  EXPECT_EQ(layout(4), "User: first\n\nAnswer this question: " + end);
  EXPECT_EQ(layout(5), "User: Read this article and answer this question first\n\n" + end);
  EXPECT_EQ(layout(6), "User: first\n\nBased on the above article, answer a question. " + end);
  EXPECT_EQ(layout(7), "User: Context: first\n\nQuestion: " + end);
  EXPECT_EQ(layout(3, "nq"), "User: first\n\n" + end + " The answer is");
}

TEST(DialoguePromptTest, TheShortFormatHasNoPreamble) {
  PromptOptions options = {.dataset = "nq", .is_short_format = true};
  EXPECT_EQ(prompt(options), "first\n\nQuestion: Who? Answer: The answer is");
  options.ft_neighbours = 0;
  Dialogue dialogue = kDialogue;
  dialogue.question = "Name him";
  EXPECT_EQ(kDialoguePromptLetters.decode(
                prompt_ids(dialogue, options, 10, 1000, kDialoguePromptLetters)),
            "Question: Name him? Answer: The answer is");
}

TEST(DialoguePromptTest, NeighboursAreCutAndFilled) {
  const Dialogue dialogue = {.question = "q", .answer = "", .contexts = {"abcd", "e"}};
  EXPECT_THAT(context_ids(dialogue, 0, 2, 3, 0, kDialoguePromptLetters),
              ElementsAre('a', 'b', 'c', 'e', 0, 0));
  EXPECT_THAT(context_ids(dialogue, 1, 2, 2, 0, kDialoguePromptLetters), ElementsAre('e', 0, 0, 0));
}

}  // namespace
}  // namespace megatron
