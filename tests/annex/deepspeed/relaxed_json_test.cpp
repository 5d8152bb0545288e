#include "annex/deepspeed/relaxed_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron/core/error.h"
#include "tests/support/message_of.h"

namespace megatron::frontends {
namespace {

using nlohmann::json;

json relaxed_json_read(const std::string& text) { return read_relaxed_json(text, "ds.json"); }

TEST(RelaxedJson, ReadsPlainJson) {
  const std::string text =
      R"({"a": [1, 2.5, "x\n\u00fc"], "b": {"c": null, "d": true}, "e": -5e8})";
  EXPECT_EQ(relaxed_json_read(text), json::parse(text));
}

TEST(RelaxedJson, ReadsCommentsBareKeysAndTrailingCommas) {
  EXPECT_EQ(relaxed_json_read(
                "{\n  # a comment\n  // another\n  /* and\n one more */\n  train_batch_size: 8,\n"
                "  'steps': 7, # seven\n  device: cpu memory\n}"),
            json({{"train_batch_size", 8}, {"steps", 7}, {"device", "cpu memory"}}));
}

TEST(RelaxedJson, BracesAndCommasMayBeMissing) {
  EXPECT_EQ(relaxed_json_read("a: 1\nb: [1\n2]\n"), json({{"a", 1}, {"b", {1, 2}}}));
  EXPECT_EQ(relaxed_json_read(""), json::object());
}

TEST(RelaxedJson, FaultsNameTheLine) {
  const auto message = [](const std::string& text) {
    return message_of<FormatError>([&] { relaxed_json_read(text); });
  };
  EXPECT_THAT(message("{\"a\": 1,\n \"a\": 1}"), testing::HasSubstr("line 2: the key a appears"));
  EXPECT_THAT(message("{\"f\": {\"e\": 1, \"e\": 2}}"), testing::HasSubstr("the key e appears"));
  EXPECT_THAT(message("a: \xFF"), testing::HasSubstr("ds.json: byte 4 is not UTF-8"));
  EXPECT_THAT(message("[1, 2"), testing::HasSubstr("a list without its end ]"));
  EXPECT_THAT(message("{\"a\": 1"), testing::HasSubstr("a map without its end }"));
  EXPECT_THAT(message("{\"a\" 1}"), testing::HasSubstr("the key a without a colon"));
  EXPECT_THAT(message("{\"a\": \"x"), testing::HasSubstr("without its closing quote"));
  EXPECT_THAT(message("{} x"), testing::HasSubstr("text after the end"));
  EXPECT_THAT(message("/* x"), testing::HasSubstr("without its end */"));
  EXPECT_THAT(message(std::string(200, '[')), testing::HasSubstr("levels of nesting"));
}

}  // namespace
}  // namespace megatron::frontends
