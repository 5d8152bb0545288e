#include "megatron/report/metrics_lines.h"

#include <gmock/gmock.h>

#include <cmath>

namespace megatron::report {
namespace {

std::string text_of(const RunHistory& history) {
  std::string text;
  for (const Series& series : history.series()) {
    text += series.name + ":";
    for (const Point& point : series.points) {
      text += " " + std::to_string(point.iteration) + "=" + std::to_string(point.value);
    }
    text += "\n";
  }
  return text;
}

TEST(MetricsLinesTest, ReadsRecordsOfDifferentKeys) {
  RunHistory history;
  EXPECT_EQ(read_metrics(history,
                         "{\"iteration\": 1, \"lm loss\": 2.5, \"grad_norm\": null}\n"
                         "{\"iteration\": 1, \"lm loss validation\": 3e0}\n\n"
                         "{\"grad_norm\":-1,\"lm loss\":2,\"iteration\":2}\r\n"),
            0);
  EXPECT_EQ(text_of(history),
            "lm loss: 1=2.500000 2=2.000000\ngrad_norm: 1=nan 2=-1.000000\n"
            "lm loss validation: 1=3.000000\n");
}

TEST(MetricsLinesTest, ReadsNamesWithEscapesAndSkipsOtherValues) {
  RunHistory history;
  EXPECT_EQ(read_metrics(history,
                         "{\"iteration\": 1, \"a \\\"b\\\" \\u00e9\": 1, \"note\": \"x\", "
                         "\"list\": [1]}\n"),
            0);
  EXPECT_EQ(text_of(history), "a \"b\" \xc3\xa9: 1=1.000000\n");
}

TEST(MetricsLinesTest, SkipsWhatIsNoRecord) {
  RunHistory history;
  EXPECT_EQ(read_metrics(history,
                         "loading\n"
                         "{\"iteration\": 1, \"lm loss\": 2}\n"
                         "{\"lm loss\": 2}\n"
                         "{\"iteration\": -4, \"lm loss\": 2}\n"
                         "{\"iteration\": 1e300, \"lm loss\": 2}\n"
                         "{\"iteration\": \"2\", \"lm loss\": 2}\n"
                         "{\"iteration\": 2, \"lm loss\": inf}\n"
                         "[1]\n"
                         "{\"iteration\": 3, \"lm lo"),
            8);
  EXPECT_EQ(text_of(history), "lm loss: 1=2.000000\n");
}

}  // namespace
}  // namespace megatron::report
