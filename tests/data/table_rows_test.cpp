#include "megatron/data/table_rows.h"

#include <gmock/gmock.h>

#include "megatron/core/error.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class TableRowsTest : public testing::Test {
 protected:
  // The fields of all rows, joined by "|", with their numbers.
  std::vector<std::string> rows_of(const std::string& name, const std::string& text,
                                   const std::vector<std::string>& columns) const {
    std::vector<std::string> rows;
    read_table(directory_.write(name, text), columns, [&](const TableRow& row) {
      std::string joined = std::to_string(row.number);
      for (const std::string& field : row.fields) joined += "|" + field;
      rows.push_back(joined);
    });
    return rows;
  }

  TemporaryDirectory directory_;
};

TEST_F(TableRowsTest, ColumnsOfACsvInAnyOrder) {
  EXPECT_THAT(rows_of("a.csv", "id,text,label\n7,\"one, two\",1\n8,three,0\n", {"label", "text"}),
              ElementsAre("2|1|one, two", "3|0|three"));
}

TEST_F(TableRowsTest, ObjectsOnLinesAndInAList) {
  const std::string one = R"({"text": "a", "label": 2})";
  const std::string two = R"({"label": [1, 0], "text": "b"})";
  EXPECT_THAT(rows_of("a.jsonl", one + "\n\n" + two + "\n", {"text", "label"}),
              ElementsAre("1|a|2", "3|b|[1,0]"));
  EXPECT_THAT(rows_of("a.json", "[" + one + ",\n" + two + "]\n", {"text", "label"}),
              ElementsAre("0|a|2", "1|b|[1,0]"));
}

TEST_F(TableRowsTest, KnowsItsColumns) {
  const auto csv = directory_.write("b.csv", "text,label\n");
  EXPECT_TRUE(has_column(csv, "label"));
  EXPECT_FALSE(has_column(csv, "summary"));
  EXPECT_TRUE(has_column(directory_.write("b.jsonl", "{\"summary\": \"x\"}\n"), "summary"));
}

TEST_F(TableRowsTest, NamesWhatIsMissing) {
  EXPECT_THAT([&] { rows_of("c.csv", "a,b\n1,2\n", {"text"}); },
              testing::ThrowsMessage<FormatError>(
                  HasSubstr("c.csv: has no column text; its columns are a, b")));
  EXPECT_THAT(
      [&] { rows_of("c.csv", "a,b\n1\n", {"a"}); },
      testing::ThrowsMessage<FormatError>(HasSubstr("line 2: the row has 1 fields, the header 2")));
  EXPECT_THAT(
      [&] { rows_of("c.jsonl", "{\"a\": 1}\n", {"text"}); },
      testing::ThrowsMessage<FormatError>(HasSubstr("line or entry 1: has no text; it has a")));
  EXPECT_THAT([&] { rows_of("c.jsonl", "{\"a\"\n", {"a"}); },
              testing::ThrowsMessage<FormatError>(HasSubstr("expected a JSON object")));
  EXPECT_THAT([&] { rows_of("c.json", "[{\n", {"a"}); },
              testing::ThrowsMessage<FormatError>(HasSubstr("the file is not valid JSON")));
  EXPECT_THAT([&] { rows_of("c.parquet", "", {"a"}); },
              testing::ThrowsMessage<ConfigError>(
                  HasSubstr("read from .csv, .json and .jsonl files; write them as one of these")));
}

}  // namespace
}  // namespace megatron
