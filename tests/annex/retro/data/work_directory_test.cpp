#include "annex/retro/data/work_directory.h"

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

constexpr const char* kConfig =
    R"({"retro_block_size": 100, "retro_gpt_chunk_length": 64, "retro_gpt_data_cache_path": null,
        "retro_gpt_data_path": ["0.25", "a/wiki", "0.75", "books"], "retro_gpt_eval_interval": 7,
        "retro_gpt_eval_iters": 3, "retro_gpt_global_batch_size": 8,
        "retro_gpt_merge_file": "tok/merges.txt", "retro_gpt_seed": 5,
        "retro_gpt_seq_length": 512, "retro_gpt_split": "98,2,0",
        "retro_gpt_tokenizer_model": null, "retro_gpt_tokenizer_type": "GPT2BPETokenizer",
        "retro_gpt_train_samples": 160, "retro_gpt_vocab_file": "tok/vocab.json",
        "retro_neighbor_dirs": {"test": null, "train": "train_0a", "valid": "valid_0b"}})";

TEST(RetroProjectTest, NamesAreRelativeToTheDirectory) {
  const TemporaryDirectory directory;
  const std::string in = directory.path().string() + "/";
  EXPECT_THAT(message_of([&] { read_retro_project(directory.path()); }),
              HasSubstr("has no config.json"));
  directory.write("config.json", kConfig);
  const RetroProject project = read_retro_project(directory.path());
  EXPECT_EQ(project.settings.seq_length, 512);
  EXPECT_EQ(project.settings.seed, 5);
  EXPECT_EQ(project.train_samples, 160);
  EXPECT_EQ(project.global_batch_size, 8);
  EXPECT_EQ(project.eval_interval, 7);
  EXPECT_EQ(project.eval_iters, 3);
  EXPECT_EQ(project.data_cache_path, "");
  EXPECT_EQ(project.tokenizer.tokenizer_type, "GPT2BPETokenizer");
  EXPECT_EQ(project.tokenizer.vocab_file, in + "tok/vocab.json");
  EXPECT_EQ(project.tokenizer.merge_file, in + "tok/merges.txt");
  EXPECT_EQ(project.tokenizer.tokenizer_model, "");
  EXPECT_THAT(project.settings.data_path,
              ElementsAre("0.25", in + "data/a/wiki", "0.75", in + "data/books"));
  EXPECT_THAT(project.neighbor_dirs,
              ElementsAre("train=" + in + "query/train_0a", "valid=" + in + "query/valid_0b"));
  directory.write("config.json", R"({"retro_gpt_chunk_length": 64})");
  EXPECT_THROW(read_retro_project(directory.path()), FormatError);
}

TEST(ChunkSourcesTest, OfLaterVersionsAreNamedByTheirPrefixes) {
  const TemporaryDirectory directory;
  std::filesystem::create_directories(directory.path() / "db");
  directory.write("config.json", kConfig);
  directory.write("db/indexed_dataset_infos.json",
                  R"([{"ratio": 0.25, "prefix": "a/wiki", "n_docs": 10, "n_docs_train": 9,
                       "n_chunks": 20, "n_chunks_train": 18, "n_chunks_invalid": 1,
                       "n_chunks_sampled": 7}])");
  const std::vector<ChunkSource> sources = read_chunk_sources(directory.path());
  ASSERT_EQ(sources.size(), 1u);
  EXPECT_EQ(sources[0].prefix, directory.path() / "data/a/wiki");
  EXPECT_EQ(sources[0].name, "a/wiki");
  EXPECT_EQ(sources[0].blocks, directory.path() / "db/individual/a/wiki");
  EXPECT_EQ(sources[0].train_chunks, 18);
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
