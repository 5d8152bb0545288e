#include "megatron/core/checksums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ChecksumsTest : public testing::Test {
 protected:
  ChecksumsTest() {
    write("weights", "123456789");
    std::filesystem::create_directory(folder() / "templates");
    write("templates/a b.jinja", "{{ text }}");
    write("empty", "");
    write_checksums(folder());
  }

  const std::filesystem::path& folder() const { return directory_.path(); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder() / name, std::ios::binary) << text;
  }

  const TemporaryDirectory directory_;
};

// 0xe3069283 is the check value of CRC-32C, that of "123456789".
TEST_F(ChecksumsTest, ListsEveryFileBelow) {
  const std::string text = read_text(folder() / kChecksumsFile);
  EXPECT_THAT(text, testing::StartsWith("crc32c 00000000 0 empty\n"));
  EXPECT_THAT(text, testing::EndsWith("\ncrc32c e3069283 9 weights\n"));
  EXPECT_THAT(text, HasSubstr(" 10 templates/a b.jinja\n"));
  write_checksums(folder());
  EXPECT_EQ(read_text(folder() / kChecksumsFile), text);
  expect_checksums(folder());
}

TEST_F(ChecksumsTest, RefusesEveryChangedFile) {
  write("templates/a b.jinja", "{{ tex_ }}");
  EXPECT_THAT(message_of<FormatError>([&] { expect_checksums(folder()); }),
              AllOf(HasSubstr("templates/a b.jinja: has 10 bytes with CRC-32C "),
                    HasSubstr("delete the list")));
  write("weights", "12345678");
  EXPECT_THAT(message_of<FormatError>([&] { expect_checksum(folder() / "weights"); }),
              HasSubstr("weights: has 8 bytes with CRC-32C "));
  expect_checksum(folder() / "empty");
  std::filesystem::remove(folder() / "empty");
  EXPECT_THROW(expect_checksums(folder()), IoError);
}

TEST_F(ChecksumsTest, ReadsNothingWithoutAList) {
  write("new", "text");
  expect_checksum(folder() / "new");
  std::filesystem::remove(folder() / kChecksumsFile);
  write("weights", "other");
  expect_checksums(folder());
  expect_checksum(folder() / "weights");
}

TEST_F(ChecksumsTest, RefusesADamagedList) {
  for (const std::string line :
       {"crc32 e3069283 9 weights", "crc32c e306928 9 weights", "crc32c e306928g 9 weights",
        "crc32c e3069283 nine weights", "crc32c e3069283 9", "\x80"}) {
    write(kChecksumsFile, line);
    EXPECT_THAT(message_of<FormatError>([&] { expect_checksums(folder()); }),
                HasSubstr("line 1 is not \"crc32c SUM BYTES NAME\""))
        << line;
  }
}

}  // namespace
}  // namespace megatron
