#include "annex/retro/tasks/dialogue_dataset.h"

#include <algorithm>
#include <utility>

#include "megatron/core/error.h"

namespace megatron {

DialogueDataset::DialogueDataset(std::vector<Dialogue> dialogues,
                                 const DialogueSampleOptions& options, int64_t num_samples,
                                 const Tokenizer& tokenizer)
    : dialogues_(std::move(dialogues)),
      options_(options),
      num_samples_(num_samples > 0 ? num_samples : std::ssize(dialogues_)),
      tokenizer_(tokenizer) {
  if (dialogues_.empty()) {
    throw ConfigError("the file has no question with an answer; give one that has");
  }
}

void DialogueDataset::read(int64_t sample, std::span<int64_t> out) const {
  const Dialogue& dialogue = dialogues_[static_cast<size_t>(sample % std::ssize(dialogues_))];
  const int64_t s = options_.seq_length;
  std::vector<int32_t> answer = tokenizer_.encode(dialogue.answer);
  std::vector<int32_t> ids =
      prompt_ids(dialogue, options_.prompt, std::ssize(answer), s, tokenizer_);
  if (std::ssize(ids) > s) ids.resize(static_cast<size_t>(s - 1));
  const int64_t begin = std::ssize(ids);
  answer.resize(static_cast<size_t>(std::min(std::ssize(answer), s - begin)));
  ids.insert(ids.end(), answer.begin(), answer.end());
  ids.push_back(options_.eos);
  const int64_t end = std::ssize(ids);
  ids.resize(static_cast<size_t>(s + 1), options_.pad);

  auto at = std::copy(ids.begin(), ids.end(), out.begin());
  *at++ = begin;
  *at++ = end;
  const std::vector<int64_t> neighbors =
      context_ids(dialogue, options_.reuse_top ? 0 : options_.prompt.ft_neighbours,
                  options_.num_neighbors, options_.neighbor_length, options_.eod, tokenizer_);
  std::copy(neighbors.begin(), neighbors.end(), at);
}

void set_answers(GptBatch& batch, const DialogueSampleOptions& options, bool answer_loss_only) {
  const int64_t s = batch.seq_length;
  const int64_t behind = DialogueDataset::behind_text(options);
  const std::vector<int64_t> numbers = std::exchange(batch.neighbor_tokens, {});
  int64_t shortest = s;
  for (int64_t row = 0; row < batch.micro_batch_size; ++row) {
    const auto own = numbers.begin() + row * behind;
    const int64_t begin = own[0];
    const int64_t end = own[1];
    shortest = std::min(shortest, begin);
    for (int64_t i = 0; i < s && answer_loss_only; ++i) {  // label i is token i + 1
      const bool counts = begin <= i + 1 && i + 1 < end;
      if (!counts) batch.loss_mask[static_cast<size_t>(row * s + i)] = 0;
    }
    for (int64_t chunk = 0; chunk < 2; ++chunk) {
      batch.neighbor_tokens.insert(batch.neighbor_tokens.end(), own + 2, own + behind);
    }
  }
  batch.chunk_length = std::max((s + 1) / 2, s - shortest);
}

}  // namespace megatron
