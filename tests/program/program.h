#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "megatron/tensor/tensor.h"

// Runs the program like its users, and reads its output and its files.
namespace megatron::program {

using Words = std::vector<std::string>;

// Flags of a command in the order they were set.
class Flags {
 public:
  // A copy with `flag` set to the values (none: a switch); replaces the values of an existing flag.
  template <class... Values>
  Flags with(const std::string& flag, const Values&... values) const {
    return with_words(flag, {std::string(values)...});
  }
  Flags with_words(const std::string& flag, Words values) const;
  Flags without(const std::string& flag) const;

  Words words() const;

 private:
  std::vector<std::pair<std::string, Words>> flags_;
};

struct Outcome {
  int exit_code = 0;  // 128 + number if a signal ended it
  std::string out;    // standard output
  std::string err;    // standard error
  double seconds = 0;
};

struct RunOptions {
  std::string input = {};                               // standard input
  std::map<std::string, std::string> environment = {};  // added to that of the tests
  int64_t max_file_bytes = 0;                           // no file may grow beyond; 0: no limit
  Words launcher = {};                                  // words before the program's: mpirun ...
  double limit_seconds = 60;                            // after that it is killed
};

// Runs `megatron <command> <words>` to its end.
Outcome run(const std::string& command, const Words& words, const RunOptions& options = {});

// A running program. The destructor kills it unless finish() was called.
class Running {
 public:
  Running(const std::string& command, const Words& words, const RunOptions& options = {});
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  // Waits until standard output, or a file, has `text`. False if the program ended, or its time
  // did, without it.
  bool wait_for(const std::string& text, const std::filesystem::path& file = "");
  bool has_ended() const;
  void send(int signal) const;
  pid_t pid() const { return pid_; }
  double seconds() const;  // since the start
  Outcome finish();

 private:
  std::filesystem::path directory_;  // of the captured output
  double started_ = 0;
  double limit_seconds_ = 0;
  pid_t pid_ = -1;
};

// The log line of one iteration.
struct IterationText {
  std::string line;  // without the elapsed time and the throughput

  bool has(const std::string& name) const { return !text(name).empty(); }
  // The text between "<name>: " and " |"; empty if there is no such field.
  std::string text(const std::string& name) const;
  double number(const std::string& name) const;
};
std::vector<IterationText> iterations_of(const std::string& output);
// The numbers of " validation loss at <prefix> | lm loss value: 6.02E+00", by prefix.
std::map<std::string, double> validations_of(const std::string& output);

// A line of --metrics-jsonl, without times: all digits of the rounded values of iteration lines.
using Metrics = std::map<std::string, double>;
std::vector<Metrics> metrics_of(const std::filesystem::path& file);

// Every tensor of a checkpoint of one iteration by "<section>/<name>", and its counters and scalars
// as text.
struct SavedRun {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> scalars;
};
SavedRun read_saved_run(const std::filesystem::path& iteration_directory);
// Compares names, shapes, bits and scalars.
void expect_identical(const SavedRun& got, const SavedRun& want);

// Golden data: tests/golden/<name>.
std::filesystem::path golden(const std::string& name);

// Writes a dataset that repeats `period`: if its length is the tokens of a sample, all samples are
// equal.
void write_periodic_dataset(const std::filesystem::path& prefix,
                            const std::vector<int32_t>& period);

// The flags of Megatron-LM's run of tests/golden/megatron/gpt, with the index caches in `cache`.
Flags golden_run(const std::filesystem::path& cache);
// Changes them to the flags of tests/golden/megatron/llama.
Flags llama_style(const Flags& flags);

}  // namespace megatron::program
