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
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/elementwise.h"
#include "megatron/training/flops.h"

namespace megatron {
namespace {

// Places in a Microbatch.
enum Part : size_t { kTokens, kTokenOrder, kTypes, kTypeOrder, kPaddingMask, kLabels, kNumParts };

std::vector<std::string> problems_of(const RunConfig& config) {
  std::vector<std::string> problems;
  const auto require = [&](bool holds, const std::string& problem) {
    if (!holds) problems.push_back(problem);
  };
  const ParallelConfig& parallel = config.parallel;
  const TrainingConfig& training = config.training;
  require(parallel.pipeline_model_parallel_size == 1,
          fmt::format("--pipeline-model-parallel-size {} is not available for this task; divide "
                      "the model by --tensor-model-parallel-size",
                      parallel.pipeline_model_parallel_size));
  require(parallel.context_parallel_size == 1,
          fmt::format("--context-parallel-size {} is not available for BERT; remove it",
                      parallel.context_parallel_size));
  require(config.transformer.position_embedding_type == PositionEmbedding::kLearnedAbsolute,
          "BERT has learned positions only; remove --position-embedding-type");
  require(training.rampup_batch_size.empty(),
          "--rampup-batch-size is not available for this task; remove it");
  const int64_t batch = training.micro_batch_size * parallel.data_parallel_size;
  require(training.global_batch_size == batch,
          fmt::format(
              "--global-batch-size {} must be --micro-batch-size {} x data parallel size {} "
              "for this task; remove it",
              training.global_batch_size, training.micro_batch_size, parallel.data_parallel_size));
  return problems;
}

// The numbers 0 .. n - 1 as blocks of one id, which an EpochDataset orders.
std::shared_ptr<const TextBlocks> numbers_below(int64_t n) {
  auto blocks = std::make_shared<TextBlocks>();
  blocks->block_size = 1;
  blocks->ids.resize(static_cast<size_t>(n));
  std::iota(blocks->ids.begin(), blocks->ids.end(), 0);
  return blocks;
}

std::vector<double> softmax(std::span<const float> scores) {
  const double highest = *std::max_element(scores.begin(), scores.end());
  std::vector<double> values;
  for (const float score : scores) values.push_back(std::exp(score - highest));
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  for (double& value : values) value /= sum;
  return values;
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

std::string ClassificationTask::head_of(ClassificationTaskKind kind) {
  return kind == ClassificationTaskKind::kRace ? "multichoice_head" : "classification_head";
}

ClassificationTask::ClassificationTask(const RunConfig& config,
                                       std::shared_ptr<const Tokenizer> tokenizer, Data data,
                                       const Options& options)
    : config_(config), tokenizer_(std::move(tokenizer)), data_(std::move(data)), options_(options) {
  const std::vector<std::string> problems = problems_of(config);
  if (!problems.empty()) throw ConfigError(problems);
}

std::vector<const Module*> ClassificationTask::build_model(const ModelSite& site) {
  parallel_ = &site.parallel;
  random_ = &site.random;
  const TransformerConfig& c = config_.transformer;
  const bool is_race = data_.kind == ClassificationTaskKind::kRace;
  model_ = std::make_unique<const BertModel>(
      c, whole_model(c.num_layers), site.parallel.tensor, site.stream,
      BertHeads{.classifier = head_of(data_.kind), .num_classes = is_race ? 1 : classes()});
  const int64_t samples = config_.training.micro_batch_size;
  const int64_t rows = samples * sequences_per_sample();
  positions_ = prepared_ids(default_position_ids(rows, c.seq_length), c.max_position_embeddings,
                            "position id")
                   .to(site.stream);
  sample_weights_ = full({samples, 1}, 1.0F, DType::kFloat32, site.stream);
  return {model_.get()};
}

void ClassificationTask::open_data(const Progress& progress) {
  const int64_t batch = config_.training.global_batch_size;
  const auto opened = [&](const std::shared_ptr<const ClassificationSet>& set, int64_t num_samples,
                          bool is_training) -> std::shared_ptr<const SampleDataset> {
    if (set == nullptr || num_samples == 0) return nullptr;
    return std::make_shared<EpochDataset>(
        numbers_below(set->num_samples()),
        EpochDataset::Options{.num_samples = num_samples,
                              .batch_size = batch,
                              .drops_last = is_training && !options_.keep_last,
                              .is_shuffled = is_training,
                              .seed = config_.training.seed});
  };
  loaders_.open(
      config_, *parallel_, model_name(), progress, {true},
      [&](const SampleCounts& sizes) -> SplitDatasets {
        return {.train = opened(data_.train, sizes.train, true),
                .valid = opened(data_.valid, sizes.valid, false),
                .test = nullptr};
      },
      [this](const SampleDataset& dataset, const SampleGroup& group, Split split, int64_t) {
        std::vector<int64_t> samples;
        std::vector<int64_t> number(static_cast<size_t>(dataset.sample_size()));
        for (const int64_t index : group.indices) {
          dataset.read(index, number);
          samples.push_back(number.front());
        }
        const bool is_training = split == Split::kTrain;
        return microbatch(is_training ? *data_.train : *data_.valid, samples, is_training);
      });
}

Microbatch ClassificationTask::microbatch(const ClassificationSet& set,
                                          std::span<const int64_t> samples,
                                          bool has_gradient) const {
  const int64_t rows = std::ssize(samples) * set.pairs_of_sample;
  const int64_t s = set.seq_length;
  Tensor tokens({rows, s}, DType::kInt64, Stream{});
  Tensor types({rows, s}, DType::kInt64, Stream{});
  Tensor padding({rows, s}, DType::kBool, Stream{});
  Tensor labels({std::ssize(samples), 1}, DType::kInt64, Stream{});
  int64_t row = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    labels.span<int64_t>()[i] = set.labels[static_cast<size_t>(samples[i])];
    for (int64_t p = 0; p < set.pairs_of_sample; ++p, ++row) {
      const EncodedPair& pair =
          set.pairs[static_cast<size_t>(samples[i] * set.pairs_of_sample + p)];
      std::copy(pair.tokens.begin(), pair.tokens.end(), tokens.span<int64_t>().begin() + row * s);
      std::copy(pair.types.begin(), pair.types.end(), types.span<int64_t>().begin() + row * s);
      for (int64_t k = 0; k < s; ++k) {
        padding.span<bool>()[static_cast<size_t>(row * s + k)] = k >= pair.length;
      }
    }
  }
  Microbatch made(kNumParts);
  const auto add_ids = [&](Part ids, Part order, const Tensor& from, int64_t size,
                           const char* what) {
    const RowIds checked = prepared_ids(from, size, what);
    made[ids] = checked.ids;
    if (has_gradient) made[order] = checked.order;
  };
  add_ids(kTokens, kTokenOrder, tokens, config_.transformer.padded_vocab_size, "token id");
  if (config_.transformer.tokentypes() > 0) {
    add_ids(kTypes, kTypeOrder, types, config_.transformer.tokentypes(), "token type");
  }
  made[kPaddingMask] = padding;
  expect_labels(labels, classes());
  made[kLabels] = labels;
  return made;
}

Variable ClassificationTask::scores(const Microbatch& batch) const {
  RowIds positions = positions_;
  if (positions.ids.size(0) != batch[kTokens].size(0)) positions = {};  // the last, smaller batch
  const BertInput input = {.tokens = {batch[kTokens], batch[kTokenOrder]},
                           .position_ids = positions,
                           .token_types = {batch[kTypes], batch[kTypeOrder]},
                           .padding_mask = batch[kPaddingMask]};
  const Variable logits = model_->class_logits(model_->forward(input, {}, *random_), *random_);
  return reshape(logits, {batch[kLabels].size(0), classes()});
}

MicrobatchOutput ClassificationTask::forward_step(Split, int64_t, const Microbatch& batch,
                                                  std::span<const Variable>) {
  const Variable all = scores(batch);  // [b, classes]
  const int64_t b = all.size(0);
  // One position of b samples.
  const Variable losses = cross_entropy(reshape(all, {1, b, classes()}), batch[kLabels]);
  const Variable loss = masked_mean(losses, sample_weights_);
  return {.losses = {loss}, .logged = {{"lm loss", loss.data()}}};
}

bool ClassificationTask::ends_epoch(const Progress& progress) const {
  if (data_.train == nullptr) return false;
  const int64_t length =
      epoch_iterations(*data_.train, config_.training.global_batch_size, options_.keep_last);
  return progress.iteration % length == 0;
}

void ClassificationTask::epoch_ended(const Progress& progress) {
  const int64_t length =
      epoch_iterations(*data_.train, config_.training.global_batch_size, options_.keep_last);
  measure(progress.iteration / length - 1);
}

// Each sample of the set counts once, whatever the ranks.
int64_t ClassificationTask::num_correct(const ClassificationSet& set,
                                        std::string* predictions) const {
  const int64_t replicas = parallel_->num_replicas();
  const int64_t first = set.num_samples() * parallel_->replica() / replicas;
  const int64_t end = set.num_samples() * (parallel_->replica() + 1) / replicas;
  int64_t correct = 0;
  for (int64_t begin = first; begin < end; begin += config_.training.micro_batch_size) {
    std::vector<int64_t> samples(
        static_cast<size_t>(std::min(config_.training.micro_batch_size, end - begin)));
    std::iota(samples.begin(), samples.end(), begin);
    Microbatch batch = microbatch(set, samples, false);
    for (Tensor& part : batch) {
      if (part.defined()) part = part.to(model_->stream());
    }
    const Tensor all = cast(scores(batch).data(), DType::kFloat32).to(Stream{});
    for (size_t i = 0; i < samples.size(); ++i) {
      const std::span<const float> row = all.span<float>().subspan(
          i * static_cast<size_t>(classes()), static_cast<size_t>(classes()));
      const auto sample = static_cast<size_t>(samples[i]);
      const int64_t label = set.labels[sample];
      if (std::max_element(row.begin(), row.end()) - row.begin() == label) correct += 1;
      if (predictions != nullptr) *predictions += prediction_line(set.uids[sample], label, row);
    }
  }
  return correct;
}

void ClassificationTask::measure_sets(int64_t epoch, const std::string* folder) {
  using Clock = std::chrono::steady_clock;
  const NoGrad no_grad;
  const bool was_training = random_->is_training();
  random_->set_training(false);
  print_line("calculating metrics ...");
  int64_t all_correct = 0;
  int64_t all_samples = 0;
  for (const auto& set : data_.measured) {
    const Clock::time_point started = Clock::now();
    std::string lines;
    int64_t correct = num_correct(*set, folder == nullptr ? nullptr : &lines);
    comm::all_reduce({&correct, {1}, DType::kInt64}, comm::Reduce::kSum, parallel_->data, Stream{});
    const double seconds = std::chrono::duration<double>(Clock::now() - started).count();
    print_line(fmt::format(
        " > |epoch: {}| metrics for {}: correct / total = {} / {} = {:.4f} %, elapsed time (sec): "
        "{:.3f}",
        epoch, set->name, correct, set->num_samples(), percent(correct, set->num_samples()),
        seconds));
    if (folder != nullptr && parallel_->world.rank() == 0) {
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
  random_->set_training(was_training);
}

void ClassificationTask::measure(int64_t epoch) {
  if (!data_.measured.empty()) measure_sets(epoch, nullptr);
}

void ClassificationTask::measure_and_predict(int64_t epoch, const std::string& folder) {
  if (parallel_->num_replicas() > 1) {
    throw ConfigError("predictions need one data-parallel rank; start fewer ranks");
  }
  measure_sets(epoch, &folder);
}

int64_t ClassificationTask::sequences_per_sample() const {
  return data_.kind == ClassificationTaskKind::kRace ? classes() : 1;
}

int64_t ClassificationTask::tokens_per_sample() const {
  return config_.transformer.seq_length * sequences_per_sample();
}

double ClassificationTask::flops(int64_t batch_size) const {
  TransformerConfig headless = config_.transformer;
  headless.padded_vocab_size = 0;
  return standard_flops(headless, batch_size * sequences_per_sample());
}

void ClassificationTask::close() {
  loaders_.close();
  model_.reset();
  positions_ = {};
  sample_weights_ = {};
}

std::map<std::string, ArgMap> ClassificationTask::recorded() const {
  return {{"tokenizer",
           {{"type", std::string(tokenizer_->type())}, {"vocab_size", tokenizer_->vocab_size()}}}};
}

}  // namespace megatron
