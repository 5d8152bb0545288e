#include "megatron/core/read_in_child.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

#include "megatron/core/error.h"
#include "tests/support/message_of.h"
#include "tests/support/sanitizers.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::HasSubstr;

class ReadInChildTest : public testing::Test {
 protected:
  template <class Read>
  std::string failure_of(const Read& read) const {
    return message_of<FormatError>([&] { read_in_child(file_, "A library", read); });
  }

  TemporaryDirectory directory_;
  std::string file_ = directory_.write("a.bin", "12345");
};

TEST_F(ReadInChildTest, ReturnsAllBytes) {
  const std::string long_one(300'000, '\0');
  EXPECT_EQ(read_in_child(file_, "A library", [&] { return long_one + "end"; }), long_one + "end");
  EXPECT_EQ(read_in_child(file_, "A library", [] { return std::string(); }), "");
}

TEST_F(ReadInChildTest, ACrashIsASentence) {
  EXPECT_EQ(failure_of([]() -> std::string {
              ::signal(SIGSEGV, SIG_DFL);
              ::raise(SIGSEGV);
              return {};
            }),
            file_ +
                ": A library crashes (Segmentation fault) when it reads this file, which is "
                "damaged; delete it, so that it is made again");
  EXPECT_THAT(failure_of([]() -> std::string { ::_exit(3); }), HasSubstr("ends with code 3"));
}

TEST_F(ReadInChildTest, ErrorsKeepTheirText) {
  EXPECT_EQ(failure_of([]() -> std::string { throw IoError("the text"); }), "the text");
  EXPECT_THAT(failure_of([]() -> std::string { throw std::runtime_error("raw"); }),
              HasSubstr("A library fails (raw) when it reads this file"));
}

TEST_F(ReadInChildTest, MemoryHasALimit) {
  const std::string failure = failure_of([] {
    std::string bytes;
    bytes.resize(size_t{1} << 40);
    return bytes;
  });
  if (MG_ADDRESS_SANITIZER + MG_THREAD_SANITIZER == 0) {
    EXPECT_THAT(failure, HasSubstr("needs more than 1024 MiB"));
  }
  EXPECT_THAT(failure, HasSubstr("which is damaged"));
}

TEST_F(ReadInChildTest, AMissingFileIsNamed) {
  EXPECT_THAT(message_of<IoError>([&] {
                read_in_child(directory_.path() / "none", "A library",
                              [] { return std::string(); });
              }),
              HasSubstr("none: cannot open: No such file"));
}

}  // namespace
}  // namespace megatron
