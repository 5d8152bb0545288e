#pragma once

#include <cstdint>
#include <vector>

#include "megatron/device/device.h"
#include "megatron/parallel/config.h"
#include "megatron/training/gpu_roof.h"
#include "megatron/transformer/config.h"

namespace megatron {

// The expected seconds of an iteration, by kind of work, on a rank of the slowest pipeline stage: a
// roofline estimate with measured efficiencies, not a promise.
struct StepEstimate {
  double linear = 0;       // matrix products of the layers
  double head = 0;         // output layer
  double attention = 0;    // scores and weighted sums
  double elementwise = 0;  // norms, residuals, loss: memory traffic
  double recompute = 0;    // repeated forward passes
  double host_copies = 0;  // waiting for activations on their way to the host and back
  double optimizer = 0;
  double bubble = 0;         // waiting for other pipeline stages
  double communication = 0;  // not overlapped, and the cost of overlapping

  double total() const {
    return linear + head + attention + elementwise + recompute + host_copies + optimizer + bubble +
           communication;
  }
};

// Bytes of an iteration whose transfers overlap with a fraction of its attention, forward and
// backward.
struct SentBeside {
  double bytes = 0;
  double forward = 0;
  double backward = 0;
};

// The traffic of a rank in an iteration. Transfers are the collectives of tensor-parallel layers.
struct SentTraffic {
  int64_t exposed_bytes = 0;  // not overlapped with computation
  int64_t exposed_transfers = 0;
  int64_t hidden_transfers = 0;  // beside products
  std::vector<SentBeside> beside_attention = {};
};

// The work of an update on a rank (models/plan/update_work.h).
struct UpdateWork {
  double device_bytes = 0;  // read and written in the memory of the parameters' device
  double host_bytes = 0;    // in the host's, by the host, with offload
  double bus_bytes = 0;     // between them, meanwhile
  double bf16_flops = 0;    // of Muon's products
  double fp32_flops = 0;
};

// CUDA: GPUs of one host, bf16; products, attention and memory traffic at the rates of whole
// iterations measured on an H200, scaled to another GPU by its peak rates. CPU: `flops_per_second`
// for all products, those of an update, too; nothing else counts. A T5's decoder counts as layers
// of the encoder with as many operations. `has_documents`: tokens see their own document alone.
StepEstimate estimated_step(const TransformerConfig& config, const ParallelConfig& parallel,
                            int64_t micro_batch_size, int64_t num_microbatches,
                            const UpdateWork& update, DeviceType device, double flops_per_second,
                            const SentTraffic& sent = {}, const GpuRoof& gpu = measured_gpu(),
                            bool has_documents = false);

// FLOP/s of one thread of the CPU kernels, fp32 or bf16 (docs/performance.md, rounded down).
inline constexpr double kCpuFlopsPerThread = 120e9;

}  // namespace megatron
