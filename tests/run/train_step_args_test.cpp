#include "megatron/run/train_step_args.h"

#include <gmock/gmock.h>

#include "megatron/core/error.h"
#include "tests/support/message_of.h"

namespace megatron {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TrainStepArgs args_of(const std::vector<std::string>& words) { return TrainStepArgs(words); }

TEST(TrainStepArgsTest, ReadsValuesOfEveryType) {
  const TrainStepArgs args = args_of({"alpha=0.5", "count=7", "keys=1,-2,3", "name=a=b", "none="});
  EXPECT_EQ(args.number("alpha", 0), 0.5);
  EXPECT_EQ(args.integer("count", 0), 7);
  EXPECT_THAT(args.integers("keys", {}), ElementsAre(1, -2, 3));
  EXPECT_EQ(args.text("name", ""), "a=b") << "a value may have an equals sign";
  EXPECT_EQ(args.text("none", "default"), "");
  args.expect_all_used();
}

TEST(TrainStepArgsTest, HasDefaults) {
  const TrainStepArgs args;
  EXPECT_EQ(args.number("alpha", 2), 2);
  EXPECT_EQ(args.integer("count", 3), 3);
  EXPECT_THAT(args.integers("keys", {4}), ElementsAre(4));
  EXPECT_EQ(args.text("name", "x"), "x");
  args.expect_all_used();
}

TEST(TrainStepArgsTest, RefusesOtherTypes) {
  for (const char* word : {"alpha", "=1"}) {
    EXPECT_THAT(message_of<ConfigError>([&] { args_of({word}); }),
                AllOf(HasSubstr(word), HasSubstr("key=value")));
  }
  const TrainStepArgs args = args_of({"alpha=half", "count=1.5", "keys=1,,2"});
  EXPECT_THAT(message_of<ConfigError>([&] { args.number("alpha", 0); }),
              HasSubstr("alpha=half: must be a number"));
  EXPECT_THAT(message_of<ConfigError>([&] { args.integer("count", 0); }),
              HasSubstr("count=1.5: must be an integer"));
  EXPECT_THAT(message_of<ConfigError>([&] { args.integers("keys", {}); }), HasSubstr("keys="));
}

TEST(TrainStepArgsTest, NamesUnknownKeys) {
  const TrainStepArgs args = args_of({"alpha=1", "beta=2"});
  args.number("alpha", 0);
  EXPECT_THAT(message_of<ConfigError>([&] { args.expect_all_used(); }),
              HasSubstr("does not know beta; it knows alpha"));
}

}  // namespace
}  // namespace megatron
