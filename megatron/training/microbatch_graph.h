#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "megatron/device/allocator.h"
#include "megatron/device/random.h"
#include "megatron/device/work_graph.h"
#include "megatron/training/run_config.h"
#include "megatron/training/train_task.h"

namespace megatron {

// The reason, with its flag, why a run's microbatches cannot be replayed as a CUDA graph; empty if
// they can.
std::optional<std::string> why_no_graph(const RunConfig& config);

// --cuda-graph: runs the forward and the backward pass of training microbatches. The first ones run
// op by op, so that everything is loaded, planned and searched. Then both passes are recorded, and
// each further microbatch queues the record with one call instead of one per kernel.
//
// A microbatch is copied to the memory that the record reads: its tensors, the index of its first
// sample, the gradient of its loss. The kernels and so the bits are the same as without a record.
// On the CPU nothing is recorded, but microbatches use the same memory.
//
// Requires a model in one chunk whose layers do not communicate.
class MicrobatchGraph {
 public:
  // Microbatches that run op by op before one is recorded.
  static constexpr int64_t kWarmup = 2;

  // `task` and `random` must outlive it.
  MicrobatchGraph(TrainTask& task, RandomState& random, Stream stream);

  // Both passes of a training microbatch, whose samples count from first_sample; seed [] fp32 is
  // the gradient of its loss. Returns the logged values, which are valid until the next call.
  //
  // Runs op by op unless the microbatch is quiet (GradientReduction::is_quiet), while a Tracer is
  // active, for shapes that differ from the recorded ones, and, after a warning, if recording
  // failed.
  MicrobatchOutput run(const Microbatch& batch, int64_t first_sample, const Tensor& seed,
                       bool is_quiet);

  // True if further microbatches are replayed.
  bool is_recorded() const { return graph_.has_value(); }
  // The pool for all work on microbatches, including evaluation: no other work may use the record's
  // memory, and each kind of pass may use memory that the other has released.
  const MemoryPool& pool() const { return pool_; }

 private:
  MicrobatchOutput both_passes(const Microbatch& batch, const Tensor& seed);
  void record(const Microbatch& batch, const Tensor& seed);
  bool fits(const Microbatch& batch) const;
  void fill(const Microbatch& batch, int64_t first_sample, const Tensor& seed);

  TrainTask& task_;
  RandomState& random_;
  const Stream stream_;
  MemoryPool pool_;  // outlives the record
  int64_t num_run_ = 0;
  bool is_refused_ = false;  // recording failed

  // Memory that the record reads and writes.
  Microbatch batch_;
  Tensor first_sample_;  // [1] int64
  Tensor seed_;
  MicrobatchOutput recorded_;
  std::optional<WorkGraph> graph_;
};

}  // namespace megatron
