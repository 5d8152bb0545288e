#include "megatron/run/faster_stages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "megatron/parallel/pipeline/model_chunk.h"
#include "megatron/run/compared_seconds.h"
#include "megatron/run/memory_check.h"

namespace megatron {
namespace {

constexpr double kLeastSaved = 0.01;

std::string letters(char letter, int64_t count) {
  return count > 1 ? fmt::format("{}*{}", letter, count)
                   : std::string(static_cast<size_t>(count), letter);
}

// A division of the layers. A unit is a layer, or its attention or MLP.
struct Division {
  int64_t chunks = 1;           // of a rank
  int64_t units_per_layer = 1;  // 1 or 2
  int64_t units_of_last = 0;    // of the rank that has the loss
};

// Units of every stage with so many on the ranks, chunk by chunk. The first chunks of a rank get
// those that do not divide, since the last rank's last chunk has the loss.
std::vector<int64_t> in_chunks(const std::vector<int64_t>& units_of_ranks, int64_t chunks) {
  std::vector<int64_t> stages;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    for (const int64_t units : units_of_ranks) {
      stages.push_back(units / chunks + (chunk < units % chunks ? 1 : 0));
    }
  }
  return stages;
}

// The layers of a stage that has `count` units from `first` on.
std::string stage_word(int64_t first, int64_t count, int64_t units_per_layer) {
  if (units_per_layer == 1 || count == 0) return letters('t', count);
  const int64_t begins_with_mlp = first % 2;
  const int64_t ends_with_attention = (first + count) % 2;
  return letters('f', begins_with_mlp) +
         letters('t', (count - begins_with_mlp - ends_with_attention) / 2) +
         letters('a', ends_with_attention);
}

// The word of --pipeline-model-parallel-layout. The last of the ranks that share evenly get the
// units that do not divide, since they hold fewer microbatches.
std::string layout_word(const RunConfig& config, const Division& division) {
  const int64_t others = config.parallel.pipeline_model_parallel_size - 1;
  const int64_t shared =
      config.transformer.num_layers * division.units_per_layer - division.units_of_last;
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; rank < others; ++rank) {
    ranks.push_back(shared / others + (rank >= others - shared % others ? 1 : 0));
  }
  ranks.push_back(division.units_of_last);
  std::vector<std::string> words;
  int64_t first = 0;
  for (const int64_t units : in_chunks(ranks, division.chunks)) {
    words.push_back(stage_word(first, units, division.units_per_layer));
    first += units;
  }
  words.front().insert(0, "E");
  words.back() += letters('m', config.transformer.mtp_num_layers) + "L";
  return fmt::format("{}", fmt::join(words, "|"));
}

}  // namespace

void FasterStages::apply_to(RunConfig& config) const {
  ParallelConfig& c = config.parallel;
  c.pipeline_model_parallel_layout = layout;
  c.enable_zero_bubble = zero_bubble;
  c.zero_bubble_max_pending_backward = max_pending;
  c.num_layers_per_virtual_pipeline_stage = 0;
  c.num_virtual_stages_per_pipeline_rank = 0;
  c.virtual_pipeline_model_parallel_size = 0;
  c.decoder_first_pipeline_num_layers = 0;
  c.decoder_last_pipeline_num_layers = 0;
  c.account_for_embedding_in_pipeline_split = false;
  c.account_for_loss_in_pipeline_split = false;
  c.standalone_embedding_stage = false;
}

std::string FasterStages::flags() const {
  return fmt::format(
      "--pipeline-model-parallel-layout '{}'{}{}", layout,
      zero_bubble ? " --enable-zero-bubble" : "",
      max_pending > 0 ? fmt::format(" --zero-bubble-max-pending-backward {}", max_pending) : "");
}

std::optional<FasterStages> faster_stages(const RunConfig& config, DeviceType device, int64_t bytes,
                                          const GpuRoof& gpu) {
  const int64_t stages = config.parallel.pipeline_model_parallel_size;
  const int64_t layers = config.transformer.num_layers;
  if (stages == 1 || config.transformer.is_encoder_decoder()) return std::nullopt;
  const double given = compared_seconds(config, device, gpu);
  const int64_t chunks_of_run = num_model_chunks(config.parallel, layers);
  std::vector<int64_t> numbers = {1};
  if (chunks_of_run > 1) numbers.push_back(chunks_of_run);

  const int64_t most_units = config.transformer.parallel_residual ? 1 : 2;  // of a layer
  const auto fastest_of = [&](int64_t chunks, bool zero_bubble, int64_t max_pending) {
    FasterStages best;
    double least = 0;
    for (int64_t units = 1; units <= most_units; ++units) {
      for (int64_t last = layers * units / stages; last >= 0; --last) {  // the most even first
        FasterStages one = {.layout = layout_word(config, {chunks, units, last}),
                            .zero_bubble = zero_bubble,
                            .max_pending = max_pending};
        RunConfig changed = config;
        one.apply_to(changed);
        one.saved = 1 - compared_seconds(changed, device, gpu) / given;
        if (one.saved > std::max(best.saved, least)) best = std::move(one);
      }
      least = best.saved + kLeastSaved;  // of divided layers
    }
    return best;
  };
  std::vector<FasterStages> fastest;
  const auto keep_if = [&](FasterStages one, double least) {
    if (one.saved >= least) fastest.push_back(std::move(one));
  };
  for (const int64_t chunks : numbers) {
    const FasterStages filled = fastest_of(chunks, true, 0);
    keep_if(filled, kLeastSaved);
    keep_if(fastest_of(chunks, false, 0), kLeastSaved);
    if (chunks == 1) keep_if(fastest_of(1, true, 2 * stages - 1), filled.saved + kLeastSaved);
  }
  std::ranges::stable_sort(fastest, std::ranges::greater(), &FasterStages::saved);
  for (FasterStages& one : fastest) {
    RunConfig changed = config;
    one.apply_to(changed);
    if (needed_bytes(largest_rank_memory(planned_training(changed, device)), device) <= bytes) {
      return std::move(one);
    }
  }
  return std::nullopt;
}

}  // namespace megatron
