#include "megatron/data/python_json.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace megatron {
namespace {

TEST(PythonReprTest, PrintsAsPython) {
  EXPECT_EQ(python_repr(0.0), "0.0");
  EXPECT_EQ(python_repr(-0.0), "-0.0");
  EXPECT_EQ(python_repr(1.0), "1.0");
  EXPECT_EQ(python_repr(0.1), "0.1");
  EXPECT_EQ(python_repr(0.9500000000000001), "0.9500000000000001");
  EXPECT_EQ(python_repr(1.0 / 3), "0.3333333333333333");
  EXPECT_EQ(python_repr(0.0001), "0.0001");
  EXPECT_EQ(python_repr(0.00001), "1e-05");
  EXPECT_EQ(python_repr(1e-7), "1e-07");
  EXPECT_EQ(python_repr(1.5e-300), "1.5e-300");
  EXPECT_EQ(python_repr(1e15), "1000000000000000.0");
  EXPECT_EQ(python_repr(1e16), "1e+16");
  EXPECT_EQ(python_repr(1e22), "1e+22");
  EXPECT_EQ(python_repr(123456.789), "123456.789");
  EXPECT_EQ(python_repr(std::numeric_limits<double>::infinity()), "Infinity");
}

TEST(PythonJsonTest, PrintsAsPython) {
  const nlohmann::ordered_json value = {{"b", "d\xc3\xa9j\xc3\xa0 \"vu\"\n\x7f"},
                                        {"a", {1, nullptr, {}}},
                                        {"list", nlohmann::json::array()},
                                        {"x", 0.8},
                                        {"yes", true}};
  EXPECT_EQ(python_json(value),
            "{\n"
            "    \"b\": \"d\\u00e9j\\u00e0 \\\"vu\\\"\\n\\u007f\",\n"
            "    \"a\": [\n"
            "        1,\n"
            "        null,\n"
            "        null\n"
            "    ],\n"
            "    \"list\": [],\n"
            "    \"x\": 0.8,\n"
            "    \"yes\": true\n"
            "}");
}

}  // namespace
}  // namespace megatron
