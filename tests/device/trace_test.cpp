#include "megatron/device/trace.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "megatron/core/error.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

void work(int ms) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
  while (std::chrono::steady_clock::now() < end) continue;
}

TEST(TraceTest, RangesWithoutATracerAreNothing) {
  EXPECT_FALSE(is_tracing());
  const TraceRange range("linear", Stream{});
  EXPECT_EQ(enclosing_work(), nullptr);
}

TEST(TraceTest, WorkCountsForTheInnermostRange) {
  Tracer tracer;
  {
    const TraceScope scope(&tracer);
    EXPECT_TRUE(is_tracing());
    const TraceRange iteration("iteration");
    {
      const TraceRange linear("linear", Stream{});
      work(8);
      const TraceRange norm("layer_norm", Stream{});
      work(4);
    }
    work(2);
  }
  EXPECT_FALSE(is_tracing());
  std::map<WorkKind, double> seconds = tracer.seconds_by_kind();
  EXPECT_GE(seconds[WorkKind::kGemm], 8e-3);
  EXPECT_GE(seconds[WorkKind::kElementwise], 4e-3);
  EXPECT_GE(seconds[WorkKind::kHost], 2e-3);
  EXPECT_EQ(seconds[WorkKind::kAttention], 0);
}

TEST(TraceTest, EverythingInsideTheHeadCountsForIt) {
  Tracer tracer;
  {
    const TraceScope scope(&tracer);
    const TraceRange head("output_layer", Stream{});
    EXPECT_STREQ(enclosing_work(), "output_layer");
    const TraceRange linear("linear", Stream{});
    const TraceRange norm("layer_norm", Stream{});
    EXPECT_STREQ(enclosing_work(), "output_layer");
    work(2);
  }
  std::map<WorkKind, double> seconds = tracer.seconds_by_kind();
  EXPECT_GE(seconds[WorkKind::kHead], 2e-3);
  EXPECT_EQ(seconds[WorkKind::kGemm], 0);
  EXPECT_EQ(seconds[WorkKind::kElementwise], 0);
}

TEST(TraceTest, CommunicationCountsForItselfButWhereAStageWaits) {
  Tracer tracer;
  {
    const TraceScope scope(&tracer);
    {
      const TraceRange head("output_layer", Stream{});
      const TraceRange gather("all_gather", Stream{});
      work(2);
    }
    const TraceRange stage("wait_for_stage", Stream{});
    const TraceRange receive("recv", Stream{});
    work(4);
  }
  std::map<WorkKind, double> seconds = tracer.seconds_by_kind();
  EXPECT_GE(seconds[WorkKind::kCommunication], 2e-3);
  EXPECT_LT(seconds[WorkKind::kHead], 2e-3);
  EXPECT_GE(seconds[WorkKind::kPipeline], 4e-3);
}

TEST(TraceTest, ThreadsHaveTracersOfTheirOwn) {
  Tracer tracer;
  const TraceScope scope(&tracer);
  bool elsewhere = true;
  std::thread([&] { elsewhere = is_tracing(); }).join();
  EXPECT_FALSE(elsewhere);
}

TEST(TraceTest, FileHasEveryRange) {
  const TemporaryDirectory directory;
  Tracer tracer(3);
  {
    const TraceScope scope(&tracer);
    const TraceRange iteration("iteration");
    const TraceRange linear("linear", Stream{});
  }
  write_trace(directory.path() / "trace.json", std::vector{tracer.events()});
  std::ifstream file(directory.path() / "trace.json");
  std::stringstream text;
  text << file.rdbuf();
  for (const char* part :
       {"\"rank 3\"", "\"name\":\"iteration\",\"cat\":\"host\",\"ph\":\"X\",\"pid\":3,\"tid\":0",
        "\"name\":\"linear\",\"cat\":\"gemm\""}) {
    EXPECT_NE(text.str().find(part), std::string::npos) << part << " in " << text.str();
  }
  EXPECT_THROW(write_trace(directory.path() / "none" / "trace.json", {}), IoError);

  write_trace(directory.path() / "empty.json", std::vector<std::string>{""});
  std::stringstream empty;
  empty << std::ifstream(directory.path() / "empty.json").rdbuf();
  EXPECT_EQ(empty.str(), "[\n]\n");
}

}  // namespace
}  // namespace megatron
