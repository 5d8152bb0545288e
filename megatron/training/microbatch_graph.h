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

// Why the microbatches of a run cannot be replayed as a CUDA graph: the flag and the reason. Empty
// if they can be.
std::optional<std::string> why_no_graph(const RunConfig& config);

// --cuda-graph: runs the forward and the backward pass of training microbatches, the first ones op
// by op, so that everything is loaded, planned and searched; then records both passes and queues
// the record for each further microbatch, with one call instead of one a kernel.
//
// A microbatch is copied to where the record reads it: its tensors, the number of its first sample,
// the gradient of its loss. The kernels are the same as without a record, so the bits are too. On
// the CPU nothing is recorded, but the microbatches pass through the same places.
//
// For a model whose layers have no communication, in one chunk.
class MicrobatchGraph {
 public:
  // Microbatches that run op by op before one is recorded.
  static constexpr int64_t kWarmup = 2;

  // `task` and `random` must outlive it.
  MicrobatchGraph(TrainTask& task, RandomState& random, Stream stream);

  // Both passes of a training microbatch, whose samples count from first_sample; seed [] fp32 is
  // the gradient of its loss. Returns what it logged, which holds until the next call.
  //
  // Op by op unless it is quiet (GradientReduction::is_quiet), while a Tracer listens, where shapes
  // differ from those that were recorded, and, after a warning, where recording failed.
  MicrobatchOutput run(const Microbatch& batch, int64_t first_sample, const Tensor& seed,
                       bool is_quiet);

  // Are microbatches replayed from here on?
  bool is_recorded() const { return graph_.has_value(); }
  // Of all work on microbatches, evaluation too: nothing else may come between what a record uses,
  // and memory that one kind of pass has left serves the other.
  const MemoryPool& pool() const { return pool_; }

 private:
  MicrobatchOutput both_passes(const Microbatch& batch, const Tensor& seed);
  void record(const Microbatch& batch, const Tensor& seed);
  bool fits(const Microbatch& batch) const;
  void fill(const Microbatch& batch, int64_t first_sample, const Tensor& seed);

  TrainTask& task_;
  RandomState& random_;
  const Stream stream_;
  MemoryPool pool_;  // outlives what was recorded
  int64_t num_run_ = 0;
  bool is_refused_ = false;  // recording failed

  // Where the record reads and writes.
  Microbatch batch_;
  Tensor first_sample_;  // [1] int64
  Tensor seed_;
  MicrobatchOutput recorded_;
  std::optional<WorkGraph> graph_;
};

// The microbatch on the device of `stream`.
Microbatch moved(const Microbatch& batch, Stream stream);

}  // namespace megatron
