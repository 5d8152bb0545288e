#include "megatron/data/data_paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Items = std::vector<std::string>;

TEST(DataPathsTest, ReadsEveryForm) {
  const Blend one = parse_blend(Items{"a"}, "--data-path");
  EXPECT_THAT(one.prefixes, ElementsAre("a"));
  EXPECT_THAT(one.weights, IsEmpty());
  const Blend weighted = parse_blend(Items{"0.3", "a", "7", "b"}, "--data-path");
  EXPECT_THAT(weighted.prefixes, ElementsAre("a", "b"));
  EXPECT_THAT(weighted.weights, ElementsAre(0.3, 7.0));
  const Blend plain = parse_blend(Items{"a", "b", "c"}, "--data-path");
  EXPECT_THAT(plain.prefixes, ElementsAre("a", "b", "c"));
  EXPECT_THAT(plain.weights, IsEmpty());
  EXPECT_THAT(parse_blend(Items{}, "--data-path").prefixes, IsEmpty());
}

// Megatron-DeepSpeed's --train-weighted-split-paths.
TEST(DataPathsTest, ReadsWeightedGroups) {
  const Blend group =
      parse_blend(Items{"TRAIN: 0.3 0:0.9 a, 0.7 0.5:1 b/c"}, "--train-weighted-split-paths");
  EXPECT_THAT(group.prefixes, ElementsAre("a", "b/c"));
  EXPECT_THAT(group.weights, ElementsAre(0.3, 0.7));
  ASSERT_EQ(group.parts.size(), 2u);
  EXPECT_EQ(group.parts[0].lower, 0);
  EXPECT_EQ(group.parts[0].upper, 0.9);
  EXPECT_EQ(group.parts[1].lower, 0.5);
  // Without quotes the shell makes words of it.
  EXPECT_THAT(parse_blend(Items{"VALID:", "1", "0:1", "a"}, "--valid-data-path").prefixes,
              ElementsAre("a"));
  for (const char* wrong : {"A: 0.3 0:0.9", "A: x 0:1 a", "A: 1 0.9:0.1 a", "A: 1 0:2 a",
                            "A:", "A: 1 0:1 a 1 0:1 b", "A: 1 0:1 a, B: 1 0:1 b", "A: 0 0:1 a"}) {
    EXPECT_THROW(parse_blend(Items{wrong}, "--train-data-path"), ConfigError) << wrong;
  }
}

TEST(DataPathsTest, ReadsSeveralGroupsToEvaluate) {
  const std::string flag = "--valid-weighted-split-paths";
  const std::vector<Blend> groups =
      parse_blends(Items{"first: 1 0:0.5 a", "second: 0.2 0:1 b, 0.8 0.5:1 c"}, flag);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].name, "first");
  EXPECT_THAT(groups[0].prefixes, ElementsAre("a"));
  EXPECT_EQ(groups[1].name, "second");
  EXPECT_THAT(groups[1].prefixes, ElementsAre("b", "c"));
  EXPECT_THAT(groups[1].weights, ElementsAre(0.2, 0.8));
  EXPECT_THAT(parse_blends(Items{}, flag), IsEmpty());
  EXPECT_EQ(parse_blends(Items{"0.3", "a", "0.7", "b"}, flag).at(0).name, "");
  EXPECT_THAT(message_of<ConfigError>([&] {
                parse_blends(Items{"A: 1 0:1 a", "A: 1 0:1 b"}, flag);
              }),
              testing::HasSubstr("two groups have the name A"));
  EXPECT_THAT(message_of<ConfigError>([&] {
                parse_blend(Items{"A: 1 0:1 a", "B: 1 0:1 b"}, "--train-data-path");
              }),
              testing::HasSubstr("--train-data-path: 2 groups; training reads one blend"));
}

