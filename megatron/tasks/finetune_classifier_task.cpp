#include "megatron/tasks/finetune_classifier_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "megatron/core/log.h"
#include "megatron/core/number_text.h"

namespace megatron {

FinetuneClassifierTask::FinetuneClassifierTask(const RunConfig& config,
                                               std::shared_ptr<const Tokenizer> tokenizer,
                                               Data data)
    : ClassificationTask(config, std::move(tokenizer), std::move(data), {.keep_last = true}) {}

void FinetuneClassifierTask::epoch_ended(const Progress& progress) {
  const int64_t length = epoch_iterations(*data().train, config().training.global_batch_size, true);
  evaluate_epoch(progress.iteration / length - 1);
}

void FinetuneClassifierTask::evaluate_epoch(int64_t epoch) {
  if (data().valid == nullptr) return;
  const Totals totals = totals_of(*data().valid);
  const auto n = static_cast<double>(data().valid->num_samples());
  evaluation_ = Evaluation{.loss = totals.loss / n, .accuracy = std::nullopt};
  std::string line = fmt::format("epoch {}:", epoch);
  if (data().problem.labels == LabelKind::kClass) {
    evaluation_->accuracy = static_cast<double>(totals.correct) / n;
    line += " accuracy: " + python_repr(*evaluation_->accuracy);
  }
  print_line(line + " eval_loss: " + python_repr(evaluation_->loss));
}

}  // namespace megatron
