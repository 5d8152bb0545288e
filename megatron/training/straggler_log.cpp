#include "megatron/training/straggler_log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "megatron/comm/collectives.h"
#include "megatron/comm/transport.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"

namespace megatron {
namespace {

constexpr int kRankBits = 20;
constexpr double kUnitsPerOne = 1e5;
constexpr double kMuchSlower = 1.25;  // than the others
constexpr int kReportsToWarn = 5;

double milliseconds_of(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

}  // namespace

std::vector<OfRank> largest_of_ranks(const std::vector<double>& own, const comm::Group& world) {
  std::vector<int64_t> keys;  // the value above, the rank below
  keys.reserve(own.size());
  for (const double value : own) {
    keys.push_back(std::llround(value * kUnitsPerOne) * (int64_t{1} << kRankBits) + world.rank());
  }
  comm::all_reduce({keys.data(), {static_cast<int64_t>(keys.size())}, DType::kInt64},
                   comm::Reduce::kMax, world, Stream{});
  std::vector<OfRank> largest;
  largest.reserve(keys.size());
  for (const int64_t key : keys) {
    largest.push_back({.value = static_cast<double>(key >> kRankBits) / kUnitsPerOne,
                       .rank = static_cast<int>(key & ((int64_t{1} << kRankBits) - 1))});
  }
  return largest;
}

StragglerLog::StragglerLog(const ParallelContext& parallel, Stream stream, int64_t num_named)
    : world_(parallel.world),
      stage_(parallel.pipeline.rank()),
      num_stages_(parallel.pipeline.size()),
      stream_(stream),
      num_named_(num_named) {}

void StragglerLog::begin(Work work) {
  is_computing_ = work == Work::kCompute;
  if (work == Work::kCompute && !stream_.is_cpu()) {
    if (spare_.empty()) {
      under_way_.emplace_back(Event(stream_.device), Event(stream_.device));
    } else {
      under_way_.push_back(std::move(spare_.front()));
      spare_.pop_front();
    }
    return under_way_.back().first.record(stream_);
  }
  begun_ = Clock::now();
  calls_before_ = world_.transport().context().recorder.time_in_calls();
}

void StragglerLog::end(Work work) {
  is_computing_ = false;
  if (work == Work::kCompute && !stream_.is_cpu()) {
    return under_way_.back().second.record(stream_);
  }
  const Clock::duration calls =
      world_.transport().context().recorder.time_in_calls() - calls_before_;
  add(work, milliseconds_of(Clock::now() - begun_ - calls));
}

void StragglerLog::InTurns::change_turn() noexcept {
  if (log_ == nullptr) return;
  const bool computes = log_->is_computing_;
  try {
    if (computes) log_->end(Work::kCompute);
    if (other_computes_) log_->begin(Work::kCompute);
  } catch (const Error& error) {
    // The device has failed; its own operation reports the error.
    debug(error.what());
  }
  other_computes_ = computes;
}

void StragglerLog::add(Work work, double milliseconds) {
  if (work == Work::kCompute) {
    compute_ms_ += milliseconds;
  } else {
    longest_read_ms_ = std::max(longest_read_ms_, milliseconds);
  }
}

void StragglerLog::count_iteration(double operations) {
  operations_ += operations;
  iterations_ += 1;
  collect(false);
}

void StragglerLog::collect(bool waits) {
  while (!under_way_.empty()) {
    const auto& [first, last] = under_way_.front();
    if (waits) last.synchronize();
    if (!last.is_done()) return;
    add(Work::kCompute, last.ms_since(first));
    spare_.push_back(std::move(under_way_.front()));
    under_way_.pop_front();
  }
}

double StragglerLog::slowness(double milliseconds) const {
  std::vector<double> sums(static_cast<size_t>(num_stages_), 0);
  sums[static_cast<size_t>(stage_)] = milliseconds;
  comm::all_reduce({sums.data(), {num_stages_}, DType::kFloat64}, comm::Reduce::kSum, world_,
                   Stream{});
  const int others = world_.size() / num_stages_ - 1;
  const double of_others = sums[static_cast<size_t>(stage_)] - milliseconds;
  return others == 0 || of_others <= 0 ? 1 : milliseconds * others / of_others;
}

StragglerLog::Report StragglerLog::report() {
  collect(true);
  const auto iterations = static_cast<double>(std::max<int64_t>(iterations_, 1));
  const double own = compute_ms_ / iterations;
  const double read = longest_read_ms_;
  const double slow = std::min(slowness(own), 1e3);
  num_slow_ = slow < kMuchSlower ? 0 : num_slow_ + 1;
  const bool is_to_be_named = num_slow_ >= kReportsToWarn && !is_named_;
  const std::vector<OfRank> ends =
      largest_of_ranks({own, -own, read, -read, is_to_be_named ? slow : 0}, world_);
  const auto teraflops = [&](double milliseconds) {
    return milliseconds <= 0 ? 0 : operations_ / iterations / (milliseconds * 1e9 * world_.size());
  };
  const auto time = [](const OfRank& of) {
    return fmt::format("{:.2f}ms/{}", std::abs(of.value), of.rank);
  };
  const auto throughput = [&](const OfRank& of) {
    return fmt::format("{:.2f}TF/{}", teraflops(std::abs(of.value)), of.rank);
  };
  Report report;
  report.lines.push_back(
      fmt::format("[{:%Y-%m-%d %H:%M:%S}] | MnRtt/Rnk: {} | MxRtt/Rnk: {} | MnDRtt/Rnk: {} | "
                  "MxDRtt/Rnk: {} | MnEtpt/Rnk: {} | MxEtpt/Rnk: {}",
                  fmt::localtime(std::time(nullptr)), time(ends[1]), time(ends[0]), time(ends[3]),
                  time(ends[2]), throughput(ends[0]), throughput(ends[1])));
  if (num_named_ > 1 && num_named_ < world_.size()) {
    std::string bottom;
    std::string top;
    double next_slow = own;
    double next_fast = -own;
    constexpr double kNamed = -8e7;  // below all others
    for (int64_t i = 0; i < num_named_; ++i) {
      const std::vector<OfRank> next = largest_of_ranks({next_slow, next_fast}, world_);
      bottom += fmt::format(" {:.2f}/{},", teraflops(next[0].value), next[0].rank);
      top.insert(0, fmt::format(" {:.2f}/{},", teraflops(-next[1].value), next[1].rank));
      if (next[0].rank == world_.rank()) next_slow = kNamed;
      if (next[1].rank == world_.rank()) next_fast = kNamed;
    }
    report.lines.push_back(
        fmt::format("^^^^ Bottom {} Ranks with lowest  Etpt(TF):{}", num_named_, bottom));
    report.lines.push_back(
        fmt::format("^^^^ Top    {} Ranks with highest Etpt(TF):{}", num_named_, top));
  }
  report.warning = warning_of(ends[4]);
  compute_ms_ = longest_read_ms_ = operations_ = 0;
  iterations_ = 0;
  return report;
}

std::string StragglerLog::warning_of(const OfRank& slowest) {
  if (slowest.value < kMuchSlower) return {};
  if (slowest.rank == world_.rank()) is_named_ = true;
  const std::vector<std::string>& hosts = world_.transport().context().hosts;
  return fmt::format(
      "rank {}{} computes {:.2f} times as long as the others of its pipeline stage, in {} log "
      "intervals running; look for other programs, heat or a slow device there",
      slowest.rank, hosts.empty() ? "" : " on " + hosts[static_cast<size_t>(slowest.rank)],
      slowest.value, kReportsToWarn);
}

}  // namespace megatron
