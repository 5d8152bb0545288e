#include "megatron/data/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "megatron/core/error.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class NpyTest : public testing::Test {
 protected:
  std::filesystem::path path() const { return directory_.path() / "a.npy"; }

  std::string message_of(const std::string& content) const {
    write_text_atomically(path(), content);
    try {
      static_cast<void>(NpyFile(path()).values<int32_t>());
    } catch (const FormatError& error) {
      return error.what();
    }
    return "nothing thrown";
  }

  static std::string with_dictionary(const std::string& dictionary, char version = 1) {
    std::string text = "\x93NUMPY";
    text += version;
    text += '\0';
    text += static_cast<char>(dictionary.size());
    text += '\0';
    if (version > 1) text += {'\0', '\0'};
    return text + dictionary;
  }

  TemporaryDirectory directory_;
};

TEST_F(NpyTest, HeaderIsNumpys) {
  const std::string header = npy_header("<i4", std::vector<int64_t>{13, 2});
  EXPECT_EQ(header.size(), 128U);
  EXPECT_EQ(header.substr(0, 10), std::string("\x93NUMPY\1\0\x76\0", 10));
  EXPECT_THAT(header,
              HasSubstr("{'descr': '<i4', 'fortran_order': False, 'shape': (13, 2), }       "));
  EXPECT_EQ(header.back(), '\n');
  EXPECT_THAT(npy_header("<i8", std::vector<int64_t>{12}), HasSubstr("'shape': (12,), }"));
  EXPECT_THAT(npy_header("<i8", std::vector<int64_t>{}), HasSubstr("'shape': (), }"));
}

TEST_F(NpyTest, ReadsWhatItWrote) {
  const NpyArray<int32_t> saved({1, -2, 3, 4, 5, 6}, {3, 2});
  saved.save(path());
  const NpyArray<int32_t> loaded{NpyFile(path())};
  EXPECT_THAT(loaded.values(), ElementsAre(1, -2, 3, 4, 5, 6));
  EXPECT_THAT(loaded.shape(), ElementsAre(3, 2));
  EXPECT_EQ(loaded[1], -2);
}

TEST_F(NpyTest, ReadsOtherHeaders) {
  const std::string data("\7\0\0\0", 4);
  write_text_atomically(
      path(),
      with_dictionary("{\"shape\":(1,),'fortran_order':False , 'descr': '<i4'}    \n\n", 3) + data);
  EXPECT_THAT(NpyFile(path()).values<int32_t>(), ElementsAre(7));
}

TEST_F(NpyTest, NamesTheDamage) {
  const std::string good = "{'descr': '<i4', 'fortran_order': False, 'shape': (1,), }\n";
  EXPECT_THAT(message_of("not numpy at all"), HasSubstr("numpy header"));
  EXPECT_THAT(message_of(""), HasSubstr("numpy header"));
  EXPECT_THAT(message_of(with_dictionary(good, 9)), HasSubstr("version 9"));
  EXPECT_THAT(message_of(with_dictionary(good).substr(0, 40)), HasSubstr("has 40 bytes"));
  EXPECT_THAT(message_of(with_dictionary(good) + "123"), HasSubstr("has 3 bytes of data"));
  EXPECT_THAT(message_of(with_dictionary("{'descr': '>i4', 'fortran_order': False}")),
              HasSubstr("'>i4'"));
  EXPECT_THAT(message_of(with_dictionary("{'descr': '<i4', 'fortran_order': True}")),
              HasSubstr("Fortran"));
  EXPECT_THAT(message_of(with_dictionary("{'descr': '<i4', 'fortran_order': False}")),
              HasSubstr("no 'shape'"));
  EXPECT_THAT(message_of(with_dictionary(
                  "{'descr': '<i4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}")),
              HasSubstr("too large"));
  EXPECT_THAT(
      message_of(with_dictionary("{'descr': '<i4', 'fortran_order': False, 'shape': (x,)}")),
      HasSubstr("tuple of sizes"));
  EXPECT_THAT(
      message_of(with_dictionary("{'descr': '<i8', 'fortran_order': False, 'shape': (0,)}")),
      HasSubstr("holds '<i8', expected '<i4'"));
  EXPECT_THAT(message_of(with_dictionary("{'descr': 3, 'fortran_order': False, 'shape': (0,)}")),
              HasSubstr("not a name"));
}

}  // namespace
}  // namespace megatron
