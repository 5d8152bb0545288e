#include "annex/retro/preprocess/chunk_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "annex/retro/data/chunk_database.h"
#include "annex/retro/data/hdf5_file.h"
#include "annex/retro/data/work_directory.h"
#include "annex/retro/preprocess/chunk_text.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "tests/annex/retro/preprocess/letter_tokenizer.h"
#include "tests/support/message_of.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"

namespace megatron::retro {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ChunkBuilderTest : public testing::Test {
 protected:
  ChunkBuilderTest() {
    // Three documents; a chunk of blanks is invalid.
    write("a", {"abcdef", "     xyz", "hi"});
    config_.retro_workdir = (directory_.path() / "W").string();
    config_.retro_gpt_data_path = {"1", prefix("a")};
    config_.retro_gpt_split = "2,1";
    config_.retro_gpt_chunk_length = 4;
    config_.retro_index_ntrain = 2;
  }

  std::string prefix(const std::string& name) const { return (directory_.path() / name).string(); }
  void write(const std::string& name, const std::vector<std::string>& texts,
             bool with_eod = true) const {
    IndexedDatasetBuilder builder(prefix(name), {.dtype = TokenDtype::kUint16});
    for (const std::string& text : texts) {
      std::vector<int32_t> tokens(text.begin(), text.end());
      if (with_eod) tokens.push_back(0);
      builder.add_document(tokens, std::vector<int32_t>{static_cast<int32_t>(tokens.size())});
    }
    builder.finalize();
  }
  void build() const { build_chunk_database(config_, tokenizer_, tokenizer_, {}); }
  Hdf5File merged(ChunkPart part) const {
    return Hdf5File(merged_chunks_file(config_.retro_workdir, part));
  }

  TemporaryDirectory directory_;
  RetroConfig config_;
  LetterTokenizer tokenizer_;
};

TEST_F(ChunkBuilderTest, CutsDocumentsIntoChunks) {
  build();
  const Hdf5File block(individual_chunks(config_.retro_workdir, "a") / "00-03.hdf5");
  EXPECT_THAT(block.shape("chunks_valid"), ElementsAre(4, 4));
  EXPECT_THAT(block.read<uint32_t>("chunks_valid"),
              ElementsAre(0, 0, 4, 4,  // abcd
                          0, 4, 6, 2,  // ef, without the end of the document
                          1, 4, 8, 3,  //  xyz
                          2, 0, 2, 2));
  EXPECT_THAT(block.read<uint32_t>("chunks_invalid"), ElementsAre(1, 0, 4, 0));
  EXPECT_THAT(block.read<uint64_t>("doc_offsets"), ElementsAre(0, 2, 1, 3, 2, 4));
}

TEST_F(ChunkBuilderTest, DividesBySplit) {
  build();
  EXPECT_THAT(merged(ChunkPart::kTrain).read<uint32_t>("chunks"),
              ElementsAre(0, 0, 0, 4, 4, 0, 0, 4, 6, 2, 0, 1, 4, 8, 3));
  EXPECT_THAT(merged(ChunkPart::kTrain).read<uint64_t>("doc_offsets"),
              ElementsAre(0, 0, 2, 0, 1, 3));
  EXPECT_THAT(merged(ChunkPart::kSampled).read<uint32_t>("chunks"),
              ElementsAre(0, 0, 0, 4, 4, 0, 0, 4, 6, 2));
  EXPECT_FALSE(merged(ChunkPart::kSampled).find("doc_offsets"));
  EXPECT_THAT(merged(ChunkPart::kValid).read<uint32_t>("chunks"), ElementsAre(0, 2, 0, 2, 2));
  EXPECT_THAT(merged(ChunkPart::kValid).read<uint64_t>("n_written"), ElementsAre(1));
  const ChunkSource source = read_chunk_sources(config_.retro_workdir).at(0);
  EXPECT_EQ(source.documents, 3);
  EXPECT_EQ(source.train_documents, 2);
  EXPECT_EQ(source.chunks, 4);
  EXPECT_EQ(source.invalid_chunks, 1);
}

// The same number of documents under the same name: only their digest tells.
TEST_F(ChunkBuilderTest, ChunksOfOtherDataAreRefused) {
  build();
  const auto open = [&] {
    ChunkDatabase(config_.retro_workdir, ChunkPart::kTrain, 4, tokenizer_.eod());
  };
  EXPECT_NO_THROW(open());
  EXPECT_NO_THROW(build());
  write("a", {"ABCDEF", "    XYZ", "HI"});
  EXPECT_THAT(message_of<ConfigError>(open),
              HasSubstr("the data have changed since their chunks were cut"));
  EXPECT_THAT(message_of([&] { build(); }), HasSubstr("give another --retro-workdir"));
}

TEST_F(ChunkBuilderTest, ADamagedBlockIsMadeAgain) {
  build();
  const std::filesystem::path path = individual_chunks(config_.retro_workdir, "a") / "00-03.hdf5";
  const std::string text = read_text(path);
  const std::vector<uint64_t> wrong = {0, 900, 1, 3, 2, 4};
  {
    const Hdf5File right(path);
    Hdf5Writer file(path);
    file.add<uint32_t>("chunks_valid", right.read<uint32_t>("chunks_valid"), {4, 4});
    file.add<uint32_t>("chunks_invalid", right.read<uint32_t>("chunks_invalid"), {1, 4});
    file.add<uint64_t>("doc_offsets", wrong, {3, 2});
    file.commit();
  }
  build();
  EXPECT_EQ(read_text(path), text);
}

TEST_F(ChunkBuilderTest, DatasetsFollowOnEachOther) {
  write("b", {"12345678", "1"}, /*with_eod=*/false);
  config_.retro_gpt_data_path = {"1", prefix("a"), "0.5", prefix("b")};
  config_.retro_gpt_split = "1";
  config_.retro_index_ntrain = 5;
  config_.retro_doc_block_size = 2;  // a: two files
  build();
  const ChunkDatabase database(config_.retro_workdir, ChunkPart::kTrain, 4, tokenizer_.eod());
  ASSERT_EQ(database.num_chunks(), 7);
  const auto text = [&](int64_t chunk) {
    std::vector<int64_t> tokens(4);
    database.read_tokens(chunk, tokens);
    return text_of_chunk(tokens, tokenizer_);
  };
  std::vector<std::string> texts;
  for (int64_t chunk = 0; chunk < 7; ++chunk) texts.push_back(text(chunk));
  EXPECT_THAT(texts, ElementsAre("abcd", "ef", " xyz", "hi", "1234", "5678", "1"));
  EXPECT_EQ(database.document_of(3), (ChunkDatabase::Document{0, 2}));
  EXPECT_EQ(database.document_of(6), (ChunkDatabase::Document{1, 1}));
  EXPECT_THAT(merged(ChunkPart::kTrain).read<uint64_t>("doc_offsets"),
              ElementsAre(0, 0, 2, 0, 1, 3, 0, 2, 4, 1, 0, 6, 1, 1, 7));
  EXPECT_EQ(database.sources().at(0).sampled_chunks, 3);  // 5 * 1 / 1.5, rounded down
  EXPECT_EQ(database.sources().at(1).sampled_chunks, 1);
}

// Arrays, shapes and types of each file that Megatron-LM's program made of the same documents.
TEST_F(ChunkBuilderTest, WritesTheFilesOfMegatron) {
  write("b", {"12345678", "1"}, /*with_eod=*/false);
  config_.retro_gpt_data_path = {"1", prefix("a"), "0.5", prefix("b")};
  config_.retro_gpt_split = "60,40,0";
  config_.retro_index_ntrain = 3;
  config_.retro_doc_block_size = 2;
  build();
  const std::filesystem::path golden = source_path("tests/golden/retro/database");
  const std::filesystem::path own = std::filesystem::path(config_.retro_workdir) / "db";
  const auto files_of = [](const std::filesystem::path& directory) {
    std::set<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
      if (entry.path().extension() != ".hdf5") continue;
      files.insert(std::filesystem::relative(entry.path(), directory));
    }
    return files;
  };
  ASSERT_EQ(files_of(golden).size(), 6u);
  EXPECT_EQ(files_of(own), files_of(golden));
  for (const std::filesystem::path& file : files_of(golden)) {
    const Hdf5File want(golden / file);
    const Hdf5File got(own / file);
    for (const char* const name : {"chunks_valid", "chunks_invalid", "chunks"}) {
      EXPECT_EQ(got.find(name), want.find(name)) << file << name;
      if (!want.find(name) || want.shape(name)[0] == 0) continue;
      EXPECT_TRUE(got.offset_of<uint32_t>(name)) << file << name;
      EXPECT_EQ(got.read<uint32_t>(name), want.read<uint32_t>(name)) << file << name;
    }
    for (const char* const name : {"doc_offsets", "n_written"}) {
      EXPECT_EQ(got.find(name), want.find(name)) << file << name;
      if (!want.find(name)) continue;
      EXPECT_TRUE(got.offset_of<uint64_t>(name)) << file << name;
      EXPECT_EQ(got.read<uint64_t>(name), want.read<uint64_t>(name)) << file << name;
    }
  }
}

