#include "annex/accelerate/yaml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "megatron/core/error.h"
#include "tests/support/message_of.h"

namespace megatron::frontends {
namespace {

using nlohmann::json;

json value(const std::string& text) { return read_yaml("key: " + text + "\n", "test")["key"]; }

TEST(Yaml, PlainScalarsHaveTheTypesOfYaml11) {
  for (const char* const text : {"no", "No", "NO", "off", "false", "FALSE"}) {
    EXPECT_EQ(value(text), json(false)) << text;
  }
  for (const char* const text : {"yes", "on", "True"}) EXPECT_EQ(value(text), json(true)) << text;
  for (const char* const text : {"", "~", "null", "NULL"}) EXPECT_TRUE(value(text).is_null());
  EXPECT_EQ(value("1_000"), json(1000));
  EXPECT_EQ(value("-7"), json(-7));
  EXPECT_EQ(value("017"), json(15));
  EXPECT_EQ(value("0x10"), json(16));
  EXPECT_EQ(value("0b11"), json(3));
  EXPECT_EQ(value("1.5"), json(1.5));
  EXPECT_EQ(value("1.0e-05"), json(1e-5));
  EXPECT_EQ(value(".5"), json(0.5));
  EXPECT_TRUE(std::isinf(value("-.inf").get<double>()));
}

TEST(Yaml, OtherPlainScalarsAreText) {
  for (const char* const text :
       {"1e-5", "1,3", "10.0.0.1", "n", "y", "nope", "head.example", "08", "0x", "-x", "."}) {
    EXPECT_EQ(value(text), json(text)) << text;
  }
}

TEST(Yaml, QuotesMakeText) {
  EXPECT_EQ(value("'no'"), json("no"));
  EXPECT_EQ(value("\"4\""), json("4"));
  EXPECT_EQ(value("''"), json(""));
}

TEST(Yaml, WritesWhatItReads) {
  const json map = {{"a", nullptr},
                    {"b", true},
                    {"c", "no"},
                    {"d", "NO"},
                    {"e", ""},
                    {"f", "4"},
                    {"g", 4},
                    {"h", 1.0},
                    {"i", 1e-5},
                    {"j", "it's: a # b"},
                    {"k", json::array()},
                    {"l", {{"m", "x"}, {"n", 2}}},
                    {"o", {1, "two"}},
                    {"p", "line\nbreak"},
                    {"q", "gr\xc3\xbc\xc3\x9f"},
                    {"r", "- x"},
                    {"s", "~/hosts"},
                    {"t", json::object()}};
  EXPECT_EQ(read_yaml(yaml_text(map), "test"), map);
}

TEST(Yaml, WritesAsPyYamlDoes) {
  EXPECT_EQ(yaml_text({{"b", "no"}, {"a", {{"x", 1e-5}}}, {"c", json::array()}, {"d", "0,1"}}),
            "a:\n  x: 1.0e-05\nb: 'no'\nc: []\nd: 0,1\n");
}

TEST(Yaml, StrangeFilesTakeLittleMemory) {
  const auto refusal = [](const std::string& text) {
    return message_of<FormatError>([&] { read_yaml(text, "file.yaml"); });
  };
  EXPECT_EQ(refusal("a: \xFF\n"), "file.yaml: byte 4 is not UTF-8; correct the YAML");
  EXPECT_THAT(refusal(std::string(2 << 20, ' ')), testing::HasSubstr("has 2097152 bytes"));
  std::string aliases = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n";
  for (int i = 1; i < 10; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    aliases += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + before;
    for (int k = 1; k < 10; ++k) aliases += "," + before;
    aliases += "]\n";
  }
  EXPECT_THAT(refusal(aliases), testing::HasSubstr("more than 1000000 values"));
}

TEST(Yaml, AFaultHasItsLine) {
  const std::string message =
      message_of<FormatError>([] { read_yaml("a: 1\nb: [1\n", "file.yaml"); });
  EXPECT_NE(message.find("file.yaml: line "), std::string::npos) << message;
}

}  // namespace
}  // namespace megatron::frontends
