#include "tests/program/program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "megatron/checkpoint/load.h"
#include "megatron/data/indexed_dataset.h"
#include "megatron/formats/safetensors.h"
#include "tests/support/source_path.h"
#include "tests/support/tensors.h"

namespace megatron::program {
namespace {

namespace fs = std::filesystem;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string program_content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

void redirect(int descriptor, const fs::path& path, int flags) {
  const int file = ::open(path.c_str(), flags, 0600);
  if (file < 0 || ::dup2(file, descriptor) < 0) ::_exit(126);
}

// Becomes the program; runs in the child only.
[[noreturn]] void become(const Words& words, const RunOptions& options, const fs::path& directory) {
  redirect(STDIN_FILENO, directory / "in", O_RDONLY);
  redirect(STDOUT_FILENO, directory / "out", O_WRONLY);
  redirect(STDERR_FILENO, directory / "err", O_WRONLY);
  ::setenv("MEGATRON_SECRET", "the secret of the tests", 0);  // no file in the home directory
  for (const char* name : {"MLFLOW_TRACKING_URI", "WANDB_API_KEY", "WANDB_MODE"}) {
    ::unsetenv(name);  // no run of a test is sent to a service
  }
  for (const auto& [name, value] : options.environment) ::setenv(name.c_str(), value.c_str(), 1);
  if (options.max_file_bytes > 0) {
    const auto limit = static_cast<rlim_t>(options.max_file_bytes);
    const rlimit both = {limit, limit};
    ::setrlimit(RLIMIT_FSIZE, &both);
    ::signal(SIGXFSZ, SIG_DFL);  // a caller of the tests may ignore it
  }
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  ::_exit(127);
}

// The text of a line without the fields that differ between equal runs.
std::string without_times(std::string line) {
  for (const std::string name :
       {" elapsed time per iteration (ms): ", " throughput per GPU (TFLOP/s/GPU): "}) {
    const size_t at = line.find(name);
    if (at != std::string::npos) line.erase(at, line.find('|', at) + 1 - at);
  }
  return line;
}

}  // namespace

Flags Flags::with_words(const std::string& flag, Words values) const {
  Flags result = without(flag);
  result.flags_.emplace_back(flag, std::move(values));
  return result;
}

Flags Flags::without(const std::string& flag) const {
  Flags result = *this;
  std::erase_if(result.flags_, [&](const auto& entry) { return entry.first == flag; });
  return result;
}

Words Flags::words() const {
  Words words;
  for (const auto& [flag, values] : flags_) {
    words.push_back(flag);
    words.insert(words.end(), values.begin(), values.end());
  }
  return words;
}

Outcome run(const std::string& command, const Words& words, const RunOptions& options) {
  return Running(command, words, options).finish();
}

Running::Running(const std::string& command, const Words& words, const RunOptions& options)
    : started_(now()), limit_seconds_(options.limit_seconds) {
  std::string pattern = (fs::temp_directory_path() / "megatron-run-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  directory_ = pattern;
  std::ofstream(directory_ / "in", std::ios::binary) << options.input;
  std::ofstream(directory_ / "out");
  std::ofstream(directory_ / "err");

  Words argv = options.launcher;
  argv.insert(argv.end(), {MG_PROGRAM, command});
  argv.insert(argv.end(), words.begin(), words.end());
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ == 0) become(argv, options, directory_);
}

Running::~Running() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  std::error_code ignored;
  fs::remove_all(directory_, ignored);
}

