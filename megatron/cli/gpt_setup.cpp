#include "megatron/cli/gpt_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "megatron/comm/collectives.h"
#include "megatron/comm/share_threads.h"
#include "megatron/device/allocator.h"
#include "megatron/run/device_choice.h"
#include "megatron/training/flops.h"

namespace megatron::cli {
namespace {

FlatParametersOptions flat_options(const ParallelConfig& config, const ParallelContext& parallel) {
  FlatParametersOptions options;
  // One bucket (0) where nothing overlaps.
  options.layout.bucket_size = config.overlap_grad_reduce ? bucket_size(config) : 0;
  options.accumulate_allreduce_grads_in_fp32 = config.accumulate_allreduce_grads_in_fp32;
  if (config.use_distributed_optimizer) {
    options.share = parallel.data.rank();
    options.num_shares = parallel.data.size();
  }
  return options;
}

// Sums of a rank's shares belong to the whole model once they are added up over `group`.
SumOverModel sum_over(const comm::Group& group) {
  return [group](TensorView numbers, Stream stream) {
    comm::all_reduce(numbers, comm::Reduce::kSum, group, stream);
  };
}

}  // namespace

std::optional<std::string> why_no_graph(const TrainingArgs& args) {
  const ParallelConfig& parallel = args.parallel;
  if (parallel.pipeline_model_parallel_size > 1) {
    return fmt::format("--pipeline-model-parallel-size {}: microbatches wait for other stages",
                       parallel.pipeline_model_parallel_size);
  }
  if (parallel.tensor_model_parallel_size > 1) {
    return fmt::format("--tensor-model-parallel-size {}: layers have collectives",
                       parallel.tensor_model_parallel_size);
  }
  if (parallel.context_parallel_size > 1) {
    return fmt::format("--context-parallel-size {}: layers have collectives",
                       parallel.context_parallel_size);
  }
  if (args.training.timing_log_level >= 2) {
    return fmt::format("--timing-log-level {}: forward and backward passes are timed one by one",
                       args.training.timing_log_level);
  }
  return std::nullopt;
}

GptSetup::GptSetup(const TrainingArgs& args, const comm::Group& world)
    : args_(args),
      parallel_(make_parallel_context(world, args.parallel)),
      stream_(chosen_device(args.training.device, world),
              {.allows_tf32 = args.training.allow_tf32,
               .is_deterministic = args.training.deterministic_mode,
               .searches_algorithms = !args.training.deterministic_mode}),
      random_(static_cast<uint64_t>(args.training.seed)) {
  comm::use_threads(args.training.num_threads);
  open_links(parallel_.links, parallel_.pipeline.rank(), parallel_.pipeline.size(),
             num_model_chunks(args_.parallel, args_.transformer.num_layers) > 1, stream());
  std::vector<OptimizedParameter> parameters;
  for (const ModelChunk& chunk :
       model_chunks(args_.parallel, args_.transformer.num_layers, parallel_.pipeline.rank())) {
    chunks_.push_back(std::make_unique<GptModel>(args_.transformer, chunk, parallel_.tensor,
                                                 stream(), parallel_.context));
    if (args_.transformer.perform_initialization) {
      initialize(*chunks_.back(), static_cast<uint64_t>(args_.training.seed));
    }
    for (OptimizedParameter& parameter :
         optimized_parameters(*chunks_.back(), parallel_.tensor.rank())) {
      parameters.push_back(std::move(parameter));
    }
  }
  parameters_ = std::make_unique<FlatParameters>(std::move(parameters),
                                                 flat_options(args_.parallel, parallel_));
  // The blocks that the flat buffers replaced fit nothing that comes.
  allocator_of(stream().device).empty_cache();
  const bool is_distributed = args_.parallel.use_distributed_optimizer;
  gradients_ = std::make_unique<GradientReduction>(
      *parameters_, parallel_,
      GradientReductionOptions{.use_distributed_optimizer = is_distributed,
                               .overlap_grad_reduce = args_.parallel.overlap_grad_reduce,
                               .overlap_param_gather = args_.parallel.overlap_param_gather});
  optimizer_ = std::make_unique<Optimizer>(
      *parameters_, args_.optimizer, sum_over(is_distributed ? parallel_.world : parallel_.model));
  scheduler_ = std::make_unique<ParameterScheduler>(make_parameter_scheduler(
      args_.optimizer, {.train_iters = args_.training.train_iters,
                        .train_samples = args_.training.train_samples,
                        .global_batch_size = args_.training.global_batch_size}));
  microbatches_ = std::make_unique<MicrobatchCalculator>(
      make_microbatch_calculator(args_.training, args_.parallel.data_parallel_size));
}

ActivationType GptSetup::activations() const {
  const TransformerConfig& c = args_.transformer;
  const int64_t slices = parallel_.tensor.sequence_parallel ? parallel_.tensor.size() : 1;
  return {.shape = {c.seq_length / slices / parallel_.context.size(),
                    args_.training.micro_batch_size, c.hidden_size},
          .dtype = c.fp32_residual_connection ? DType::kFloat32 : c.params_dtype,
          .stream = stream()};
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
          .gradients = *gradients_,
          .parallel = parallel_,
          .stream = stream(),
          .records_microbatches =
              !stream().is_cpu() && args_.training.cuda_graph && !why_no_graph(args_),
          .num_chunks = static_cast<int64_t>(chunks_.size()),
          .activations = activations(),
          .tokens_per_sample = args_.transformer.seq_length,
          .flops = [this](int64_t batch) { return standard_flops(args_.transformer, batch); },
          .save = nullptr,
          .save_interval = args_.checkpoint.save_interval,
          .save_directory = args_.checkpoint.save,
          .started = std::chrono::steady_clock::now()};
}

}  // namespace megatron::cli
