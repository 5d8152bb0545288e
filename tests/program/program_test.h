#pragma once

#include <gmock/gmock.h>

#include <string>

#include "tests/program/program.h"
#include "tests/support/temporary_directory.h"

namespace megatron::program {

// A test that runs the program in its own directory.
class ProgramTest : public testing::Test {
 protected:
  std::filesystem::path path(const std::string& name) const { return directory_.path() / name; }
  Flags golden_flags() const { return golden_run(path("cache")); }

  // Trains, and fails the test unless the program succeeds.
  static Outcome train(const Flags& flags, const RunOptions& options = {},
                       const std::string& command = "pretrain-gpt") {
    Outcome outcome = run(command, flags.words(), options);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
    return outcome;
  }

  // Lines of standard error after "error: ".
  static std::vector<std::string> errors_of(const Outcome& outcome);

 private:
  TemporaryDirectory directory_;
};

// "iter_0000010" below a --save directory.
inline std::filesystem::path iteration_in(const std::filesystem::path& save, int iteration) {
  const std::string digits = std::to_string(iteration);
  return save / ("iter_" + std::string(7 - digits.size(), '0') + digits);
}

inline std::vector<std::string> ProgramTest::errors_of(const Outcome& outcome) {
  constexpr const char* kMark = "error: ";
  std::vector<std::string> errors;
  for (size_t begin = 0; begin < outcome.err.size();) {
    const size_t end = std::min(outcome.err.find('\n', begin), outcome.err.size());
    const std::string line = outcome.err.substr(begin, end - begin);
    if (line.starts_with(kMark)) errors.push_back(line.substr(std::string(kMark).size()));
    begin = end + 1;
  }
  return errors;
}

}  // namespace megatron::program
