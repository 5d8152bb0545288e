#include "megatron/checkpoint/directory_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>

#include "megatron/core/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(DirectoryLockTest, TheSecondRunIsToldWhoHoldsIt) {
  const TemporaryDirectory directory;
  std::optional<DirectoryLock> first(directory.path());
  EXPECT_THAT(message_of([&] { DirectoryLock second(directory.path()); }),
              AllOf(HasSubstr("--save " + directory.path().string() + ": another run saves there"),
                    HasSubstr("process " + std::to_string(::getpid()) + " on "),
                    HasSubstr("choose another directory")));
  first.reset();
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  const DirectoryLock third(directory.path());
}

// A process that was killed leaves the file, but no lock.
TEST(DirectoryLockTest, TheLockOfAKilledRunIsFree) {
  const TemporaryDirectory directory;
  const pid_t child = ::fork();
  if (child == 0) {
    const DirectoryLock lock(directory.path());
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(std::filesystem::exists(directory.path() / ".lock"));
  const DirectoryLock lock(directory.path());
}

}  // namespace
}  // namespace megatron
