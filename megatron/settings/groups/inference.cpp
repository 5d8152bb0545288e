#include "megatron/settings/groups/groups.h"

namespace megatron {

void add_inference_flags(FlagTable& flags, TrainingArgs& args) {
  using T = FlagType;
  ArgMap& other = args.other;

  flags.group("inference");
  flags.add_entry(
      "--inference-batch-times-seqlen-threshold", T::kInt, other, int64_t{512},
      "Batch size times sequence length below which generation does not pipeline its batch.");
  flags.add_entry("--max-tokens-to-oom", T::kInt, other, int64_t{12000},
                  "Largest number of tokens that a request may need.");
  flags.add_entry("--output-bert-embeddings", T::kSwitch, other, false,
                  "Let BERT output embeddings instead of predictions.", "BERT embeddings");
  flags
      .add_entry("--bert-embedder-type", T::kChoice, other, "megatron",
                 "Origin of the embedding BERT.")
      .among({"megatron", "huggingface"});
}

}  // namespace megatron