TEST(DataPathsTest, SeparatesValidationSets) {
  const auto names_of = [](const DataConfig& config) {
    std::vector<std::string> names;
    const DataPaths paths = data_paths(config);
    for (const Blend& blend : paths.per_split[1]) {
      EXPECT_EQ(blend.prefixes.size(), 1u);
      EXPECT_TRUE(blend.weights.empty());
      names.push_back(blend.name);
    }
    return names;
  };
  DataConfig config;
  config.train_data_path = {"1", "t", "2", "u"};
  config.valid_data_path = {"x/a", "y/b"};
  config.multiple_validation_sets = true;
  EXPECT_THAT(names_of(config), ElementsAre("a", "b"));
  EXPECT_THAT(data_paths(config).per_split[0].at(0).prefixes, ElementsAre("t", "u"));
  config.validation_set_names = {"web", "code"};
  EXPECT_THAT(names_of(config), ElementsAre("web", "code"));
  const auto refusal = [&](std::vector<std::string> items, std::vector<std::string> names) {
    config.valid_data_path = std::move(items);
    config.validation_set_names = std::move(names);
    return message_of<ConfigError>([&] { data_paths(config); });
  };
  EXPECT_THAT(refusal({"0.3", "a", "0.7", "b"}, {}),
              testing::HasSubstr("give their prefixes alone"));
  EXPECT_THAT(refusal({"a", "b"}, {"web"}), testing::HasSubstr("1 names for the 2 datasets"));
  EXPECT_THAT(refusal({"x/a", "y/a"}, {}),
              testing::HasSubstr("x/a and y/a would both be logged as a; give --validation-set"));
  EXPECT_THAT(refusal({"a", "b"}, {"web", "web"}), testing::HasSubstr("both be logged as web"));
  config = DataConfig();
  config.multiple_validation_sets = true;
  EXPECT_THAT(problems(config).at(0), testing::HasSubstr("give --valid-data-path"));
  config = DataConfig();
  config.validation_set_names = {"web"};
  EXPECT_THAT(problems(config).at(0), testing::HasSubstr("is for --multiple-validation-sets"));
}

TEST(DataPathsTest, RejectsMixedForms) {
  EXPECT_THROW(parse_blend(Items{"0.3", "a", "b"}, "--data-path"), ConfigError);
  EXPECT_THROW(parse_blend(Items{"0.3", "a", "b", "0.7"}, "--data-path"), ConfigError);
  EXPECT_THROW(parse_blend(Items{"0", "a", "1", "b"}, "--data-path"), ConfigError);
  EXPECT_THROW(parse_blend(Items{"-1", "a", "1", "b"}, "--data-path"), ConfigError);
}

TEST(DataPathsTest, ReadsFiles) {
  const TemporaryDirectory directory;
  const std::string path = (directory.path() / "paths").string();
  DataConfig words;
  words.data_args_path = path;
  write_text_atomically(path, " 0.3 a\n0.7\tb\n");
  EXPECT_THAT(data_paths(words).all.prefixes, ElementsAre("a", "b"));

  DataConfig splits;
  splits.per_split_data_args_path = path;
  write_text_atomically(path, R"({"train": ["0.3", "a", 0.7, "b"], "test": "c d", "valid": null})");
  const DataPaths paths = data_paths(splits);
  EXPECT_THAT(paths.per_split[0].at(0).weights, ElementsAre(0.3, 0.7));
  EXPECT_THAT(paths.per_split[1], IsEmpty());
  EXPECT_THAT(paths.per_split[2].at(0).prefixes, ElementsAre("c", "d"));
  write_text_atomically(path, "[1]");
  EXPECT_THROW(data_paths(splits), FormatError);
  write_text_atomically(path, R"({"train": [{}]})");
  EXPECT_THROW(data_paths(splits), FormatError);
}

TEST(DataConfigTest, SourcesExcludeEachOther) {
  DataConfig config;
  config.data_path = {"a"};
  EXPECT_THAT(problems(config), IsEmpty());
  config.data_args_path = "b";
  EXPECT_EQ(problems(config).size(), 1U);
  config.data_args_path.clear();
  config.mock_data = true;
  EXPECT_EQ(problems(config).size(), 1U);
}

TEST(DataPathsTest, MissingFilesAreKnownBeforeTheyAreOpened) {
  const TemporaryDirectory folder;
  const auto prefix = [&](const char* name) { return (folder.path() / name).string(); };
  for (const char* file : {"a.idx", "a.bin", "b.idx"}) write_text_atomically(prefix(file), "");
  DataConfig config;
  EXPECT_THAT(path_problems(config, true), IsEmpty());
  config.data_path = {prefix("a")};
  EXPECT_THAT(path_problems(config, true), IsEmpty());
  config.data_path = {"0.5", prefix("b"), "0.5", prefix("c.bin")};
  EXPECT_THAT(path_problems(config, true),
              ElementsAre(testing::StartsWith(prefix("b.bin") + ": not found"),
                          testing::HasSubstr("give the prefix " + prefix("c") + " without .bin")));
  config.data_path = {"0.5", prefix("a"), "x"};
  EXPECT_THAT(path_problems(config, true), testing::SizeIs(1));
  config.data_path.clear();
  config.train_data_path = {prefix("a")};
  config.valid_data_path = {prefix("d")};
  EXPECT_THAT(path_problems(config, true), testing::SizeIs(1));
  EXPECT_THAT(path_problems(config, false), IsEmpty());
}

}  // namespace
}  // namespace megatron