TEST_F(ChunkBuilderTest, MakesDamagedAndMissingFilesAgain) {
  build();
  const std::filesystem::path block = individual_chunks(config_.retro_workdir, "a") / "00-03.hdf5";
  const std::filesystem::path train = merged_chunks_file(config_.retro_workdir, ChunkPart::kTrain);
  const std::string whole_block = read_text(block);
  const std::string whole_train = read_text(train);
  write_text_atomically(block, whole_block.substr(0, whole_block.size() / 2));
  Hdf5Writer unfinished(train);
  unfinished.add<uint32_t>("chunks", std::vector<uint32_t>(15), {3, 5});
  unfinished.add<uint64_t>("n_written", std::vector<uint64_t>{1}, {1});
  unfinished.commit();
  build();
  EXPECT_EQ(read_text(block), whole_block);
  EXPECT_EQ(read_text(train), whole_train);
}

TEST_F(ChunkBuilderTest, SaysWhatIsWrong) {
  config_.retro_index_ntrain = 4;
  EXPECT_THAT(message_of([&] { build(); }),
              HasSubstr("--retro-index-ntrain takes 4 chunks of " + prefix("a") +
                        ", but the documents of the training split have 3; lower it"));
  config_.retro_gpt_split = "0,1";
  EXPECT_THAT(message_of([&] { build(); }),
              HasSubstr("--retro-gpt-split 0,1 leaves nothing for training"));
  write("s", {"ab", "cd"});
  {
    IndexedDatasetBuilder builder(prefix("s"), {.dtype = TokenDtype::kUint16});
    builder.add_document(std::vector<int32_t>{65, 66, 67}, std::vector<int32_t>{1, 2});
    builder.finalize();
  }
  config_.retro_gpt_data_path = {"1", prefix("s")};
  EXPECT_THAT(message_of([&] { build(); }), HasSubstr("has 1 documents in 2 sentences"));
}

}  // namespace
}  // namespace megatron::retro