bool Running::wait_for(const std::string& text, const fs::path& file) {
  const fs::path output = file.empty() ? directory_ / "out" : file;
  while (now() - started_ < limit_seconds_) {
    if (program_content(output).find(text) != std::string::npos) return true;
    if (has_ended()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

bool Running::has_ended() const {
  siginfo_t info = {};
  ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
  return info.si_pid == pid_;
}

double Running::seconds() const { return now() - started_; }

void Running::send(int signal) const { ::kill(pid_, signal); }

Outcome Running::finish() {
  int status = 0;
  while (::waitpid(pid_, &status, WNOHANG) == 0) {
    if (now() - started_ > limit_seconds_) ::kill(pid_, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  pid_ = -1;
  Outcome outcome;
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.out = program_content(directory_ / "out");
  outcome.err = program_content(directory_ / "err");
  outcome.seconds = now() - started_;
  return outcome;
}

std::string IterationText::text(const std::string& name) const {
  const size_t at = line.find(" " + name + ": ");
  if (at == std::string::npos) return "";
  const size_t begin = line.find_first_not_of(' ', at + name.size() + 3);
  return line.substr(begin, line.find(" |", begin) - begin);
}

double IterationText::number(const std::string& name) const {
  const std::string value = text(name);
  EXPECT_NE(value, "") << "no " << name << " in" << line;
  return value.empty() ? 0 : std::stod(value);
}

std::vector<IterationText> iterations_of(const std::string& output) {
  std::vector<IterationText> iterations;
  for (const std::string& line : lines_of(output)) {
    if (line.starts_with(" iteration ")) iterations.push_back({without_times(line)});
  }
  return iterations;
}

std::map<std::string, double> validations_of(const std::string& output) {
  constexpr const char* kStart = " validation loss at ";
  constexpr const char* kValue = " | lm loss value: ";
  std::map<std::string, double> losses;
  for (const std::string& line : lines_of(output)) {
    const size_t value = line.find(kValue);
    if (!line.starts_with(kStart) || value == std::string::npos) continue;
    const size_t begin = std::strlen(kStart);
    losses[line.substr(begin, value - begin)] = std::stod(line.substr(value + std::strlen(kValue)));
  }
  return losses;
}

std::vector<Metrics> metrics_of(const fs::path& file) {
  const std::set<std::string> times = {"elapsed_ms_per_iteration", "tokens_per_second",
                                       "mfu_percent", "hfu_percent"};
  std::vector<Metrics> rows;
  for (const std::string& line : lines_of(program_content(file))) {
    Metrics row;
    const nlohmann::json object = nlohmann::json::parse(line);
    for (const auto& [name, value] : object.items()) {
      if (times.contains(name)) continue;
      row[name] = value.is_null() ? -1 : value.get<double>();
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

SavedRun read_saved_run(const fs::path& iteration_directory) {
  SavedRun saved;
  const CheckpointContents contents = open_checkpoint(iteration_directory);
  for (const auto& [section, tensors] : contents.sections) {
    for (const auto& [name, tensor] : tensors) {
      saved.tensors[section + "/" + name] = read_whole(tensor);
    }
  }
  saved.scalars["iteration"] = std::to_string(contents.iteration);
  saved.scalars["consumed_train_samples"] = std::to_string(contents.consumed_train_samples);
  saved.scalars["consumed_valid_samples"] = std::to_string(contents.consumed_valid_samples);
  for (const auto& [owner, values] : contents.scalars) {
    for (const auto& [name, value] : values) saved.scalars[owner + "." + name] = text_of(value);
  }
  return saved;
}

void expect_identical(const SavedRun& got, const SavedRun& want) {
  EXPECT_EQ(got.scalars, want.scalars);
  ASSERT_EQ(got.tensors.size(), want.tensors.size());
  for (const auto& [name, tensor] : want.tensors) {
    const auto found = got.tensors.find(name);
    if (found == got.tensors.end()) {
      ADD_FAILURE() << "there is no " << name;
    } else {
      megatron::expect_identical(found->second, tensor, name);
    }
  }
}

void write_periodic_dataset(const fs::path& prefix, const std::vector<int32_t>& period) {
  IndexedDatasetBuilder builder(prefix, {.dtype = TokenDtype::kUint16});
  std::vector<int32_t> document;
  for (int repeat = 0; repeat < 8; ++repeat) {
    document.insert(document.end(), period.begin(), period.end());
  }
  const std::vector<int32_t> lengths = {static_cast<int32_t>(document.size())};
  for (int i = 0; i < 40; ++i) builder.add_document(document, lengths);
  builder.finalize();
}

fs::path golden(const std::string& name) { return fs::path(source_path("tests/golden")) / name; }

Flags golden_run(const fs::path& cache) {
  const fs::path data = golden("megatron/data");
  return Flags()
      .with("--num-layers", "4")
      .with("--hidden-size", "32")
      .with("--num-attention-heads", "4")
      .with("--seq-length", "32")
      .with("--max-position-embeddings", "32")
      .with("--seed", "1234")
      .with("--micro-batch-size", "2")
      .with("--global-batch-size", "8")
      .with("--lr", "1e-3")
      .with("--min-lr", "1e-4")
      .with("--lr-decay-style", "cosine")
      .with("--lr-decay-iters", "20")
      .with("--lr-warmup-iters", "4")
      .with("--train-iters", "20")
      .with("--weight-decay", "0.1")
      .with("--clip-grad", "1.0")
      .with("--adam-beta1", "0.9")
      .with("--adam-beta2", "0.95")
      .with("--attention-dropout", "0")
      .with("--hidden-dropout", "0")
      .with("--log-interval", "1")
      .with("--eval-interval", "10")
      .with("--eval-iters", "2")
      .with("--split", "80,15,5")
      .with("--data-path", (data / "corpus_text_document").string())
      .with("--data-cache-path", cache.string())
      .with("--tokenizer-type", "GPT2BPETokenizer")
      .with("--vocab-file", (data / "vocab.json").string())
      .with("--merge-file", (data / "merges.txt").string())
      .with("--device", "cpu")
      .with("--num-threads", "1");
}

Flags llama_style(const Flags& flags) {
  return flags.with("--position-embedding-type", "rope")
      .with("--swiglu")
      .with("--normalization", "RMSNorm")
      .with("--group-query-attention")
      .with("--num-query-groups", "2")
      .with("--untie-embeddings-and-output-weights")
      .with("--disable-bias-linear")
      .with("--ffn-hidden-size", "64");
}

}  // namespace megatron::program
