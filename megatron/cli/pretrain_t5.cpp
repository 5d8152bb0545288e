#include "megatron/cli/pretrain_t5.h"

#include <optional>

#include "megatron/cli/pretrain.h"
#include "megatron/core/log.h"
#include "megatron/models/t5/t5_task.h"
#include "megatron/run/training_run.h"

namespace megatron::cli {

int pretrain_t5(std::span<const std::string> words, const comm::Group& world) {
  const Speaking on_first(world.rank() == 0);
  const std::optional<Pretraining> begun =
      begin_pretraining("pretrain-t5", ModelKind::kT5, words, world);
  if (!begun) return 0;
  check_memory(begun->args, world);
  T5Task task(begun->args, begun->tokenizer);
  TrainingRun run(begun->args, task, world, begun->started, begun->save_directory);
  run.load(begun->source);
  run.train();
  return 0;
}

}  // namespace megatron::cli
