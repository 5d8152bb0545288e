#include "megatron/data/python_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace megatron {
namespace {

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
