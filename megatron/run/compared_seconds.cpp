#include "megatron/run/compared_seconds.h"

#include "megatron/core/parallel_for.h"
#include "megatron/models/plan/traffic.h"
#include "megatron/run/memory_check.h"
#include "megatron/training/step_estimate.h"

namespace megatron {

double compared_seconds(const RunConfig& config, DeviceType device, const GpuRoof& gpu) {
  const PlannedTraining training = planned_training(config, device);
  const Traffic sent = exposed_traffic(training, 0, {});
  return estimated_step(config.transformer, config.parallel, training.micro_batch_size,
                        training.num_microbatches, {}, device, kCpuFlopsPerThread * num_threads(),
                        {.exposed_bytes = sent.total(), .exposed_transfers = sent.transfers}, gpu)
      .total();
}

}  // namespace megatron
