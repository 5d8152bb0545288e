#include "annex/retro/tasks/dialogue_data.h"

#include <gmock/gmock.h>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class DialogueDataTest : public testing::Test {
 protected:
  std::vector<Dialogue> read(const std::string& text, const DialogueFields& fields = {},
                             const std::string& name = "items.json") const {
    write_text_atomically(directory_.path() / name, text);
    return read_dialogues(directory_.path() / name, fields);
  }
  std::vector<std::string> answers(const std::string& items) const {
    std::vector<std::string> all;
    for (const Dialogue& dialogue : read(items)) all.push_back(dialogue.answer);
    return all;
  }
  std::vector<std::string> contexts(const std::string& more, ContextField field) const {
    const auto read_all = read(R"([{"question": "q", "answer": "a")" + more + "}]", {field});
    return read_all.at(0).contexts;
  }

 private:
  TemporaryDirectory directory_;
};

TEST_F(DialogueDataTest, TakesTheFirstAnswerAndLeavesOutItemsWithoutOne) {
  EXPECT_THAT(
      answers(R"([
      {"question": "q", "answers": ["one", "two"]},
      {"question": "q", "answers": []},
      {"question": "q", "answers": [{"text": "  stripped \n"}, {"text": "x"}]},
      {"question": "q", "answer": " as it is "},
      {"question": "q", "answer": ["list"]},
      {"question": "q", "answer": 12},
      {"question": "q", "answer": true},
      {"question": "q", "answers": ["first of both"], "answer": "x"}])"),
      ElementsAre(" one", " stripped", "  as it is ", " list", " 12", " True", " first of both"));
}

TEST_F(DialogueDataTest, LongformAnswersAreLines) {
  const auto found = read(
      "{\"question\": \"q\", \"longform_answer\": \"long\", \"answers\": [\"short\"]}\n"
      "{\"question\": \"q\", \"answers\": [\"short\"]}\n",
      {.has_longform_answer = true});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].answer, " long");
}

TEST_F(DialogueDataTest, ChoicesFollowTheQuestion) {
  const auto found = read(R"([{"question": "Which?", "qa_type": "multi_choice_qa", "answer": "b",
      "multichoice_options": ["red", "blue", 3]}])");
  EXPECT_EQ(found[0].question,
            "Which?\nChoose one based on the following options: (A) red (B) blue (C) 3");
}

TEST_F(DialogueDataTest, ContextsOfEachField) {
  constexpr auto kParagraph = ContextField::kParagraph;
  EXPECT_THAT(contexts("", kParagraph), ElementsAre("title: , source: "));
  EXPECT_THAT(contexts(R"(, "sub_paragraph": "p")", kParagraph), ElementsAre("title: , source: p"));
  EXPECT_THAT(contexts(R"(, "sub-paragraphs": "p")", kParagraph),
              ElementsAre("title: , source: p"));
  EXPECT_THAT(contexts(R"(, "sub-paragraphs": ["t", "p"])", kParagraph),
              ElementsAre("title: t, source: p"));
  EXPECT_THAT(contexts(R"(, "ctxs": [{"title": "t", "text": "x"}, {"title": "", "text": "y"}])",
                       ContextField::kRetrieved),
              ElementsAre("title: t, source: x", "title: , source: y"));
  EXPECT_THAT(contexts(R"(, "bert_pretrain_corpus_neighbours": ["x", "y"])", ContextField::kCorpus),
              ElementsAre("source: x", "source: y"));
}

TEST_F(DialogueDataTest, QuestionsAloneNeedNoAnswers) {
  const auto found = read("{\"question\": \"q\"}\n", {.reads_answers = false}, "items.jsonl");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].answer, "");
}

TEST_F(DialogueDataTest, NamesTheItemThatLacksAField) {
  const auto message = [&](const std::string& text, ContextField field = {}) {
    return message_of<FormatError>([&] { read(text, {field}); });
  };
  EXPECT_THAT(message(R"([{"question": "q", "answer": "a"}, {"question": "q"}])"),
              HasSubstr("items.json: item 1 lacks a field"));
  EXPECT_THAT(message(R"([{"answer": "a"}])"), HasSubstr("item 0 lacks a field"));
  EXPECT_THAT(message(R"([{"question": "q", "answer": "a"}])", ContextField::kRetrieved),
              HasSubstr("ctxs"));
  EXPECT_THAT(message("[{"), HasSubstr("item 0 is not JSON; write a JSON array"));
}

}  // namespace
}  // namespace megatron
