#include "megatron/data/retro/work_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(RetroSettingsTest, AreReadFromArgs) {
  const TemporaryDirectory directory;
  EXPECT_THAT(message_of([&] { read_retro_settings(directory.path()); }),
              HasSubstr("name the directory that megatron retro-preprocess filled"));
  directory.write("args.json",
                  R"({"retro_gpt_chunk_length": 64, "retro_gpt_seq_length": 512,
                      "retro_gpt_seed": 1234, "retro_gpt_split": "98,2,0",
                      "retro_gpt_data_path": ["1", "wiki"], "lr": 0.1})");
  const RetroSettings settings = read_retro_settings(directory.path());
  EXPECT_EQ(settings.chunk_length, 64);
  EXPECT_EQ(settings.seq_length, 512);
  EXPECT_EQ(settings.split, "98,2,0");
  EXPECT_THAT(settings.data_path, ElementsAre("1", "wiki"));
  directory.write("args.json", R"({"retro_gpt_chunk_length": "64"})");
  EXPECT_THAT(message_of<FormatError>([&] { read_retro_settings(directory.path()); }),
              HasSubstr("\"retro_gpt_chunk_length\" is missing or of another type"));
  directory.write("args.json", "{");
  EXPECT_THROW(read_retro_settings(directory.path()), FormatError);
}

TEST(ChunkSourcesTest, AreReadAsWritten) {
  const TemporaryDirectory directory;
  std::filesystem::create_directories(directory.path() / "db");
  write_chunk_sources(directory.path(), {{.ratio = 0.5,
                                          .prefix = "data/wiki",
                                          .name = "wiki",
                                          .blocks = "W/db/individual/wiki",
                                          .documents = 10,
                                          .train_documents = 9,
                                          .chunks = 20,
                                          .train_chunks = 18,
                                          .invalid_chunks = 1,
                                          .sampled_chunks = 7}});
  EXPECT_EQ(read_text(chunk_sources_file(directory.path())), R"([
    {
        "ratio": 0.5,
        "prefix": "data/wiki",
        "path": "data/wiki.bin",
        "name": "wiki",
        "db_dir": "W/db/individual/wiki",
        "n_docs": 10,
        "n_docs_train": 9,
        "n_chunks": 20,
        "n_chunks_train": 18,
        "n_chunks_invalid": 1,
        "n_chunks_sampled": 7
    }
])");
  const std::vector<ChunkSource> sources = read_chunk_sources(directory.path());
  ASSERT_EQ(sources.size(), 1);
  EXPECT_EQ(sources[0].train_chunks, 18);
  EXPECT_EQ(sources[0].sampled_chunks, 7);
}

}  // namespace
}  // namespace megatron
