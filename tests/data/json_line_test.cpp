#include "megatron/data/json_line.h"

#include <gmock/gmock.h>

#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include "tests/support/rounds.h"
#include "tests/support/shared_data.h"

namespace megatron {
namespace {

using testing::ElementsAre;

// Texts joined with '|', or the problem.
std::string parse(JsonLineParser& parser, std::string line) {
  const size_t size = line.size();
  line.append(JsonLineParser::kPadding, '}');  // anything may follow
  if (const auto problem = parser.parse(std::string_view(line).substr(0, size))) {
    return "bad: " + *problem;
  }
  std::string joined;
  for (const std::string_view text : parser.texts(0)) joined += std::string(text) + '|';
  return joined;
}

std::string parse(std::string line) {
  JsonLineParser parser({"text"});
  return parse(parser, std::move(line));
}

TEST(JsonLine, TextsAreUnescaped) {
  EXPECT_EQ(parse(R"({"text": "plain"})"), "plain|");
  EXPECT_EQ(parse(R"({"text": "\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"})"),
            "\"\\/\b\f\n\r\t\xC3\xA9\xF0\x9F\x98\x80|");
  EXPECT_EQ(parse(R"({"text": "a\u0000b"})"), std::string("a\0b|", 4));
  EXPECT_EQ(parse(R"(  {"text": ""}  )"), "|");
  EXPECT_EQ(parse(R"({"t\u0065xt": "key"})"), "key|");
}

TEST(JsonLine, TheLastOfEqualKeysWins) {
  EXPECT_EQ(parse(R"({"text": "one", "text": "two"})"), "two|");
  EXPECT_EQ(parse(R"({"text": 1, "text": "two"})"), "two|");
  EXPECT_EQ(parse(R"({"text": "one", "n": NaN, "text": "two"})"), "two|");
  EXPECT_EQ(parse(R"({"text": "one", "text": 2})"),
            "bad: key \"text\" holds a number, expected a text or a list of texts");
  EXPECT_EQ(parse(R"({"a": {"text": "inner"}, "text": "outer", "b": [{"text": "inner"}]})"),
            "outer|");
}

TEST(JsonLine, NumbersArePythons) {
  for (const std::string number : {"NaN", "Infinity", "-Infinity", "1e999", "-0", "0.5E+3",
                                   "123456789012345678901234567890"}) {
    EXPECT_EQ(parse("{\"n\": " + number + ", \"text\": \"x\"}"), "x|") << number;
  }
  EXPECT_EQ(parse(R"({"n": 01, "text": "x"})"), "bad: column 8: expected '}' or ',' after a value");
  EXPECT_EQ(parse(R"({"n": 1., "text": "x"})"), "bad: column 8: expected '}' or ',' after a value");
  EXPECT_EQ(parse(R"({"n": 1e, "text": "x"})"), "bad: column 8: expected '}' or ',' after a value");
  EXPECT_EQ(parse(R"({"n": -, "text": "x"})"), "bad: column 8: expected a JSON value");
  EXPECT_EQ(parse(R"({"n": nan, "text": "x"})"), "bad: column 7: expected a JSON value");
}

TEST(JsonLine, AListIsSeveralTexts) {
  EXPECT_EQ(parse(R"({"text": ["a", "", "c"]})"), "a||c|");
  EXPECT_EQ(parse(R"({"text": []})"), "");
  EXPECT_EQ(
      parse(R"({"text": ["a", 1]})"),
      "bad: key \"text\" holds a list with items that are not texts, expected a text or a list "
      "of texts");
}

TEST(JsonLine, NestingHasNoLimit) {
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_EQ(parse("{\"m\": " + deep + ", \"text\": \"x\"}"), "x|");
  EXPECT_EQ(parse("{\"m\": {\"a\": [1, {\"b\": [[], {}, NaN]}]}, \"text\": \"x\"}"), "x|");
}

TEST(JsonLine, ProblemsSayWhereAndWhy) {
  const std::map<std::string, std::string> cases = {
      {"", "the line is blank; expected one JSON object"},
      {"   ", "the line is blank; expected one JSON object"},
      {"\xEF\xBB\xBF{\"text\": \"x\"}",
       "the line starts with a UTF-8 byte order mark; save the file without one"},
      {R"(["text"])", "the line holds a list, expected a JSON object"},
      {R"("text")", "the line holds a text, expected a JSON object"},
      {"17", "the line holds a number, expected a JSON object"},
      {"true", "the line holds a boolean, expected a JSON object"},
      {"null", "the line holds null, expected a JSON object"},
      {"[1", "column 3: expected ']' or ',' after a list item"},
      {R"({"body": "x"})", "the object has no key \"text\""},
      {R"({"text": null})", "key \"text\" holds null, expected a text or a list of texts"},
      {R"({"text": true})", "key \"text\" holds a boolean, expected a text or a list of texts"},
      {R"({"text": {"a": 1}})", "key \"text\" holds an object, expected a text or a list of texts"},
      {R"({"text": "x"} tail)", "column 15: there is more text after the end of the JSON value"},
      {R"({"text": "x",})", "column 14: expected a key in double quotes"},
      {R"({'text': 'x'})", "column 2: expected a key in double quotes"},
      {R"({"text" "x"})", "column 9: expected ':' after a key"},
      {R"({"text": "x")", "column 13: expected '}' or ',' after a value"},
      {R"({"text": )", "column 10: the line ends where a value should be"},
      {R"({"a": [)", "column 8: the line ends where a value should be"},
      {R"({"a": {"b": 1)", "column 14: expected '}' or ',' after a value"},
      {R"({"text": "no end)",
       "column 17: the line ends inside a text; its closing quote is missing"},
      {R"({"text": "no end\)",
       "column 18: the line ends inside a text; its closing quote is missing"},
      {R"({"text": "\x"})", "column 11: \\x is not a JSON escape"},
      {R"({"text": "\u12"})", "column 15: \\u must be followed by four hexadecimal digits"},
      {"{\"text\": \"a\tb\"}",
       "column 12: control character 0x09 inside a text must be written as an escape"},
      {R"({"text": "\ud83d!"})",
       "key \"text\" holds the lone surrogate \\ud83d, which is not a character"},
      {R"({"text": "\ude00\ud83d"})",
       "key \"text\" holds the lone surrogate \\ude00, which is not a character"},
      {"{\"text\": \"caf\xE9\"}", "column 14: byte 0xe9 is not valid UTF-8 here"},
      {"{\"text\": \"\xED\xA0\xBD\"}", "column 11: byte 0xed is not valid UTF-8 here"},
  };
  for (const auto& [line, problem] : cases) EXPECT_EQ(parse(line), "bad: " + problem) << line;
}

