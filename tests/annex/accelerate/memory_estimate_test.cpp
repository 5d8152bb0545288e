#include "annex/accelerate/memory_estimate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron/core/error.h"
#include "tests/support/json_lines.h"
#include "tests/support/message_of.h"

namespace megatron::frontends {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// Tables that the real program printed, and its bytes.
TEST(MemoryEstimate, TablesAreThoseOfTheOriginal) {
  int compared = 0;
  for (const json& line : golden_lines("accelerate/estimate_memory.jsonl")) {
    SCOPED_TRACE(line["model"].get<std::string>());
    const ModelSize size = model_size_of(line["config"], "config.json");
    EXPECT_EQ(size.parameters, line["parameters"]);
    EXPECT_EQ(size.largest_layer_bytes, line["largest"]);
    EXPECT_EQ(size.total_bytes, line["total"]);
    const std::vector<std::string> dtypes = line["dtypes"];
    EXPECT_EQ(memory_table(line["model"], size, dtypes), line["table"].get<std::string>());
    ++compared;
  }
  EXPECT_EQ(compared, 6);
}

TEST(MemoryEstimate, ATableHasAnyNumberOfColumns) {
  EXPECT_EQ(boxed_table("two", {{"a", "bcdef"}, {"1", "2"}}),
            "┌───────┐\n│  two  │\n├─┬─────┤\n│a│bcdef│\n├─┼─────┤\n│1│  2  │\n└─┴─────┘\n");
}

TEST(MemoryEstimate, FaultsHaveSentences) {
  EXPECT_THAT(message_of<ConfigError>([] {
                model_size_of({{"model_type", "x"}}, "c.json");
              }),
              HasSubstr("c.json: model_type \"x\" is not known"));
  EXPECT_THAT(message_of<ConfigError>([] {
                model_size_of({{"model_type", "gpt2"}}, "c.json");
              }),
              HasSubstr("c.json: n_embd must be an integer"));
  const std::vector<std::string> dtypes = {"fp8"};
  EXPECT_THAT(message_of<ConfigError>([&] { memory_table("m", {}, dtypes); }),
              HasSubstr("--dtypes fp8 is not known"));
}

}  // namespace
}  // namespace megatron::frontends
