#include "annex/retro/data/hdf5_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "annex/retro/data/mapped_rows.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "tests/support/message_of.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::filesystem::path golden(const char* name) {
  return std::filesystem::path(source_path("tests/golden/retro")) / name;
}

TEST(Hdf5FileTest, ReadsArraysOfH5py) {
  const Hdf5File file(golden("train.hdf5"));
  EXPECT_THAT(file.shape("chunks"), ElementsAre(4, 5));
  EXPECT_THAT(file.read_rows<uint32_t>("chunks", 1, 2), ElementsAre(0, 0, 4, 6, 2, 0, 1, 0, 4, 5));
  EXPECT_THAT(file.read<uint64_t>("n_written"), ElementsAre(4));
  EXPECT_FALSE(file.find("neighbors"));
  EXPECT_THROW(file.read<uint32_t>("neighbors"), FormatError);
  EXPECT_THROW(file.read_rows<uint32_t>("chunks", 3, 2), FormatError);
}

TEST(Hdf5FileTest, ReadsOtherLayoutsAndTypes) {
  const Hdf5File file(golden("chunked.hdf5"));
  EXPECT_FALSE(file.offset_of<int64_t>("neighbors"));
  EXPECT_FALSE(file.offset_of<int64_t>("big_endian"));
  EXPECT_THAT(file.read<int64_t>("big_endian"), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(file.read<uint32_t>("none"), ElementsAre());
}

TEST(Hdf5FileTest, RowsAreMappedOrRead) {
  const MappedRows<uint32_t> mapped(golden("train.hdf5"), "chunks");
  EXPECT_EQ(mapped.count(), 4);
  EXPECT_THAT(mapped[3], ElementsAre(1, 0, 0, 3, 1));
  const MappedRows<int64_t> read(golden("chunked.hdf5"), "neighbors");
  EXPECT_EQ(read.count(), 6);
  EXPECT_THAT(read[5], ElementsAre(9, 10));
  EXPECT_EQ(MappedRows<uint32_t>(golden("chunked.hdf5"), "none").count(), 0);
}

TEST(Hdf5FileTest, ReadsWhatItWrote) {
  const TemporaryDirectory directory;
  const auto write = [&](const char* name) {
    Hdf5Writer writer(directory.path() / name);
    writer.add<float>("data", std::vector<float>{0.5F, -1, 2, 3, 4, 5}, {3, 2});
    writer.add<uint32_t>("chunks", std::vector<uint32_t>{}, {0, 5});
    writer.commit();
    return directory.path() / name;
  };
  {
    const Hdf5Writer writer(directory.path() / "a.hdf5");
    EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  const std::filesystem::path path = write("a.hdf5");
  const Hdf5File file(path);
  EXPECT_THAT(file.read<float>("data"), ElementsAre(0.5F, -1, 2, 3, 4, 5));
  EXPECT_THAT(file.shape("chunks"), ElementsAre(0, 5));
  ASSERT_TRUE(file.offset_of<float>("data"));
  const MappedRows<float> rows(path, "data");
  EXPECT_THAT(rows[2], ElementsAre(4, 5));
  EXPECT_EQ(read_text(path), read_text(write("b.hdf5")));  // has no times
  EXPECT_EQ(read_text(write("a.hdf5")), read_text(path));  // the file may be open
}

TEST(Hdf5FileTest, RefusesDamagedFiles) {
  const TemporaryDirectory directory;
  EXPECT_THROW(Hdf5File(directory.path() / "absent.hdf5"), IoError);
  const std::string text = read_text(golden("train.hdf5"));
  const std::string cut = directory.write("cut.hdf5", text.substr(0, text.size() / 2));
  EXPECT_THAT(message_of([&] { Hdf5File file(cut); }), HasSubstr("not a complete HDF5 file"));
  EXPECT_THROW(Hdf5File(directory.write("text.hdf5", "no HDF5")), FormatError);
}

// HDF5's library crashes, or asks for all memory, on some of these files; here each is read or
// refused.
TEST(Hdf5FileTest, NoDamageEndsTheProcess) {
  struct Damage {
    const char* file;
    size_t at;
    int byte;
  };
  constexpr Damage kDamages[] = {{"train.hdf5", 836, 205},  {"train.hdf5", 837, 8},
                                 {"train.hdf5", 846, 183},  {"train.hdf5", 845, 16},
                                 {"train.hdf5", 843, 81},   {"train.hdf5", 120, 255},
                                 {"chunked.hdf5", 969, 86}, {"chunked.hdf5", 839, 55}};
  const TemporaryDirectory directory;
  int refused = 0;
  for (const Damage& damage : kDamages) {
    std::string text = read_text(golden(damage.file));
    text[damage.at] = static_cast<char>(damage.byte);
    const std::string path = directory.write("damaged.hdf5", text);
    try {
      const Hdf5File file(path);
      for (const char* const name : {"chunks", "n_written", "neighbors"}) {
        if (file.find(name)) file.read<int64_t>(name);
      }
    } catch (const FormatError&) {
      ++refused;
    }
  }
  EXPECT_GE(refused, 4);
}

// A shape that the bytes do not hold costs no memory here.
TEST(Hdf5FileTest, ImpossibleShapesAreRefused) {
  const TemporaryDirectory directory;
  std::string text;
  {
    Hdf5Writer writer(directory.path() / "a.hdf5");
    writer.add<uint32_t>("data", std::vector<uint32_t>{1, 2, 3}, {3});
    writer.commit();
    text = read_text(directory.path() / "a.hdf5");
  }
  const std::string rows("\3\0\0\0\0\0\0\0", 8);
  size_t changed = 0;
  for (size_t at = text.find(rows); at != std::string::npos; at = text.find(rows, at + 8)) {
    text[at + 5] = 1;  // 2^40 + 3 rows
    ++changed;
  }
  ASSERT_GT(changed, 0u);
  const std::string path = directory.write("b.hdf5", text);
  EXPECT_THROW(Hdf5File(path).read<uint32_t>("data"), FormatError);
}

}  // namespace
}  // namespace megatron
