#include "megatron/comm/secret.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <thread>
#include <vector>

#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron::comm {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Secret secret_with(const Variables& variables, bool is_one_host) {
  return secret_of_job(is_one_host, [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

const std::string kText = "sixteen letters!";

// RFC 4231, test case 2.
TEST(SecretTest, DigestsAsTheStandardSays) {
  std::string hex;
  for (const uint8_t byte : Secret("Jefe").digest("what do ya want for nothing?")) {
    hex += fmt::format("{:02x}", byte);
  }
  EXPECT_EQ(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(SecretTest, RandomOnesDiffer) {
  EXPECT_NE(Secret::random().text(), Secret::random().text());
  EXPECT_EQ(Secret::random().text().size(), 64u);
  EXPECT_NE(Secret(kText).derived("ranks").text(), Secret(kText).derived("hosts").text());
  EXPECT_FALSE(is_equal(Secret(kText).digest("x"), Secret(kText).digest("y")));
}

TEST(SecretTest, TheEnvironmentComesFirst) {
  const TemporaryDirectory directory;
  const std::string file = (directory.path() / "secret").string();
  std::ofstream(file) << "another secret of the file\n";
  fs::permissions(file, fs::perms::owner_read);
  Variables variables = {{"HOME", directory.path().string()}, {"MEGATRON_SECRET_FILE", file}};
  EXPECT_EQ(secret_with(variables, false).text(), "another secret of the file");
  variables["MEGATRON_SECRET"] = kText;
  EXPECT_EQ(secret_with(variables, false).text(), kText);
  EXPECT_FALSE(fs::exists(directory.path() / ".megatron"));
}

TEST(SecretTest, ShortOnesAndPublicFilesAreRefused) {
  const TemporaryDirectory directory;
  EXPECT_THAT(message_of<ConfigError>([] {
                secret_with({{"MEGATRON_SECRET", "short"}}, true);
              }),
              AllOf(HasSubstr("MEGATRON_SECRET has 5 characters, 16 are needed"),
                    HasSubstr("openssl rand -hex 32"), testing::Not(HasSubstr("short"))));
  const std::string file = (directory.path() / "open").string();
  std::ofstream(file) << kText;
  fs::permissions(file, fs::perms::owner_read | fs::perms::group_read);
  EXPECT_THAT(message_of<ConfigError>([&] {
                secret_with({{"MEGATRON_SECRET_FILE", file}}, true);
              }),
              AllOf(HasSubstr(file + " has mode 440"), HasSubstr("chmod 600")));
  EXPECT_THAT(message_of<ConfigError>([&] {
                secret_with({{"MEGATRON_SECRET_FILE", file + "x"}}, true);
              }),
              HasSubstr("there is no such file"));
}

// Processes that start at once agree on the file that one of them makes.
TEST(SecretTest, TheUsersOwnFileIsMadeOnce) {
  const TemporaryDirectory home;
  const Variables variables = {{"HOME", home.path().string()}};
  std::vector<std::string> texts(8);
  std::vector<std::thread> threads;
  for (std::string& text : texts) {
    threads.emplace_back([&] { text = secret_with(variables, false).text(); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(texts[0].size(), 64u);
  for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
  struct stat status {};
  ASSERT_EQ(::stat((home.path() / ".megatron/secret").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(std::distance(fs::directory_iterator(home.path() / ".megatron"), {}), 1);
}

TEST(SecretTest, SeveralHostsNeedOne) {
  EXPECT_TRUE(secret_with({}, true).is_empty());
  EXPECT_THAT(message_of<ConfigError>([] { secret_with({}, false); }),
              AllOf(HasSubstr("ranks on several hosts need a secret, and HOME is not set"),
                    HasSubstr("set MEGATRON_SECRET to the same text on all hosts")));
}

}  // namespace
}  // namespace megatron::comm
