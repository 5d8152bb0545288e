#include "megatron/tasks/classification_task.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <span>
#include <utility>

#include "megatron/autograd/variable.h"
#include "megatron/comm/collectives.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/log.h"
#include "megatron/models/epoch_report.h"
#include "megatron/ops/elementwise.h"
#include "megatron/training/flops.h"

namespace megatron {
namespace {

std::vector<std::string> problems_of(const RunConfig& config) {
  std::vector<std::string> problems;
  const auto require = [&](bool holds, const std::string& problem) {
    if (!holds) problems.push_back(problem);
  };
  const ParallelConfig& parallel = config.parallel;
  require(parallel.pipeline_model_parallel_size == 1,
          fmt::format("--pipeline-model-parallel-size {} is not available for this task; divide "
                      "the model by --tensor-model-parallel-size",
                      parallel.pipeline_model_parallel_size));
  require(parallel.context_parallel_size == 1,
          fmt::format("--context-parallel-size {} is not available for BERT; remove it",
                      parallel.context_parallel_size));
  require(config.transformer.position_embedding_type == PositionEmbedding::kLearnedAbsolute,
          "BERT has learned positions only; remove --position-embedding-type");
  require(config.training.rampup_batch_size.empty(),
          "--rampup-batch-size is not available for this task; remove it");
  return problems;
}

std::vector<double> softmax(std::span<const float> scores) {
  const double highest = *std::max_element(scores.begin(), scores.end());
  std::vector<double> values;
  for (const float score : scores) values.push_back(std::exp(score - highest));
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  for (double& value : values) value /= sum;
  return values;
}

// The labels of samples, on the host: [b, 1] classes, [b n, 1] zeros and ones, or [b] numbers.
Tensor labels_of(const ClassificationProblem& problem, const ClassificationSet& set,
                 std::span<const int64_t> samples) {
  const int64_t b = std::ssize(samples);
  if (problem.labels == LabelKind::kValue) {
    std::vector<float> values;
    for (const int64_t sample : samples) values.push_back(set.values[static_cast<size_t>(sample)]);
    return tensor_of(values, {b});
  }
  const bool are_marks = problem.labels == LabelKind::kIndependent;
  const int64_t n = are_marks ? problem.num_labels : 1;
  std::vector<int64_t> ids;
  for (const int64_t sample : samples) {
    const auto begin = set.labels.begin() + sample * n;
    ids.insert(ids.end(), begin, begin + n);
  }
  const Tensor labels = tensor_of(ids, {b * n, 1});
  expect_labels(labels, are_marks ? 2 : problem.num_labels);
  return labels;
}

// log(1 + e^x) without overflow.
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

// The loss of a sample from its scores, on the host.
double sample_loss(const ClassificationProblem& problem, const ClassificationSet& set,
                   size_t sample, std::span<const float> scores) {
  switch (problem.labels) {
    case LabelKind::kClass:
      return -std::log(softmax(scores)[static_cast<size_t>(set.labels[sample])]);
    case LabelKind::kIndependent: {
      double sum = 0;
      for (size_t i = 0; i < scores.size(); ++i) {
        const auto mark = static_cast<double>(set.labels[sample * scores.size() + i]);
        sum += softplus(scores[i]) - scores[i] * mark;
      }
      return sum / static_cast<double>(scores.size());
    }
    case LabelKind::kValue: {
      const double difference = static_cast<double>(scores[0]) - set.values[sample];
      return difference * difference;
    }
  }
  throw InternalError("sample_loss: unknown kind of labels");
}

std::string prediction_line(int64_t uid, int64_t label, std::span<const float> scores) {
  return fmt::format("{{\"uid\": {}, \"label\": {}, \"probabilities\": [{:.6f}]}}\n", uid, label,
                     fmt::join(softmax(scores), ", "));
}

double percent(int64_t part, int64_t all) {
  return 100.0 * static_cast<double>(part) / static_cast<double>(std::max<int64_t>(all, 1));
}

}  // namespace

int64_t epoch_iterations(const ClassificationSet& set, int64_t global_batch_size, bool keep_last) {
  const int64_t more = keep_last ? global_batch_size - 1 : 0;
  return (set.num_samples() + more) / global_batch_size;
}

BertHeads ClassificationTask::heads_of(const ClassificationProblem& problem) {
  return {.classifier = problem.head, .num_classes = problem.num_labels / problem.pairs_of_sample};
}

ClassificationTask::ClassificationTask(const RunConfig& config,
                                       std::shared_ptr<const Tokenizer> tokenizer, Data data,
                                       const Options& options)
    : ModelTask(config, std::move(tokenizer)), data_(std::move(data)), options_(options) {
  const std::vector<std::string> problems = problems_of(config);
  if (!problems.empty()) throw ConfigError(problems);
}

std::vector<std::unique_ptr<const Model>> ClassificationTask::make_chunks(
    const ModelSite& site) const {
  const TransformerConfig& c = config().transformer;
  std::vector<std::unique_ptr<const Model>> chunks;
  chunks.push_back(std::make_unique<const BertModel>(
      c, whole_model(c.num_layers), site.parallel.tensor, site.stream, heads_of(data_.problem)));
  return chunks;
}

std::vector<const Module*> ClassificationTask::build_model(const ModelSite& site) {
  sample_weights_ =
      full({config().training.micro_batch_size, 1}, 1.0F, DType::kFloat32, site.stream);
  return ModelTask::build_model(site);
}

SplitDatasets ClassificationTask::open_datasets(const SampleCounts& sizes) const {
  const auto numbered = [](const std::shared_ptr<const ClassificationSet>& set) {
    return set == nullptr ? nullptr : numbered_blocks(set->num_samples());
  };
  return epoch_datasets(numbered(data_.train), numbered(data_.valid), sizes,
                        {.batch_size = config().training.global_batch_size,
                         .drops_last = !options_.keep_last,
                         .seed = config().training.seed});
}

TextMicrobatch ClassificationTask::make_batch(const SampleDataset& dataset,
                                              const SampleGroup& group, Split split,
                                              int64_t) const {
  std::vector<int64_t> samples;
  std::vector<int64_t> number(static_cast<size_t>(dataset.sample_size()));
  for (const int64_t index : group.indices) {
    dataset.read(index, number);
    samples.push_back(number.front());
  }
  return batch_of(split == Split::kTrain ? *data_.train : *data_.valid, samples, split);
}

TextMicrobatch ClassificationTask::batch_of(const ClassificationSet& set,
                                            std::span<const int64_t> samples, Split split) const {
  const int64_t rows = std::ssize(samples) * sequences_per_sample();
  const int64_t s = set.seq_length;
  Tensor tokens({rows, s}, DType::kInt64, Stream{});
  Tensor types({rows, s}, DType::kInt64, Stream{});
  Tensor padding({rows, s}, DType::kBool, Stream{});
  int64_t row = 0;
  for (const int64_t sample : samples) {
    for (int64_t p = 0; p < sequences_per_sample(); ++p, ++row) {
      const EncodedPair& pair = set.pairs[static_cast<size_t>(sample * sequences_per_sample() + p)];
      std::copy(pair.tokens.begin(), pair.tokens.end(), tokens.span<int64_t>().begin() + row * s);
      std::copy(pair.types.begin(), pair.types.end(), types.span<int64_t>().begin() + row * s);
      for (int64_t k = 0; k < s; ++k) {
        padding.span<bool>()[static_cast<size_t>(row * s + k)] = k >= pair.length;
      }
    }
  }
  TextMicrobatch made = part_of(
      {.input = {.tokens = tokens, .token_types = types, .padding_mask = padding}}, 0, split);
  made.targets.labels = labels_of(data_.problem, set, samples);
  return made;
}

Variable ClassificationTask::scores(const Model& model, const Variable& hidden) const {
  const Variable logits = static_cast<const BertModel&>(model).class_logits(hidden, random());
  return reshape(logits, {hidden.size(1) / sequences_per_sample(), classes()});
}

MicrobatchOutput ClassificationTask::loss(const Model& model, const Variable& hidden,
                                          const TokenTargets& targets) const {
  const Variable found = scores(model, hidden);
  const Variable loss = label_loss(data_.problem.labels, found, targets.labels, sample_weights_);
  return {.losses = {loss}, .logged = {{data_.problem.logged, loss.data()}}};
}

bool ClassificationTask::ends_epoch(const Progress& progress) const {
  if (data_.train == nullptr) return false;
  const int64_t length =
      epoch_iterations(*data_.train, config().training.global_batch_size, options_.keep_last);
  return progress.iteration % length == 0;
}

void ClassificationTask::epoch_ended(const Progress& progress) {
  const int64_t length =
      epoch_iterations(*data_.train, config().training.global_batch_size, options_.keep_last);
  measure(progress.iteration / length - 1);
}

// Each sample of the set counts once for any number of ranks.
ClassificationTask::Totals ClassificationTask::own_totals(const ClassificationSet& set,
                                                          std::string* predictions) const {
  const int64_t replicas = parallel().num_replicas();
  const int64_t first = set.num_samples() * parallel().replica() / replicas;
  const int64_t end = set.num_samples() * (parallel().replica() + 1) / replicas;
  Totals totals;
  for (int64_t begin = first; begin < end; begin += config().training.micro_batch_size) {
    std::vector<int64_t> samples(
        static_cast<size_t>(std::min(config().training.micro_batch_size, end - begin)));
    std::iota(samples.begin(), samples.end(), begin);
    const Microbatch batch = Microbatch(batch_of(set, samples, Split::kTest)).to(model(0).stream());
    const Activations hidden = forward(batch.as<TextMicrobatch>().input, 0, {});
    const Tensor all = cast(scores(model(0), hidden.back()).data(), DType::kFloat32).to(Stream{});
    for (size_t i = 0; i < samples.size(); ++i) {
      const std::span<const float> row = all.span<float>().subspan(
          i * static_cast<size_t>(classes()), static_cast<size_t>(classes()));
      const auto sample = static_cast<size_t>(samples[i]);
      totals.loss += sample_loss(data_.problem, set, sample, row);
      if (data_.problem.labels != LabelKind::kClass) continue;
      const int64_t label = set.labels[sample];
      if (std::max_element(row.begin(), row.end()) - row.begin() == label) totals.correct += 1;
      if (predictions != nullptr) *predictions += prediction_line(set.uids[sample], label, row);
    }
  }
  return totals;
}

ClassificationTask::Totals ClassificationTask::totals_of(const ClassificationSet& set) {
  const NoGrad no_grad;
  const bool was_training = random().is_training();
  random().set_training(false);
  const Totals own = own_totals(set, nullptr);
  random().set_training(was_training);
  const comm::Group& ranks = parallel().data;
  std::vector<double> losses(static_cast<size_t>(ranks.size()));
  comm::all_gather({losses.data(), {ranks.size()}, DType::kFloat64},
                   {&own.loss, {1}, DType::kFloat64}, ranks, Stream{});
  Totals totals = {.correct = own.correct,
                   .loss = std::accumulate(losses.begin(), losses.end(), 0.0)};
  comm::all_reduce({&totals.correct, {1}, DType::kInt64}, comm::Reduce::kSum, ranks, Stream{});
  return totals;
}

void ClassificationTask::measure_sets(int64_t epoch, const std::string* folder) {
  using Clock = std::chrono::steady_clock;
  const NoGrad no_grad;
  const bool was_training = random().is_training();
  random().set_training(false);
  print_line("calculating metrics ...");
  int64_t all_correct = 0;
  int64_t all_samples = 0;
  for (const auto& set : data_.measured) {
    const Clock::time_point started = Clock::now();
    std::string lines;
    int64_t correct = own_totals(*set, folder == nullptr ? nullptr : &lines).correct;
    comm::all_reduce({&correct, {1}, DType::kInt64}, comm::Reduce::kSum, parallel().data, Stream{});
    const double seconds = std::chrono::duration<double>(Clock::now() - started).count();
    print_line(fmt::format(
        " > |epoch: {}| metrics for {}: correct / total = {} / {} = {:.4f} %, elapsed time (sec): "
        "{:.3f}",
        epoch, set->name, correct, set->num_samples(), percent(correct, set->num_samples()),
        seconds));
    if (folder != nullptr && parallel().world.rank() == 0) {
      const std::filesystem::path file =
          std::filesystem::path(*folder) / fmt::format("predictions_{}.jsonl", set->name);
      write_text_atomically(file, lines);
      print_line(fmt::format("the predictions are in {}", file.string()));
    }
    all_correct += correct;
    all_samples += set->num_samples();
  }
  print_line(fmt::format(" >> |epoch: {}| overall: correct / total = {} / {} = {:.4f} %", epoch,
                         all_correct, all_samples, percent(all_correct, all_samples)));
  random().set_training(was_training);
}

void ClassificationTask::measure(int64_t epoch) {
  if (!data_.measured.empty()) measure_sets(epoch, nullptr);
}

void ClassificationTask::measure_and_predict(int64_t epoch, const std::string& folder) {
  if (parallel().num_replicas() > 1) {
    throw ConfigError("predictions need one data-parallel rank; start fewer ranks");
  }
  measure_sets(epoch, &folder);
}

int64_t ClassificationTask::tokens_per_sample() const {
  return config().transformer.seq_length * sequences_per_sample();
}

double ClassificationTask::flops(int64_t batch_size) const {
  TransformerConfig headless = config().transformer;
  headless.padded_vocab_size = 0;
  return standard_flops(headless, batch_size * sequences_per_sample());
}

void ClassificationTask::close() {
  ModelTask::close();
  sample_weights_ = {};
}

}  // namespace megatron
