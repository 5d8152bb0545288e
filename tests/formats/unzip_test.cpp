#include "megatron/formats/unzip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/formats/torch_writer.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// Made by Python's zipfile: release/, release/words.txt (deflated), tracker.txt (stored).
constexpr std::string_view kArchive =
    "504b0304140000000000000021000000000000000000000000000800000072656c656173652f504b03041400"
    "00000800000021001c074a7219000000900100001100000072656c656173652f776f7264732e7478742bc957"
    "484a55c82f52c8cb2f512801717420d4a8d880880100504b0304140000000000000021001d03479e07000000"
    "070000000b000000747261636b65722e74787472656c65617365504b01021403140000000000000021000000"
    "0000000000000000000008000000000000000000000080010000000072656c656173652f504b010214031400"
    "00000800000021001c074a72190000009001000011000000000000000000000080012600000072656c656173"
    "652f776f7264732e747874504b01021403140000000000000021001d03479e07000000070000000b00000000"
    "0000000000000080016e000000747261636b65722e747874504b05060000000003000300ae0000009e000000"
    "0000";
constexpr size_t kDeflated = 85;       // the first byte of the deflated entry
constexpr size_t kDeflatedBytes = 24;  // and one with the last bits

std::string bytes_of(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

class UnzipTest : public testing::Test {
 protected:
  const TemporaryDirectory directory_;
};

TEST_F(UnzipTest, FilesLieInADirectoryOfTheirOwnUntilTheEnd) {
  const fs::path archive = directory_.write("release.zip", bytes_of(kArchive));
  EXPECT_TRUE(is_archive_of_files(archive));
  std::string words;
  for (int i = 0; i < 20; ++i) words += "to be or not to be, ";
  fs::path unpacked;
  {
    const UnpackedArchive content(archive);
    unpacked = content.directory();
    EXPECT_EQ(read_text(unpacked / "release/words.txt"), words);
    EXPECT_EQ(read_text(unpacked / "tracker.txt"), "release");
  }
  EXPECT_FALSE(fs::exists(unpacked));
}

TEST_F(UnzipTest, TheDirectoryOfAKilledProgramIsRemoved) {
  const fs::path archive = directory_.write("release.zip", bytes_of(kArchive));
  const fs::path left = fs::temp_directory_path() / "megatron-unpacked-killed";
  fs::create_directories(left / "release");
  const UnpackedArchive first(archive);
  EXPECT_FALSE(fs::exists(left));
  const UnpackedArchive second(archive);
  EXPECT_EQ(read_text(first.directory() / "tracker.txt"), "release") << "it is in use";
}

TEST_F(UnzipTest, NoFlippedByteOfTheContentIsUnpacked) {
  for (size_t i = 0; i < kDeflatedBytes; ++i) {
    std::string bytes = bytes_of(kArchive);
    bytes[kDeflated + i] = static_cast<char>(bytes[kDeflated + i] ^ 0x10);
    const fs::path archive = directory_.write("release.zip", bytes);
    EXPECT_THAT(message_of<FormatError>([&] { UnpackedArchive content(archive); }),
                HasSubstr("the entry release/words.txt "))
        << i;
  }
}

TEST_F(UnzipTest, AFileOfTorchSaveIsNone) {
  const fs::path path = directory_.path() / "model.pt";
  TorchWriter writer(path);
  writer.pickle().begin_dict();
  writer.pickle().end_dict();
  writer.commit();
  EXPECT_FALSE(is_archive_of_files(path));
  EXPECT_FALSE(is_archive_of_files(directory_.write("text", "PK and so on")));
  EXPECT_FALSE(is_archive_of_files(directory_.path()));
}

}  // namespace
}  // namespace megatron
