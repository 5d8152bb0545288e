#include "megatron/data/parquet/parquet_file.h"

#include <gmock/gmock.h>

#include <cstring>
#include <fstream>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "tests/support/message_of.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::filesystem::path parquet_file_golden(const std::string& name) {
  return source_path("tests/golden/parquet/" + name + ".parquet");
}

std::vector<std::string> texts_of(const std::filesystem::path& file,
                                  const std::string& column = "text") {
  std::vector<std::string> texts;
  ParquetFile(file).read_texts(column, [&](std::string_view text) { texts.emplace_back(text); });
  return texts;
}

// As make.py has them.
std::vector<std::string> golden_texts() {
  std::vector<std::string> texts;
  for (int i = 0; i < 5; ++i) {
    texts.insert(texts.end(), {"the first text", "", "ünï✓ 漢字",
                               std::string("a\nline and\0zero", 15), "the first text"});
  }
  texts.insert(texts.end(), {std::string(700, 'x'), "last"});
  return texts;
}

// Codecs, dictionaries, both versions of pages, several of them, several row groups.
TEST(ParquetFileTest, ReadsWhatArrowWrites) {
  for (const char* const name :
       {"snappy", "zstd_v2", "gzip_plain", "none_required", "none_v2_required"}) {
    EXPECT_EQ(texts_of(parquet_file_golden(name)), golden_texts()) << name;
    EXPECT_THAT(ParquetFile(parquet_file_golden(name)).columns(), ElementsAre("text", "number"))
        << name;
    EXPECT_EQ(ParquetFile(parquet_file_golden(name)).num_rows(), 27) << name;
  }
}

TEST(ParquetFileTest, WhatIsNotReadIsNamed) {
  EXPECT_THAT(message_of<FormatError>([] { texts_of(parquet_file_golden("brotli")); }),
              HasSubstr("brotli.parquet: the column text is packed by BROTLI, which is not read; "
                        "write the file with SNAPPY"));
  EXPECT_THAT(message_of<FormatError>([] { texts_of(parquet_file_golden("delta")); }),
              HasSubstr("delta.parquet: column text: the encoding DELTA_LENGTH_BYTE_ARRAY is not "
                        "read; write the file with PLAIN"));
  EXPECT_THAT(message_of<FormatError>([] { texts_of(parquet_file_golden("absent")); }),
              HasSubstr("absent.parquet: column text: row 2 has no text"));
  EXPECT_THAT(message_of<ConfigError>([] { texts_of(parquet_file_golden("snappy"), "number"); }),
              HasSubstr("the column number holds INT64, not texts; there are text, number"));
  EXPECT_THAT(message_of<ConfigError>([] { texts_of(parquet_file_golden("snappy"), "body"); }),
              HasSubstr("there is no column body; there are text, number"));
}

class DamagedParquetTest : public testing::Test {
 protected:
  std::string message_for(const std::string& bytes) const {
    const auto file = directory_.path() / "a.parquet";
    std::ofstream(file, std::ios::binary) << bytes;
    return message_of<FormatError>([&] { texts_of(file); });
  }
  TemporaryDirectory directory_;
};

TEST_F(DamagedParquetTest, IsNamed) {
  const std::string good = read_text(parquet_file_golden("snappy"));
  EXPECT_THAT(message_for("{\"text\": \"a\"}\n"), HasSubstr("a.parquet: is no Parquet file"));
  EXPECT_THAT(message_for(good.substr(0, good.size() - 1)), HasSubstr("its end is missing"));
  std::string large = good;
  std::memset(large.data() + large.size() - 8, 0x7f, 4);
  EXPECT_THAT(message_for(large), HasSubstr("its description is larger than the file"));
  std::string zeros = good;
  std::memset(zeros.data() + 4, 0, 2000);  // of the pages
  EXPECT_THAT(message_for(zeros), HasSubstr("column text: "));
  EXPECT_THAT(message_for(good.substr(0, good.size() - 4) + "PARE"), HasSubstr("is encrypted"));
}

}  // namespace
}  // namespace megatron
