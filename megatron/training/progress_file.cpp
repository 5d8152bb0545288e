#include "megatron/training/progress_file.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

namespace megatron {
namespace {

std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields;
  std::istringstream stream(line);
  for (std::string field; std::getline(stream, field, '\t');) fields.push_back(field);
  return fields;
}

// The number after ": ", or none.
std::optional<double> number_of(const std::string& field) {
  const size_t at = field.find(": ");
  if (at == std::string::npos) return std::nullopt;
  return std::strtod(field.c_str() + at + 2, nullptr);
}

}  // namespace

ProgressFile::ProgressFile(std::filesystem::path path, int64_t world_size, const Progress& now)
    : file_(std::move(path), "--log-progress"),
      world_size_(world_size),
      job_started_(Clock::now()),
      job_flops_(now.floating_point_operations),
      first_started_(job_started_),
      first_flops_(job_flops_) {
  append("Starting job");
  find_first_job();
}

void ProgressFile::saved_checkpoint(const Progress& now, int64_t consumed_tokens) {
  const auto teraflops = [&](double since_flops, Clock::time_point since) {
    const double seconds = std::chrono::duration<double>(Clock::now() - since).count();
    return (now.floating_point_operations - since_flops) / (seconds * 1e12) /
           static_cast<double>(world_size_);
  };
  append(fmt::format(
      "Saved checkpoint\tIteration: {}\tJob throughput: {:.1f} TFLOP/s/GPU\tCumulative throughput: "
      "{:.1f} TFLOP/s/GPU\tFloating-point operations: {:.2e}\tTokens (in billions): {:.2f}",
      now.iteration, teraflops(job_flops_, job_started_), teraflops(first_flops_, first_started_),
      now.floating_point_operations, static_cast<double>(consumed_tokens) / 1e9));
}

void ProgressFile::append(const std::string& fields) {
  const char* job = std::getenv("SLURM_JOB_ID");
  file_.append(fmt::format("{:%Y-%m-%d %H:%M:%S}\tJob ID: {}\t# GPUs: {}\t{}\n",
                           fmt::localtime(std::time(nullptr)), job == nullptr ? "" : job,
                           world_size_, fields));
}

void ProgressFile::find_first_job() {
  std::ifstream file(file_.path());
  std::optional<Clock::time_point> started;
  double latest_flops = 0;
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> fields = fields_of(line);
    if (fields.size() < 4) continue;
    if (fields[3] == "Saved checkpoint" && fields.size() > 7) {
      latest_flops = number_of(fields[7]).value_or(latest_flops);
    }
    if (number_of(fields[2]) != static_cast<double>(world_size_)) {
      started.reset();
      continue;
    }
    if (fields[3] != "Starting job" || started) continue;
    std::tm time{};
    if (::strptime(fields[0].c_str(), "%Y-%m-%d %H:%M:%S", &time) == nullptr) continue;
    time.tm_isdst = -1;
    started = Clock::from_time_t(std::mktime(&time));
    first_started_ = *started;
    first_flops_ = latest_flops;
  }
}

}  // namespace megatron
