#include "megatron/data/indexed_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "tests/support/captured_output.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class IndexedDatasetTest : public testing::Test {
 protected:
  std::string prefix(const std::string& name) const { return (directory_.path() / name).string(); }

  // Documents [[5, 6, 7], [8]] and [[9, 10]].
  std::string write_small(const std::string& name, TokenDtype dtype = TokenDtype::kUint16) const {
    IndexedDatasetBuilder builder(prefix(name), {.dtype = dtype});
    builder.add_sequence(std::vector<int32_t>{5, 6, 7});
    builder.add_sequence(std::vector<int32_t>{8});
    builder.end_document();
    builder.add_sequence(std::vector<int64_t>{9, 10});
    builder.end_document();
    builder.finalize();
    return prefix(name);
  }

  template <class E>
  static std::string message_of(const std::string& path) {
    try {
      const IndexedDataset dataset(path);
    } catch (const E& error) {
      return error.what();
    }
    return "nothing thrown";
  }

  static void overwrite(const std::string& path, size_t offset, const std::string& bytes) {
    std::string text = read_text(path);
    text.replace(offset, bytes.size(), bytes);
    write_text_atomically(path, text);
  }

  static std::vector<int64_t> values(TokenView view) {
    std::vector<int64_t> out(static_cast<size_t>(view.size()));
    view.copy_to(out);
    return out;
  }

  TemporaryDirectory directory_;
};

// Two documents and an empty one, as Megatron-LM core_r0.5.0 writes them.
TEST_F(IndexedDatasetTest, WritesReferenceBytes) {
  const std::vector<int32_t> first = {464, 2068, 7586, 21831, 50256};
  const std::vector<int32_t> second = {1212, 318, 257, 1332, 13, 198, 50256};
  {
    IndexedDatasetBuilder builder(prefix("toy"), {.dtype = token_dtype_for_vocab(50257)});
    builder.add_document(first, std::vector<int32_t>{5});
    builder.add_document(second, std::vector<int32_t>{7});
    builder.add_document({}, {});
    builder.finalize();
  }
  const std::string index = read_text(prefix("toy") + ".idx");
  const std::string want(
      "MMIDIDX\0\0"
      "\1\0\0\0\0\0\0\0"
      "\10"
      "\2\0\0\0\0\0\0\0"
      "\4\0\0\0\0\0\0\0"
      "\5\0\0\0\7\0\0\0"
      "\0\0\0\0\0\0\0\0\12\0\0\0\0\0\0\0"
      "\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0",
      90);
  EXPECT_EQ(index, want);
  EXPECT_EQ(read_text(prefix("toy") + ".bin").size(), 24U);
}

TEST_F(IndexedDatasetTest, ReadsWhatItWrote) {
  for (const TokenDtype dtype : {TokenDtype::kUint8, TokenDtype::kInt8, TokenDtype::kInt16,
                                 TokenDtype::kInt32, TokenDtype::kInt64, TokenDtype::kUint16}) {
    const IndexedDataset dataset(write_small("small", dtype));
    EXPECT_EQ(dataset.dtype(), dtype);
    EXPECT_EQ(dataset.num_sequences(), 3);
    EXPECT_EQ(dataset.num_documents(), 2);
    EXPECT_EQ(dataset.num_tokens(), 6);
    EXPECT_EQ(dataset.length(0), 3);
    EXPECT_EQ(dataset.document_start(1), 2);
    EXPECT_THAT(values(dataset.sequence(0)), ElementsAre(5, 6, 7));
    EXPECT_THAT(values(dataset.tokens(0, 1, 2)), ElementsAre(6, 7));
    EXPECT_THAT(values(dataset.tokens(0, 3, 0)), ElementsAre());
    EXPECT_THAT(values(dataset.slice(1, 3)), ElementsAre(8, 9, 10));
    EXPECT_EQ(dataset.sequence(2)[1], 10);
  }
}

