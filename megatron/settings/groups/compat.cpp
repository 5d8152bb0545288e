#include <string>
#include <vector>

#include "megatron/settings/groups/groups.h"

namespace megatron {

void add_compat_flags(FlagTable& flags, TrainingArgs& args) {
  using T = FlagType;
  ArgMap& other = args.other;
  const ArgValue none;
  const auto add = [&](const char* names, T type, ArgValue fallback, const char* help,
                       const char* missing_feature = "") -> Flag& {
    return flags.add_entry(names, type, other, std::move(fallback), help, missing_feature);
  };

  flags.group("autoresume");
  add("--adlr-autoresume", T::kSwitch, false, "A cluster's own restart service.");
  add("--adlr-autoresume-interval", T::kInt, int64_t{1000},
      "Polling interval of --adlr-autoresume.");

  flags.group("biencoder");
  add("--ict-head-size", T::kInt, none, "Size of the retrieval embedding.");
  add("--biencoder-projection-dim", T::kInt, int64_t{0}, "Size of the biencoder's projection.");
  add("--biencoder-shared-query-context-model", T::kSwitch, false, "One model for both sides.");
  add("--ict-load", T::kText, none, "Checkpoint of the biencoder.");
  add("--bert-load", T::kText, none, "Checkpoint of BERT to start from.");
  add("--titles-data-path", T::kText, none, "Titles of documents.");
  add("--query-in-block-prob", T::kFloat, 0.1, "Probability of keeping the query in its block.");
  add("--use-one-sent-docs", T::kSwitch, false, "Use documents of one sentence.");
  add("--evidence-data-path", T::kText, none, "Evidence of the retriever.");
  add("--retriever-report-topk-accuracies", T::kInts, std::vector<int64_t>{}, "Reported ranks.");
  add("--retriever-score-scaling", T::kSwitch, false, "Scale scores by the embedding's size.");
  add("--block-data-path", T::kText, none, "Path of block data.");
  add("--embedding-path", T::kText, none, "Path of embeddings.");
  add("--indexer-batch-size", T::kInt, int64_t{128}, "Batch size of the indexer.");
  add("--indexer-log-interval", T::kInt, int64_t{1000}, "Log interval of the indexer.");

  flags.group("vision");
  add("--num-classes", T::kInt, int64_t{1000}, "Classes of images.");
  add("--img-h", T::kInt, int64_t{224}, "Height of images.");
  add("--img-w", T::kInt, int64_t{224}, "Width of images.");
  add("--num-channels", T::kInt, int64_t{3}, "Channels of images.");
  add("--patch-dim", T::kInt, int64_t{16}, "Side of a patch.");
  add("--classes-fraction", T::kFloat, 1.0, "Fraction of classes used.");
  add("--data-per-class-fraction", T::kFloat, 1.0, "Fraction of each class used.");
  add("--head-lr-mult", T::kFloat, 1.0, "Learning rate multiplier of the head.");
  add("--vision-pretraining", T::kSwitch, false, "Vision pre-training.");
  add("--vision-pretraining-type", T::kChoice, "classify", "Kind of vision pre-training.")
      .among({"classify", "inpaint", "dino"});
  add("--vision-backbone-type", T::kChoice, "vit", "Vision backbone.")
      .among({"vit", "mit", "swin"});
  add("--swin-backbone-type", T::kChoice, "tiny", "Size of the Swin backbone.")
      .among({"tiny", "base", "h3"});
  add("--mask-type", T::kChoice, "random", "Mask of images.").among({"random", "row"});
  add("--mask-factor", T::kFloat, 1.0, "Size of the mask.");
  add("--iter-per-epoch", T::kInt, int64_t{1250}, "Iterations of an epoch.");
  add("--dino-local-img-size", T::kInt, int64_t{96}, "Size of DINO's local views.");
  add("--dino-local-crops-number", T::kInt, int64_t{10}, "Number of DINO's local views.");
  add("--dino-head-hidden-size", T::kInt, int64_t{2048}, "Hidden size of DINO's head.");
  add("--dino-bottleneck-size", T::kInt, int64_t{256}, "Bottleneck of DINO's head.");
  add("--dino-freeze-last-layer", T::kFloat, int64_t{1}, "Epochs with a frozen last layer.");
  add("--dino-norm-last-layer", T::kSwitch, false, "Normalize DINO's last layer.");
  add("--dino-warmup-teacher-temp", T::kFloat, 0.04, "First temperature of DINO's teacher.");
  add("--dino-teacher-temp", T::kFloat, 0.07, "Last temperature of DINO's teacher.");
  add("--dino-warmup-teacher-temp-epochs", T::kInt, int64_t{30},
      "Epochs from the first to the last temperature.");

  flags.group("fault injection");
  flags.add_later_entry("--error-injection-rate", T::kInt, other, int64_t{0}, "Injected errors.");
  flags.add_later_entry("--error-injection-type", T::kText, other, "transient_error",
                        "Kind of injected errors.");
  flags.add_later_entry("--result-rejected-tracker-filename", T::kText, other, none,
                        "List of rejected results.");
}

}  // namespace megatron
