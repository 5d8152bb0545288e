#include "megatron/cli/gpt_setup.h"

#include "megatron/cli/device_choice.h"
#include "megatron/cli/threads.h"
#include "megatron/device/allocator.h"
#include "megatron/training/flops.h"

namespace megatron::cli {
namespace {

std::vector<OptimizedParameter> parameters_of(const GptModel& model) {
  std::vector<OptimizedParameter> parameters = optimized_parameters(model);
  for (OptimizedParameter& parameter : parameters) {
    parameter.has_decoupled_lr =
        parameter.name.starts_with("embedding.") || parameter.name.starts_with("output_layer.");
  }
  return parameters;
}

}  // namespace

GptSetup::GptSetup(const TrainingArgs& args)
    : args_(args),
      stream_(chosen_device(args.training.device),
              {.allows_tf32 = args.training.allow_tf32,
               .is_deterministic = args.training.deterministic_mode,
               .searches_algorithms = !args.training.deterministic_mode}),
      random_(static_cast<uint64_t>(args.training.seed)) {
  use_threads(args.training.num_threads);
  model_ = std::make_unique<GptModel>(args_.transformer, stream());
  if (args_.transformer.perform_initialization) {
    initialize(*model_, static_cast<uint64_t>(args_.training.seed));
  }
  parameters_ = std::make_unique<FlatParameters>(
      parameters_of(*model_),
      FlatParametersOptions{
          .layout = {},
          .accumulate_allreduce_grads_in_fp32 = args_.parallel.accumulate_allreduce_grads_in_fp32});
  // The blocks that the flat buffers replaced fit nothing that comes.
  allocator_of(stream().device).empty_cache();
  optimizer_ = std::make_unique<Optimizer>(*parameters_, args_.optimizer);
  scheduler_ = std::make_unique<ParameterScheduler>(make_parameter_scheduler(
      args_.optimizer, {.train_iters = args_.training.train_iters,
                        .train_samples = args_.training.train_samples,
                        .global_batch_size = args_.training.global_batch_size}));
  microbatches_ = std::make_unique<MicrobatchCalculator>(
      make_microbatch_calculator(args_.training, args_.parallel.data_parallel_size));
}

TrainerParts GptSetup::parts(TrainTask& task) {
  return {.config = args_.training,
          .task = task,
          .parameters = *parameters_,
          .optimizer = *optimizer_,
          .scheduler = *scheduler_,
          .microbatches = *microbatches_,
          .random = random_,
          .progress = progress_,
          .device = stream().device,
          .data_parallel_size = args_.parallel.data_parallel_size,
          .tokens_per_sample = args_.transformer.seq_length,
          .flops = [this](int64_t batch) { return standard_flops(args_.transformer, batch); },
          .save = nullptr,
          .save_interval = args_.checkpoint.save_interval,
          .save_directory = args_.checkpoint.save,
          .started = std::chrono::steady_clock::now()};
}

}  // namespace megatron::cli