TEST_F(IndexedDatasetTest, KeepsModesOfMultimodalData) {
  {
    IndexedDatasetBuilder builder(prefix("mm"), {.dtype = TokenDtype::kInt32, .multimodal = true});
    builder.add_sequence(std::vector<int32_t>{1, 2}, 0);
    builder.add_sequence(std::vector<int32_t>{3}, 1);
    builder.end_document();
    builder.finalize();
  }
  const IndexedDataset with_modes(prefix("mm"), {.multimodal = true});
  EXPECT_EQ(with_modes.mode(0), 0);
  EXPECT_EQ(with_modes.mode(1), 1);
  EXPECT_EQ(IndexedDataset(prefix("mm")).mode(1), 0);
}

TEST_F(IndexedDatasetTest, MergesDatasets) {
  const IndexedDataset small(write_small("small"));
  {
    IndexedDatasetBuilder builder(prefix("merged"), {.dtype = TokenDtype::kUint16});
    builder.add_dataset(small);
    builder.add_dataset(small);
    builder.finalize();
  }
  const IndexedDataset merged(prefix("merged"));
  EXPECT_EQ(merged.num_documents(), 4);
  EXPECT_EQ(merged.document_start(3), 5);
  EXPECT_THAT(values(merged.slice(0, 6)), ElementsAre(5, 6, 7, 8, 9, 10, 5, 6, 7, 8, 9, 10));

  IndexedDatasetBuilder wide(prefix("wide"), {.dtype = TokenDtype::kInt32});
  EXPECT_THROW(wide.add_dataset(small), DtypeError);
}

TEST_F(IndexedDatasetTest, LeavesNothingBehindUnlessFinalized) {
  {
    IndexedDatasetBuilder builder(prefix("lost"), {.dtype = TokenDtype::kUint16});
    builder.add_document(std::vector<int32_t>{1}, std::vector<int32_t>{1});
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
  EXPECT_FALSE(dataset_exists(prefix("lost")));
}

// A dataset of the same name stays whole until the new one is on the disk.
TEST_F(IndexedDatasetTest, AFailedWriteLeavesTheOldDataset) {
  const std::string old = write_small("a");
  IndexedDatasetBuilder builder(old, {.dtype = TokenDtype::kInt32});
  builder.add_sequence(std::vector<int32_t>(5000, 7));
  builder.end_document();

  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 1000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(builder.finalize(), IoError);
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);

  const IndexedDataset dataset(old);
  EXPECT_EQ(dataset.num_tokens(), 6);
  EXPECT_THAT(values(dataset.sequence(2)), ElementsAre(9, 10));
}

TEST_F(IndexedDatasetTest, EmptyDatasetIsValid) {
  {
    IndexedDatasetBuilder builder(prefix("empty"), {.dtype = TokenDtype::kUint16});
    builder.finalize();
  }
  const IndexedDataset dataset(prefix("empty"));
  EXPECT_EQ(dataset.num_sequences(), 0);
  EXPECT_EQ(dataset.num_documents(), 0);
}

TEST_F(IndexedDatasetTest, RejectsTokensThatDoNotFit) {
  IndexedDatasetBuilder builder(prefix("narrow"), {.dtype = TokenDtype::kUint16});
  EXPECT_THROW(builder.add_sequence(std::vector<int32_t>{65536}), Error);
  EXPECT_THROW(builder.add_sequence(std::vector<int32_t>{-1}), Error);
  builder.add_sequence(std::vector<int32_t>{65535});
  EXPECT_THROW(builder.finalize(), Error);  // the document is not closed
}

TEST_F(IndexedDatasetTest, NarrowsLongSequencesAndFindsTheTokenThatDoesNotFit) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 200; ++i) tokens.push_back(i * 327);
  {
    IndexedDatasetBuilder builder(prefix("long"), {.dtype = TokenDtype::kUint16});
    for (const size_t place : {0u, 63u, 64u, 127u, 150u, 199u}) {
      for (const int32_t wrong : {65536, -1, 1 << 30}) {
        std::vector<int32_t> some = tokens;
        some[place] = wrong;
        try {
          builder.add_sequence(some);
          ADD_FAILURE() << wrong << " at " << place;
        } catch (const Error& error) {
          EXPECT_THAT(error.what(), HasSubstr("token " + std::to_string(wrong) + " does not fit"));
        }
      }
    }
    builder.add_sequence(tokens);
    builder.end_document();
    builder.finalize();
  }
  const IndexedDataset dataset(prefix("long"));
  ASSERT_EQ(dataset.num_sequences(), 1);
  EXPECT_EQ(values(dataset.sequence(0)), std::vector<int64_t>(tokens.begin(), tokens.end()));
}

