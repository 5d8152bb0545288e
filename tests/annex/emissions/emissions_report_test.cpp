#include "annex/emissions/emissions_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
namespace fs = std::filesystem;

class EmissionsReportTest : public testing::Test {
 protected:
  void set(const std::string& zone, const std::string& name, int64_t microjoules) const {
    const fs::path folder = powercap() / zone;
    fs::create_directories(folder);
    std::ofstream(folder / "name") << name << "\n";
    std::ofstream(folder / "energy_uj") << microjoules << "\n";
    std::ofstream(folder / "max_energy_range_uj") << 10'000'000 << "\n";
  }
  fs::path powercap() const { return directory_.path() / "powercap"; }
  fs::path file() const { return directory_.path() / "new" / "emissions.csv"; }
  EnergyMeter::Options options() const {
    return {.powercap = powercap(), .has_gpus = false, .nvml = "no-such-library.so"};
  }

 private:
  TemporaryDirectory directory_;
};

TEST_F(EmissionsReportTest, PackagesAndMemoryAreCountedBeyondTheEndOfARange) {
  set("intel-rapl:0", "package-0", 4'000'000);
  set("intel-rapl:1", "package-1", 9'000'000);
  set("intel-rapl:0:0", "core", 1'000'000);
  set("intel-rapl:0:1", "dram", 500'000);
  set("intel-rapl-mmio:0", "package-0", 4'000'000);  // the same processor again
  EnergyMeter meter(options());
  set("intel-rapl:0", "package-0", 6'000'000);
  set("intel-rapl:1", "package-1", 1'500'000);  // begun again at 10 J
  set("intel-rapl:0:0", "core", 9'000'000);
  set("intel-rapl:0:1", "dram", 750'000);
  const Energy used = meter.used();
  EXPECT_DOUBLE_EQ(used.cpu.value(), 2 + 2.5);
  EXPECT_DOUBLE_EQ(used.ram.value(), 0.25);
  EXPECT_FALSE(used.gpu);
}

TEST_F(EmissionsReportTest, GpusAreThoseOfTheDriver) {
  EnergyMeter::Options with_gpus = options();
  with_gpus.has_gpus = true;
  with_gpus.nvml = MG_FAKE_NVML;
  EnergyMeter meter(with_gpus);
  EXPECT_DOUBLE_EQ(meter.used().gpu.value(), 7);
  EXPECT_DOUBLE_EQ(meter.used().gpu.value(), 14);
  EXPECT_EQ(meter.gpus()->num_gpus(), 2);
  EXPECT_EQ(meter.gpus()->model(), "Fake GPU");
}

TEST_F(EmissionsReportTest, ARowHasCodecarbonsColumns) {
  const std::string header = emissions_header();
  EXPECT_THAT(header, testing::StartsWith("timestamp,project_name,run_id,duration,emissions,"));
  const EmissionsRow row{.seconds = 100,
                         .energy = {.cpu = 3.6e6, .ram = std::nullopt, .gpu = 7.2e6},
                         .num_gpus = 2,
                         .gpu_model = "A, B"};
  std::istringstream names(header);
  std::istringstream values(text_of(row));
  std::map<std::string, std::string> got;
  std::string name;
  std::string value;
  while (std::getline(names, name, ',') && name != "cpu_model" &&
         std::getline(values, value, ',')) {
    got[name] = value;
  }
  EXPECT_EQ(got["run_id"].size(), 36u);
  EXPECT_EQ(got["duration"], "100");
  EXPECT_EQ(got["cpu_energy"], "1");
  EXPECT_EQ(got["gpu_energy"], "2");
  EXPECT_EQ(got["ram_energy"], "");
  EXPECT_EQ(got["energy_consumed"], "3");
  EXPECT_EQ(got["cpu_power"], "36000");
  EXPECT_EQ(got["emissions"], "");
  EXPECT_THAT(text_of(row), HasSubstr(",2,\"2 x A, B\","));
}

TEST_F(EmissionsReportTest, RowsOfRunsFollowEachOther) {
  set("intel-rapl:0", "package-0", 0);
  for (int run = 0; run < 2; ++run) EmissionsReport(file(), options());
  std::istringstream lines(read_text(file()));
  std::string line;
  int count = 0;
  while (std::getline(lines, line)) EXPECT_EQ(line.starts_with("timestamp"), count++ == 0);
  EXPECT_EQ(count, 3);
}

TEST_F(EmissionsReportTest, WhatCannotBeCountedIsNamedAndEmpty) {
  CapturedStderr err;
  EnergyMeter::Options with_gpus = options();
  with_gpus.has_gpus = true;
  { const EmissionsReport report(file(), with_gpus); }
  EXPECT_THAT(err.text(),
              HasSubstr("--codecarbon-dir: this user can read no energy counter of the processors "
                        "(RAPL), the memory (RAPL), the GPUs (NVML); their columns stay empty"));
  EXPECT_THAT(read_text(file()), HasSubstr(",,,,,,,,,,,,,,Linux"));
  EXPECT_THAT(message_of<IoError>([&] { EmissionsReport("/dev/null/e.csv", options()); }),
              HasSubstr("--codecarbon-dir"));
}

}  // namespace
}  // namespace megatron
