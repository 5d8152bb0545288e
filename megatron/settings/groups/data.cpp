#include <utility>

#include "megatron/settings/groups/groups.h"
#include "megatron/settings/tokenizer_flags.h"

namespace megatron {

void add_data_flags(FlagTable& flags, TrainingArgs& args) {
  using T = FlagType;
  DataConfig& c = args.data;
  TransformerConfig& transformer = args.transformer;
  ArgMap& other = args.other;
  const ArgValue none;

  flags.group("data and tokenizer");
  flags.add_optional(
      "--data-path", c.data_path,
      "Prefix of a dataset's .bin and .idx, or several as: weight prefix weight prefix ...");
  flags.add("--split,--splits-string", c.split,
            "Proportions of --data-path for training, validation and test, such as 90,5,5.");
  flags.add_optional("--train-data-path,--train-weighted-split-paths", c.train_data_path,
                     "Training data, like --data-path but not split; or \"NAME: weight start:end "
                     "prefix, ...\" with parts of datasets.");
  flags.add_optional("--valid-data-path,--valid-weighted-split-paths", c.valid_data_path,
                     "Validation data, like --data-path but not split; or groups to evaluate "
                     "separately: \"NAME: weight start:end prefix, ...\".");
  flags.add_optional("--test-data-path,--test-weighted-split-paths", c.test_data_path,
                     "Test data, like --valid-data-path.");
  for (const auto& [name, field] :
       {std::pair{"--train-weighted-split-paths-path", "train_data_path"},
        std::pair{"--valid-weighted-split-paths-path", "valid_data_path"},
        std::pair{"--test-weighted-split-paths-path", "test_data_path"}}) {
    flags
        .add_later_entry(name, T::kText, other, none,
                         "File with the groups of the flag without -path, in double quotes.")
        .becomes(field)
        .status = FlagStatus::kUsed;
  }
  flags.add_removed("--data-path2", T::kTexts,
                    "use --train-data-path in place of --data-path, and --valid-data-path \"old: 1 "
                    "0.98:1 PREFIX\" for the last 2 % of the other domain");
  flags.add_optional("--data-args-path", c.data_args_path,
                     "File with the arguments of --data-path.");
  flags.add_optional("--per-split-data-args-path", c.per_split_data_args_path,
                     "JSON file with the blend of each split.");
  flags.add_optional("--data-cache-path", c.data_cache_path,
                     "Directory of index caches; next to the data if not given.");
  flags.add_switch("--mock-data", c.mock_data, "Synthetic samples instead of data files.");
  flags.add_optional("--seq-length", transformer.seq_length, "Tokens in a sample.")
      .from_checkpoint()
      .nickname({"--sequence-length", "--seq-len"})
      .required("--encoder-seq-length");
  flags
      .add_optional("--encoder-seq-length", transformer.encoder_seq_length,
                    "The same as --seq-length.")
      .becomes("seq_length");
  flags
      .add_optional("--decoder-seq-length", transformer.decoder_seq_length,
                    "Tokens in a sample of T5's decoder.")
      .from_checkpoint()
      .only_for({"T5"});
  flags.add("--mask-prob", c.mask_prob, "Fraction of tokens that BERT and T5 mask.")
      .only_for({"BERT", "T5"});
  flags.add("--short-seq-prob", c.short_seq_prob, "Fraction of samples that are shortened.")
      .only_for({"BERT", "T5"});
  flags.add("--num-workers", c.num_workers, "Threads that prefetch samples.").at_most(kMaxThreads);
  flags.add_off("--no-data-sharding", c.data_sharding,
                "Shuffle the cyclic order over all samples instead of within each rank's shard.");
  flags.add_switch("--reset-position-ids", c.reset_position_ids,
                   "Restart positions after each end of document.");
  flags.add_switch("--reset-attention-mask", c.reset_attention_mask,
                   "Restrict attention to the token's own document within the sample.");
  flags.add_switch("--eod-mask-loss", c.eod_mask_loss,
                   "Exclude end-of-document tokens from the loss.");
  flags
      .add_switch(
          "--prefix-lm", c.prefix_lm,
          "Train a prefix language model: attention is bidirectional within a random prefix of "
          "each sequence, or of each document with --reset-attention-mask. On the CPU only.")
      .only_for({"GPT"})
      .is_listed = false;
  flags
      .add_switch("--loss-on-targets-only", c.loss_on_targets_only,
                  "With --prefix-lm: exclude tokens within prefixes from the loss.")
      .only_for({"GPT"})
      .is_listed = false;
  flags
      .add_switch("--reweight-loss-based-on-position-frequency",
                  c.reweight_loss_based_on_position_frequency,
                  "With --prefix-lm: give early tokens, which are rarely targets, a larger weight.")
      .only_for({"GPT"})
      .is_listed = false;

  add_tokenizer_flags(flags, args.tokenizer);

  flags.add_entry("--sample-rate", T::kFloat, other, 1.0, "Fraction of documents retrieved from.");
  flags.add_entry("--retriever-seq-length", T::kInt, other, int64_t{256},
                  "Tokens in a sample of the retriever.");
  flags.add_later_entry("--data-impl", T::kChoice, other, "mmap", "Format of data files.")
      .among({"infer", "mmap", "lazy", "cached"})
      .no_effect("the index file says its format");
  flags.add_later_entry("--no-mmap-bin-files", T::kOff, other, true,
                        "Data files are always mapped.");
  flags.add_later_entry("--no-create-attention-mask-in-dataloader", T::kOff, other, true,
                        "Masks are made where they are used.");
  flags.add_later_entry("--num-dataset-builder-threads", T::kInt, other, int64_t{1},
                        "Threads that open datasets.");
}

}  // namespace megatron
