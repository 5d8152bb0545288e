#include "megatron/interchange/save_contents.h"

#include "megatron/checkpoint/commit.h"
#include "megatron/checkpoint/save.h"
#include "megatron/interchange/hf/names.h"
#include "megatron/models/gpt/gpt_parameters.h"

namespace megatron {

void write_hf_folder(const std::filesystem::path& directory, const CheckpointContents& contents,
                     const TransformerConfig& config, int64_t vocab_size, int64_t max_shard_bytes,
                     WeightsFormat format) {
  const StoredSection& weights = contents.sections.at(kWeightsSection);
  const StoredTensor& words = weights.at("embedding.word_embeddings.weight");
  HfModel model;
  model.transformer = config;
  model.transformer.padded_vocab_size = words.shape[0];
  model.transformer.params_dtype = words.dtype;
  model.family = hf_family_of(model.transformer);
  model.vocab_size = vocab_size > 0 ? vocab_size : words.shape[0];
  save_hf_model(
      directory, model, gpt_parameters(model.transformer), max_shard_bytes,
      [&](const TensorSpec& spec) { return whole_elements(weights.at(spec.name)); }, format);
}

void save_contents(const std::filesystem::path& directory, const CheckpointContents& contents,
                   SaveFormat format, const MegatronLayout& layout,
                   const TransformerConfig& config) {
  if (format == SaveFormat::kNative) return save_checkpoint(directory, contents);
  const bool is_hf = format == SaveFormat::kHuggingFace;
  const auto write = [&](const std::filesystem::path& unfinished) {
    if (is_hf) {
      write_hf_folder(unfinished, contents, config, 0, kMaxShardBytes);
    } else {
      write_megatron_files(unfinished, contents, layout);
    }
  };
  // Compat: Megatron-LM calls what was not trained a release.
  const bool is_release = contents.iteration == 0 && !is_hf;
  commit_checkpoint(directory,
                    is_release ? "release" : iteration_directory_name(contents.iteration),
                    is_hf ? CheckpointFormat::kHuggingFace : CheckpointFormat::kMegatron,
                    is_release ? "release" : std::to_string(contents.iteration), write);
}

}  // namespace megatron