TEST(JsonLine, ALoneSurrogateElsewhereDoesNoHarm) {
  EXPECT_EQ(parse(R"({"title": "\ud83d", "text": "x"})"), "x|");
}

// Lines like the ones before go straight to the parser that took these.
TEST(JsonLine, TheLinesBeforeMakeNoDifference) {
  const std::vector<std::string> parts = {"{",
                                          "}",
                                          "\"text\"",
                                          "\"t\\u0065xt\"",
                                          "\"id\"",
                                          ":",
                                          ",",
                                          " ",
                                          "\"a\"",
                                          "\"",
                                          "\\",
                                          "\\n",
                                          "\\\"",
                                          "\\x",
                                          "\\u00e9",
                                          "\\u2",
                                          "\\ud83d",
                                          "\\ud83d\\ude00",
                                          "\\ude00",
                                          "\xC3\xA9",
                                          "\xC3",
                                          "\t",
                                          "1",
                                          "null",
                                          "[\"b\"]",
                                          "{\"c\": 2}",
                                          std::string(70, 'd'),
                                          "\xEF\xBB\xBF"};
  std::mt19937 random(5);
  int good = 0;
  for (int64_t round = 0; round < rounds(5000); ++round) {
    std::string value;
    for (auto count = random() % 5; count > 0; --count) value += parts[random() % parts.size()];
    std::string line = random() % 4 == 0 ? value : "{\"text\": \"" + value + "\"}";
    if (random() % 4 == 0)
      line.insert(std::min<size_t>(1, line.size()),
                  "\"id\": " + parts[random() % parts.size()] + ", ");
    JsonLineParser nested({"text"});
    parse(nested, R"({"text": "", "other": [{}]})");
    const std::string want = parse(nested, line);
    ASSERT_EQ(parse(line), want) << line;
    good += want.starts_with("bad: ") ? 0 : 1;
  }
  EXPECT_GT(good, rounds(1000));
}

TEST(JsonLine, ReadsSeveralKeys) {
  JsonLineParser parser({"a", "b"});
  EXPECT_EQ(parse(parser, R"({"b": "two", "a": "one"})"), "one|");
  EXPECT_THAT(parser.texts(1), ElementsAre("two"));
  EXPECT_EQ(parse(parser, R"({"b": ["two", "three"], "a": "one"})"), "one|");
  EXPECT_THAT(parser.texts(1), ElementsAre("two", "three"));
  EXPECT_EQ(parse(parser, R"({"a": "one"})"), "bad: the object has no key \"b\"");
}

TEST(JsonLine, JudgesEveryBadLineAsPythonDoes) {
  MG_NEEDS_SHARED("data/nasty/bad.jsonl");
  std::ifstream lines(shared_data("data/nasty/bad.jsonl"), std::ios::binary);
  std::ifstream table(shared_data("data/nasty/bad.expect.tsv"));
  std::string row;
  std::getline(table, row);
  int checked = 0;
  for (std::string line; std::getline(table, row) && std::getline(lines, line); ++checked) {
    std::vector<std::string> columns;
    std::istringstream cells(row);
    for (std::string cell; std::getline(cells, cell, '\t');) columns.push_back(cell);
    const std::string& type = columns.at(4);
    const bool reads_on = columns.at(3) == "recursion" || type == "list";  // here both are fine
    const bool is_good = reads_on || (type == "str" && columns.at(5) == "ok");
    const std::string got = parse(line);
    if (columns.at(3) == "recursion") {
      EXPECT_EQ(got.find("bad: column"), std::string::npos) << row << got;
    } else {
      EXPECT_EQ(!got.starts_with("bad: "), is_good) << row << ": " << got;
    }
  }
  EXPECT_EQ(checked, 41);
}

}  // namespace
}  // namespace megatron
