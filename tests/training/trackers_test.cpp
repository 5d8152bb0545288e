#include <gmock/gmock.h>
#include <zlib.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <string_view>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/training/csv_folder.h"
#include "megatron/training/metrics_file.h"
#include "megatron/training/wandb.pb.h"
#include "megatron/training/wandb_run.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

TEST(MetricsFileTest, WritesAnObjectForEachCall) {
  const TemporaryDirectory directory;
  MetricsFile file(directory.path() / "m.jsonl");
  file.write(10, {{"lm loss", 2.5}, {"grad_norm", std::nan("")}});
  file.write(20, {});
  file.write(30, {{"a \"quoted\" group", 1}});
  EXPECT_EQ(read_text(directory.path() / "m.jsonl"),
            "{\"iteration\": 10, \"lm loss\": 2.5, \"grad_norm\": null}\n{\"iteration\": 20}\n"
            "{\"iteration\": 30, \"a \\\"quoted\\\" group\": 1}\n");
}

TEST(CsvFolderTest, WritesAFileForEachNumber) {
  const TemporaryDirectory directory;
  const std::filesystem::path folder = directory.path() / "new" / "csv";
  {
    CsvFolder csv(folder);
    csv.write(10, {{"lm loss", 2.5}, {"a/b", 1}});
    csv.write(20, {{"lm loss", 2.25}});
  }
  CsvFolder(folder).write(30, {{"lm loss", 2}});  // a run that goes on
  EXPECT_EQ(read_text(folder / "lm_loss.csv"), "step,lm loss\n10,2.5\n20,2.25\n30,2\n");
  EXPECT_EQ(read_text(folder / "a_b.csv"), "step,a/b\n10,1\n");
}

TEST(CsvFolderTest, AFileThatCannotBeOpenedCostsItsNumbersAlone) {
  const TemporaryDirectory directory;
  std::filesystem::create_directories(directory.path() / "lm_loss.csv");
  CsvFolder csv(directory.path());
  CapturedStderr captured_err;
  csv.write(1, {{"lm loss", 2}, {"grad_norm", 3}});
  csv.write(2, {{"lm loss", 1}, {"grad_norm", 4}});
  EXPECT_THAT(captured_err.text(), AllOf(HasSubstr("lm_loss.csv"), HasSubstr("the run continues")));
  EXPECT_EQ(read_text(directory.path() / "grad_norm.csv"), "step,grad_norm\n1,3\n2,4\n");
}

TEST(CsvFolderTest, NamesAFolderThatItCannotMake) {
  EXPECT_THAT(message_of<IoError>([] { CsvFolder("/dev/null/csv"); }),
              AllOf(HasSubstr("--csv-dir /dev/null/csv"), HasSubstr("choose a place")));
}

uint32_t number_at(std::string_view bytes, int count) {
  uint32_t number = 0;
  std::memcpy(&number, bytes.data(), static_cast<size_t>(count));
  return number;
}

// The records of a run file, with the checksums of their parts verified.
std::vector<wandb::Record> records_of(const std::string& file) {
  constexpr size_t kBlock = 32768;
  constexpr size_t kHeader = 7;
  EXPECT_EQ(file.substr(0, kHeader), std::string("\x3aW&B\xe1\xbe\0", kHeader));
  std::vector<wandb::Record> records;
  std::string record;
  for (size_t at = kHeader; at < file.size();) {
    const size_t room = kBlock - at % kBlock;
    if (room < kHeader) {
      at += room;
      continue;
    }
    const uint32_t crc = number_at(std::string_view(file).substr(at), 4);
    const uint32_t bytes = number_at(std::string_view(file).substr(at + 4), 2);
    const char kind = file[at + 6];
    EXPECT_LE(kHeader + bytes, room) << "a part crosses the end of a block";
    const auto* const summed = reinterpret_cast<const Bytef*>(file.data() + at + 6);
    EXPECT_EQ(crc, ::crc32(0, summed, bytes + 1));
    if (kind == 1 || kind == 2) record.clear();
    record += file.substr(at + kHeader, bytes);
    if (kind == 1 || kind == 4) {
      EXPECT_TRUE(records.emplace_back().ParseFromString(record));
    }
    at += kHeader + bytes;
  }
  return records;
}

std::map<std::string, std::string> items_of(const auto& items) {
  std::map<std::string, std::string> values;
  for (const wandb::Item& item : items) values[item.key()] = item.value_json();
  return values;
}

TEST(WandbRunTest, WritesTheRunItsRowsAndItsEnd) {
  const TemporaryDirectory directory;
  std::filesystem::path path;
  {
    WandbRun run(directory.path(), {.project = "p",
                                    .name = "n",
                                    .settings = {{"lr", 0.5},
                                                 {"bf16", true},
                                                 {"load", ArgValue()},
                                                 {"split", std::string("9,\"1\"")},
                                                 {"list", std::vector<int64_t>{1, 2}}}});
    path = run.path();
    run.write(10, {{"lm loss", 2.5}});
    run.write(10, {{"lm loss validation", 2.75}});  // the same row
    run.write(20, {{"lm loss", std::nan("")}});
  }
  const std::string folder = path.parent_path().filename().string();
  EXPECT_THAT(folder, testing::MatchesRegex("offline-run-[0-9]+_[0-9]+-[a-z0-9]+"));
  EXPECT_EQ(path.parent_path().parent_path(), directory.path() / "wandb");

  const std::vector<wandb::Record> records = records_of(read_text(path));
  ASSERT_EQ(records.size(), 6u);
  EXPECT_TRUE(records[0].has_header());
  EXPECT_EQ(records[1].run().project(), "p");
  EXPECT_EQ(records[1].run().display_name(), "n");
  EXPECT_THAT(folder, testing::EndsWith("-" + records[1].run().run_id()));
  EXPECT_THAT(items_of(records[1].run().config().update()),
              ElementsAre(Pair("bf16", "true"), Pair("list", "[1,2]"), Pair("load", "null"),
                          Pair("lr", "0.5"), Pair("split", "\"9,\\\"1\\\"\"")));
  const auto row = items_of(records[2].history().item());
  EXPECT_EQ(records[2].history().step().num(), 10);
  EXPECT_EQ(row.at("lm loss"), "2.5");
  EXPECT_EQ(row.at("lm loss validation"), "2.75");
  EXPECT_EQ(row.at("_step"), "10");
  EXPECT_EQ(items_of(records[3].history().item()).at("lm loss"), "NaN");
  const auto summary = items_of(records[4].summary().update());
  EXPECT_EQ(summary.at("lm loss validation"), "2.75");
  EXPECT_EQ(summary.at("_step"), "20");
  EXPECT_TRUE(records[5].has_exit());
  for (size_t i = 0; i < records.size(); ++i) EXPECT_EQ(records[i].num(), i + 1);
}

TEST(WandbRunTest, CutsRecordsAtTheEndsOfBlocks) {
  const TemporaryDirectory directory;
  std::filesystem::path path;
  const std::string wide(100'000, 'x');
  {
    WandbRun run(directory.path(), {.project = "p", .name = "n", .settings = {{"wide", wide}}});
    path = run.path();
    for (int64_t i = 1; i <= 2000; ++i) run.write(i, {{"loss", 1.0 / static_cast<double>(i)}});
  }
  const std::vector<wandb::Record> records = records_of(read_text(path));
  ASSERT_EQ(records.size(), 2004u);
  EXPECT_EQ(items_of(records[1].run().config().update()).at("wide"), '"' + wide + '"');
  EXPECT_EQ(records[2001].history().step().num(), 2000);
}

}  // namespace
}  // namespace megatron
