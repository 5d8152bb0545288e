#include "megatron/settings/tokenizer_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace megatron {

void add_tokenizer_flags(FlagTable& flags, TokenizerConfig& tokenizer) {
  flags
      .add_optional(
          "--tokenizer-type", tokenizer.tokenizer_type,
          fmt::format("Type of the tokenizer: {}.", fmt::join(known_tokenizer_types(), ", ")))
      .from_checkpoint()
      .continued();
  flags
      .add_optional("--vocab-file,--vocab", tokenizer.vocab_file,
                    "Vocabulary: vocab.json of a GPT-2, vocab.txt of a BERT.")
      .in_every_version();
  flags
      .add_optional("--merge-file,--merges-file", tokenizer.merge_file,
                    "Merges of a GPT-2: merges.txt.")
      .in_every_version();
  flags.add_optional(
      "--tokenizer-model,--tokenizer-name-or-path", tokenizer.tokenizer_model,
      "A SentencePiece model, a tokenizer.json, the list of a TikTokenizer, a folder "
      "with the files, or the name of a model in Hugging Face's cache.");
  flags
      .add_optional("--vocab-size", tokenizer.vocab_size,
                    "Number of ids, for NullTokenizer and TikTokenizer.")
      .in_every_version();
  flags
      .add("--vocab-extra-ids", tokenizer.vocab_extra_ids,
           "Sentinel tokens added to the vocabulary; T5 uses 100.")
      .only_for({"T5"});
  flags.add("--tiktoken-pattern", tokenizer.tiktoken_pattern,
            "A TikTokenizer's pattern for splitting text into words: v1 or v2.");
  flags.add("--tiktoken-num-special-tokens", tokenizer.tiktoken_num_special_tokens,
            "Ids of a TikTokenizer reserved for special tokens.");
  flags.add("--tokenizer-special-tokens", tokenizer.tokenizer_special_tokens,
            "Special tokens of a TikTokenizer, or additional ones of a HuggingFaceTokenizer.");
  flags.add_off("--tokenizer-hf-no-include-special-tokens -> tokenizer_hf_include_special_tokens",
                tokenizer.tokenizer_hf_include_special_tokens,
                "Add no special tokens to the texts of a HuggingFaceTokenizer.");
}

}  // namespace megatron
