#include "megatron/cli/merge_mp_partitions.h"

#include "megatron/cli/command.h"
#include "megatron/cli/convert_checkpoint.h"
#include "megatron/cli/training_words.h"
#include "megatron/core/error.h"
#include "megatron/settings/flag_table.h"

namespace megatron::cli {

int merge_mp_partitions(std::span<const std::string> words) {
  std::string load;
  std::string save;
  std::string model_type;
  int64_t stages = 1;
  FlagTable flags;
  flags.group("what");
  flags.add_optional("--load", load, "Checkpoint to read, of any layout.").required();
  flags.add_optional("--save", save, "Directory to write to.").required();
  flags.add_optional("--model-type", model_type, "GPT, BERT or T5, as a check.");
  flags.add("--target-pipeline-model-parallel-size", stages, "Pipeline stages of the result.");
  if (!parse_flags(flags, "megatron merge-mp-partitions --load DIR --save DIR [flags]",
                   without_training_words(flags, words))) {
    return 0;
  }
  std::vector<std::string> problems;
  if (load.empty()) problems.emplace_back("--load is missing: the checkpoint to read");
  if (save.empty()) problems.emplace_back("--save is missing: the directory to write to");
  if (!problems.empty()) throw ConfigError(problems);

  std::vector<std::string> conversion = {"--load-dir",
                                         load,
                                         "--save-dir",
                                         save,
                                         "--target-tensor-parallel-size",
                                         "1",
                                         "--target-pipeline-parallel-size",
                                         std::to_string(stages)};
  if (!model_type.empty()) conversion.insert(conversion.end(), {"--model-type", model_type});
  return convert_checkpoint(conversion);
}

}  // namespace megatron::cli
