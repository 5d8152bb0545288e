#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/core/turns.h"
#include "megatron/device/device.h"
#include "megatron/device/stream.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

// A number of one rank.
struct OfRank {
  double value = 0;
  int rank = 0;
};

// The largest of all ranks' values, for each element of `own`; of equal ones the highest rank's.
// Values are rounded to 1e-5, and must be below 8e7. Every rank calls it.
std::vector<OfRank> largest_of_ranks(const std::vector<double>& own, const comm::Group& world);

// --log-straggler: names the ranks that compute slowest and fastest (the StragglerDetector of
// Megatron Core, megatron/core/README_STRAGGLER.md).
//
// A rank computes in the forward and backward passes of its microbatches. On the CPU the time of
// its calls to other ranks is subtracted. On a GPU a pass is measured between two events of its
// stream and includes the collectives inside it: a slow rank slows its tensor-parallel group.
class StragglerLog {
 public:
  // `num_named`: --straggler-minmax-count. Every rank has one.
  StragglerLog(const ParallelContext& parallel, Stream stream, int64_t num_named);

  enum class Work { kCompute, kRead };  // kRead: makes a microbatch
  // Measures a piece of work from its construction to its destruction. A null log measures nothing.
  class Scope {
   public:
    Scope(StragglerLog* log, Work work) : log_(log), work_(work) {
      if (log_ != nullptr) log_->begin(work_);
    }
    ~Scope() {
      if (log_ != nullptr) log_->end(work_);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    StragglerLog* log_;
    Work work_;
  };

  // While it lives, a pass of one of two functions that take turns does not count the other's
  // turns.
  class InTurns final : public TurnObserver {
   public:
    explicit InTurns(StragglerLog* log) : log_(log) {}  // null: none
    void begin_turns() override { other_computes_ = false; }
    void change_turn() noexcept override;

   private:
    StragglerLog* log_;
    bool other_computes_ = false;
  };

  // Adds a time that was measured elsewhere.
  void add(Work work, double milliseconds);
  // Call once an iteration, with the operations of all ranks.
  void count_iteration(double operations);

  struct Report {
    std::vector<std::string>
        lines;            // Megatron Core's; those that it has no number for are left out
    std::string warning;  // names a rank that stays slow, once; empty: none
  };
  // The report of the iterations since the last one, the same on every rank. Every rank calls it;
  // it costs a few reductions of a few numbers. Waits for the device.
  Report report();

 private:
  using Clock = std::chrono::steady_clock;
  using Passes = std::deque<std::pair<Event, Event>>;

  void begin(Work work);
  void end(Work work);
  // Adds the times of passes on a GPU that are over.
  void collect(bool waits);
  // The time that this rank computed, divided by the mean of the others of its pipeline stage.
  double slowness(double milliseconds) const;
  // `slowest`: the slowness of a rank that is to be named; 0: none is.
  std::string warning_of(const OfRank& slowest);

  const comm::Group world_;
  const int stage_;
  const int num_stages_;
  const Stream stream_;
  const int64_t num_named_;

  bool is_computing_ = false;
  Clock::time_point begun_;
  Clock::duration calls_before_{};  // in calls to other ranks
  Passes under_way_;
  Passes spare_;

  // Since the last report.
  double compute_ms_ = 0;
  double longest_read_ms_ = 0;
  double operations_ = 0;
  int64_t iterations_ = 0;

  int num_slow_ = 0;  // reports running in which this rank was much slower than the others
  bool is_named_ = false;
};

}  // namespace megatron