TEST_F(IndexedDatasetTest, RejectsRangesOutsideTheData) {
  const IndexedDataset dataset(write_small("small"));
  EXPECT_THROW(dataset.sequence(3), Error);
  EXPECT_THROW(dataset.sequence(-1), Error);
  EXPECT_THROW(dataset.tokens(0, 1, 3), Error);
  EXPECT_THROW(dataset.tokens(0, -1, 1), Error);
  EXPECT_THROW(dataset.slice(2, 4), Error);
}

TEST_F(IndexedDatasetTest, NamesTheMissingFile) {
  EXPECT_THAT(message_of<IoError>(prefix("none")), HasSubstr("none.idx: not found"));
  const std::string path = write_small("small");
  EXPECT_THAT(message_of<IoError>(path + ".bin"), HasSubstr("without .bin"));
  std::filesystem::remove(path + ".bin");
  EXPECT_THAT(message_of<IoError>(path), HasSubstr("small.bin: not found"));
}

TEST_F(IndexedDatasetTest, NamesTheDamage) {
  struct Case {
    size_t offset;
    std::string bytes;
    std::string message;
  };
  const std::string zero(1, '\0');
  for (const Case& c :
       std::vector<Case>{{0, "XX", "is this the .bin file?"},
                         {9, "\2", "version at offset 9 is 2"},
                         {17, "\6", "floating point"},
                         {17, "\11", "code 9 at offset 17 is not one of"},
                         {18, "\11", "the file is truncated"},
                         {25, "\177", "the file is truncated"},
                         {26, "\11", "the file is truncated"},
                         {34, "\377\377\377\377", "sequence 0 has length -1"},
                         {34, "\7", "small.bin: has 12 bytes, but sequence 0"},
                         {46 + 8, "\13", "small.bin: has 12 bytes, but sequence 1"},
                         {70, "\1", "runs from 1 to 3"},
                         {70 + 8, "\5", "document 1 at offset 78 starts after the next"},
                         {70 + 16, "\2", "runs from 0 to 2"}}) {
    const std::string path = write_small("small");
    overwrite(path + ".idx", c.offset, c.bytes);
    EXPECT_THAT(message_of<FormatError>(path), HasSubstr(c.message)) << "offset " << c.offset;
  }
}

TEST_F(IndexedDatasetTest, NamesTruncationWithSizes) {
  const std::string path = write_small("small");
  const std::string index = read_text(path + ".idx");
  write_text_atomically(path + ".idx", index.substr(0, index.size() - 1));
  EXPECT_THAT(message_of<FormatError>(path), HasSubstr("has 93 bytes"));
  EXPECT_THAT(message_of<FormatError>(path), HasSubstr("take 94"));
  write_text_atomically(path + ".idx", index.substr(0, 20));
  EXPECT_THAT(message_of<FormatError>(path), HasSubstr("header alone takes 34"));
  write_text_atomically(path + ".idx", "");
  EXPECT_THAT(message_of<FormatError>(path), HasSubstr("index has 0 bytes"));
  write_text_atomically(path + ".idx", index);
  write_text_atomically(path + ".bin", "12345678901");
  EXPECT_THAT(message_of<FormatError>(path), HasSubstr("has 11 bytes"));
}

