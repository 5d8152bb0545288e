#include "megatron/core/hub_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "megatron/core/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class HubCacheTest : public testing::Test {
 protected:
  HubCacheTest() {
    add("models--gpt2");
    add("models--org--name");
    add("datasets--texts");
    fs::create_directories(cache_ / "models--unfinished" / "refs");
  }

  void add(const std::string& folder) const {
    fs::create_directories(cache_ / folder / "refs");
    fs::create_directories(cache_ / folder / "snapshots" / "abc");
    std::ofstream(cache_ / folder / "refs" / "main") << "abc\n";
  }

  EnvironmentLookup environment(std::map<std::string, std::string> values) const {
    return [values = std::move(values)](const char* name) {
      const auto found = values.find(name);
      return found == values.end() ? nullptr : found->second.c_str();
    };
  }

  TemporaryDirectory directory_;
  fs::path cache_ = directory_.path() / "hub";
  EnvironmentLookup variable_ = environment({{"HF_HOME", directory_.path().string()}});
};

TEST_F(HubCacheTest, FindsNames) {
  EXPECT_EQ(model_path("gpt2", "--load", variable_), cache_ / "models--gpt2/snapshots/abc");
  EXPECT_EQ(model_path("org/name", "--load", variable_),
            cache_ / "models--org--name/snapshots/abc");
  EXPECT_EQ(dataset_path("texts", "--data", variable_), cache_ / "datasets--texts/snapshots/abc");
  EXPECT_EQ(find_model_path("gpt2", variable_), cache_ / "models--gpt2/snapshots/abc");
}

TEST_F(HubCacheTest, PathsComeFirst) {
  EXPECT_EQ(model_path(cache_.string(), "--load", variable_), cache_);
}

TEST_F(HubCacheTest, NamesWhatIsMissing) {
  EXPECT_EQ(find_model_path("texts", variable_), std::nullopt);
  EXPECT_EQ(find_model_path("unfinished", variable_), std::nullopt);
  EXPECT_THAT(message_of<ConfigError>([&] { model_path("other", "--load", variable_); }),
              HasSubstr("--load other: there is no such file or folder, and no model of that name "
                        "in " +
                        cache_.string()));
  EXPECT_THAT(message_of<ConfigError>([&] { dataset_path("gpt2", "--data", variable_); }),
              HasSubstr("no data set of that name"));
}

TEST_F(HubCacheTest, VariablesNameTheCache) {
  const std::string other = (directory_.path() / "other").string();
  EXPECT_TRUE(find_model_path(
      "gpt2",
      environment({{"HF_HUB_CACHE", cache_.string()}, {"HF_HOME", other}, {"HOME", other}})));
  EXPECT_FALSE(find_model_path(
      "gpt2", environment({{"HF_HUB_CACHE", other}, {"HF_HOME", directory_.path().string()}})));
  fs::create_directories(directory_.path() / "huggingface");
  fs::rename(cache_, directory_.path() / "huggingface" / "hub");
  EXPECT_TRUE(
      find_model_path("gpt2", environment({{"XDG_CACHE_HOME", directory_.path().string()}})));
}

}  // namespace
}  // namespace megatron