TEST_F(IndexedDatasetTest, WarnsOfTheIndexOfSmallerData) {
  const std::string path = write_small("small");
  const auto warning = [&] {
    CapturedStderr captured_err;
    const IndexedDataset dataset(path);
    return captured_err.text();
  };
  EXPECT_EQ(warning(), "");
  write_text_atomically(path + ".bin", read_text(path + ".bin") + "abcd");
  EXPECT_THAT(warning(), testing::AllOf(HasSubstr(path + ".bin: has 16 bytes"),
                                        HasSubstr("have only 12"), HasSubstr("another dataset")));
}

// The bytes of 64-bit numbers.
std::string words_of(const std::vector<int64_t>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * 8};
}

// The index of documents [[5, 6, 7], [8]] and [[9, 10]] as Megatron-DeepSpeed writes it.
std::string small_tntidx() {
  return std::string("TNTIDX\0\0", 8) +
         words_of({1, 4, 4, 3, 3, 3, 0, 1, 2, 3, 0, 3, 4, 6, 3, 1, 2, 0, 2, 3});
}

TEST_F(IndexedDatasetTest, WritesAndReadsTntidx) {
  const std::string path = prefix("old");
  IndexedDatasetBuilder builder(path,
                                {.dtype = TokenDtype::kInt32, .format = IndexFormat::kTntidx});
  builder.add_document(std::vector<int32_t>{5, 6, 7, 8}, std::vector<int32_t>{3, 1});
  builder.add_document(std::vector<int32_t>{9, 10}, std::vector<int32_t>{2});
  builder.finalize();
  EXPECT_EQ(read_text(path + ".idx"), small_tntidx());
  EXPECT_EQ(read_text(path + ".bin").size(), 24u);

  const IndexedDataset data(path);
  EXPECT_EQ(data.format(), IndexFormat::kTntidx);
  EXPECT_EQ(data.dtype(), TokenDtype::kInt32);
  EXPECT_EQ(data.num_documents(), 2);
  EXPECT_EQ(data.num_sequences(), 3);
  EXPECT_EQ(data.num_tokens(), 6);
  EXPECT_EQ(data.document_start(1), 2);
  EXPECT_EQ(data.length(1), 1);
  EXPECT_EQ(data.mode(1), 0);
  std::vector<int64_t> tokens(4);
  data.slice(0, 2).copy_to(tokens);
  EXPECT_THAT(tokens, ElementsAre(5, 6, 7, 8));
  EXPECT_EQ(data.tokens(2, 1, 1)[0], 10);
}

TEST_F(IndexedDatasetTest, NamesWhatIsWrongWithTntidx) {
  const std::string path = write_small("old", TokenDtype::kInt32);
  struct Case {
    size_t offset;
    int64_t value;
    const char* message;
  };
  for (const Case& c :
       std::initializer_list<Case>{{8, 2, "index version at offset 8 is 2"},
                                   {16, 7, "element type code 7 at offset 16 is floating point"},
                                   {24, 2, "element size at offset 24 is 2, but int32 has 4 bytes"},
                                   {32, int64_t{1} << 62, "the file is truncated"},
                                   {40, 4, "have not one length each"},
                                   {64, 2, "have not one length each"},
                                   {88 + 8, 6, "ends at byte"},
                                   {88 + 8, int64_t{1} << 62, "ends at byte"},
                                   {88 + 8, -1, "byte pointer -4 at offset 96"},
                                   {120 + 8, int64_t{1} << 62, "ends at byte"},
                                   {144 + 8, 4, "starts after the next one"}}) {
    std::string bytes = small_tntidx();
    std::memcpy(bytes.data() + c.offset, &c.value, 8);
    write_text_atomically(path + ".idx", bytes);
    EXPECT_THAT(message_of<FormatError>(path), HasSubstr(c.message)) << "offset " << c.offset;
  }
  write_text_atomically(path + ".idx", small_tntidx().substr(0, 100));
  EXPECT_THAT(message_of<FormatError>(path), HasSubstr("the file is truncated"));
  write_text_atomically(path + ".idx", small_tntidx().substr(0, 20));
  EXPECT_THAT(message_of<FormatError>(path), HasSubstr("its header alone takes 56"));
}

}  // namespace
}  // namespace megatron
