#include "megatron/inference/decode_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "megatron/comm/collectives.h"
#include "megatron/comm/texts.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/device/staging.h"
#include "megatron/kernels/decode_inputs.h"
#include "megatron/kernels/paged_attention.h"
#include "megatron/parallel/tensor/mappings.h"

namespace megatron {
namespace {

constexpr int64_t kDrawWords = sizeof(kernels::Draw) / sizeof(int32_t);
static_assert(sizeof(kernels::Draw) % sizeof(int64_t) == 0);
// Numbers of rows of more than this are padded to a multiple of it.
constexpr int64_t kRowsAtOnce = 16;
// Most page-table changes that a step uploads one by one; beyond it uploads the table.
constexpr int64_t kMaxPageChanges = 2048;

int64_t rounded_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

DecodeSteps::DecodeSteps(const InferenceModel& model, KvCache& cache, int64_t max_rows,
                         int64_t max_pages)
    : model_(model),
      cache_(cache),
      max_rows_(rounded_up(max_rows, kRowsAtOnce)),
      max_pages_(max_pages),
      stream_(model.stream()),
      pool_(allocator_of(stream_.device)),
      host_pages_(max_rows_, max_pages) {
  inputs_ = zeros({max_rows_ * (kDrawWords + 2) + 1 + 2 * kMaxPageChanges}, DType::kInt32, stream_);
  int64_t at = 0;
  const auto part = [&](int64_t words) {
    at += words;
    return inputs_.slice(at - words, words);
  };
  draws_ = part(max_rows_ * kDrawWords);  // first, for its alignment
  tokens_ = part(max_rows_);
  lengths_ = part(max_rows_);
  changes_ = part(1 + 2 * kMaxPageChanges);
  pages_ = zeros({max_rows_, max_pages_}, DType::kInt32, stream_);
  std::vector<int32_t> queries;
  for (int64_t i = 0; i < max_rows_; ++i) queries.push_back(static_cast<int32_t>(i));
  queries_ = tensor_of(queries, {max_rows_}).to(stream_);
  drawn_ = zeros({max_rows_}, DType::kInt32, stream_);
  probabilities_ = probabilities_of_rows(max_rows_, stream_);
  for (auto& result : results_) {
    result = std::make_unique<Result>(drawn_, probabilities_);
  }
  if (TextStep::takes(model, cache)) text_step_.emplace(model, cache);
  if (stream_.is_cpu()) return;
  pool_.keep();
  records_ = comm::can_record(ranks(), stream_);
}

void DecodeSteps::launch(std::span<const DecodeRow> rows) {
  invariant(launched_.size() < kMaxStepsAhead, "the steps before are read first");
  const auto count = static_cast<int64_t>(rows.size());
  int64_t max_length = 0;
  std::vector<int64_t> texts;
  for (const DecodeRow& row : rows) {
    max_length = std::max(max_length, row.length);
    texts.push_back(row.text);
  }
  const std::span<const int32_t> places = rows_.of(texts);
  Kind& kind = kind_of(padded(count), max_length);
  upload(rows, places, kind.ids.size(1));
  rows_before_.assign(places.begin(), places.end());
  run(kind);
  const bool has_probabilities = std::any_of(rows.begin(), rows.end(), [](const DecodeRow& row) {
    return row.draw.num_probabilities > 0;
  });
  const size_t place = next_result_;
  next_result_ = (next_result_ + 1) % kMaxStepsAhead;
  Result& result = *results_[place];
  result.tokens.start(std::as_const(drawn_).view().data, stream_);
  if (has_probabilities) {
    result.probabilities.start(std::as_const(probabilities_).view().data, stream_);
  }
  launched_.push_back({rows_before_, place, has_probabilities});
}

DrawnTokens DecodeSteps::take() {
  const Launched step = std::move(launched_.front());
  launched_.pop_front();
  Result& result = *results_[step.result];
  const auto* const tokens = reinterpret_cast<const int32_t*>(result.tokens.wait());
  comm::expect_no_failure(ranks());
  DrawnTokens drawn;
  drawn.tokens.reserve(step.rows.size());
  for (const int32_t row : step.rows) drawn.tokens.push_back(tokens[row]);
  if (!step.has_probabilities) return drawn;
  const auto* const found =
      reinterpret_cast<const kernels::TokenLogProbability*>(result.probabilities.wait());
  for (const int32_t row : step.rows) {
    const auto* const first = found + int64_t{row} * kernels::kMaxLogProbabilities;
    drawn.probabilities.insert(drawn.probabilities.end(), first,
                               first + kernels::kMaxLogProbabilities);
  }
  return drawn;
}

// On a GPU padding lets several row counts share a graph; the CPU would compute the padding.
int64_t DecodeSteps::padded(int64_t rows) const {
  if (stream_.is_cpu()) return rows;
  if (rows >= kRowsAtOnce) return rounded_up(rows, kRowsAtOnce);
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)));
}

DecodeSteps::Kind& DecodeSteps::kind_of(int64_t rows, int64_t max_length) {
  constexpr auto kShortest = static_cast<uint64_t>(kernels::cuda::kMinPagedKeys);
  const auto longest =
      static_cast<int64_t>(std::bit_ceil(std::max(kShortest, static_cast<uint64_t>(max_length))));
  const auto [place, is_new] = kinds_.try_emplace({rows, longest});
  Kind& kind = place->second;
  if (!is_new) return kind;
  kind.ids = Tensor({1, rows}, DType::kInt64, stream_);
  kind.positions = Tensor({1, rows}, DType::kInt64, stream_);
  kind.batch.pages = pages_.slice(0, rows);
  kind.batch.lengths = lengths_.slice(0, rows);
  kind.batch.queries = queries_.slice(0, rows);
  kind.batch.max_length = longest;
  cache_.complete(kind.batch, rows);
  return kind;
}

void DecodeSteps::upload(std::span<const DecodeRow> rows, std::span<const int32_t> places,
                         int64_t padded_rows) {
  const auto max_rows = static_cast<size_t>(max_rows_);
  const size_t first_change = max_rows * (kDrawWords + 2) + 1;
  host_inputs_.resize(first_change);
  int32_t* const tokens = host_inputs_.data() + max_rows * kDrawWords;
  int32_t* const lengths = tokens + max_rows;
  const auto put_draw = [&](size_t place, const kernels::Draw& draw) {
    std::memcpy(host_inputs_.data() + place * kDrawWords, &draw, sizeof(draw));
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    const DecodeRow& row = rows[i];
    const auto place = static_cast<size_t>(places[i]);
    put_draw(place, row.draw);
    tokens[place] =
        row.token >= 0 ? row.token : drawn_by(rows_before_[static_cast<size_t>(-1 - row.token)]);
    lengths[place] = static_cast<int32_t>(row.length);
  }
  for (size_t place = rows.size(); place < static_cast<size_t>(padded_rows); ++place) {
    put_draw(place, {});
    lengths[place] = 0;
  }
  for (size_t i = 0; i < rows.size(); ++i)
    host_pages_.put(places[i], rows[i].text, rows[i].pages, host_inputs_);
  if (host_inputs_.size() > static_cast<size_t>(inputs_.numel())) {
    host_inputs_.resize(first_change);
    const auto table = host_pages_.first_rows(static_cast<int64_t>(rows.size()));
    upload_bytes(pages_.view().data, table.data(), static_cast<int64_t>(table.size_bytes()),
                 stream_);
  }
  host_inputs_[first_change - 1] = static_cast<int32_t>((host_inputs_.size() - first_change) / 2);
  upload_bytes(inputs_.view().data, host_inputs_.data(),
               static_cast<int64_t>(std::span(host_inputs_).size_bytes()), stream_);
}

void DecodeSteps::run(Kind& kind) {
  if (records_ && kind.is_warm && !kind.graph) record(kind);
  kind.is_warm = true;
  if (!kind.graph) return compute(kind);
  comm::launch_barrier(ranks(), stream_);
  kind.graph->launch();
}

void DecodeSteps::record(Kind& kind) {
  std::string problem;
  try {
    kind.graph.emplace(stream_, [&] { compute(kind); });
  } catch (const DeviceError& error) {
    problem = error.what();
  }
  for (const std::string& one : comm::gathered_texts(problem, ranks())) {
    if (problem.empty()) problem = one;
  }
  if (problem.empty()) return;
  records_ = false;
  kind.graph.reset();
  warn(fmt::format("generation continues without CUDA graphs, because one cannot be recorded: {}",
                   problem));
}

void DecodeSteps::compute(Kind& kind) {
  const NoGrad no_grad;
  const PoolScope scope(stream_.is_cpu() ? nullptr : &pool_);
  const int64_t rows = kind.ids.size(1);
  // Attention reads the pages before the kernels before it have ended, but after the product of its
  // layer, which begins when decode_inputs has ended.
  kernels::decode_inputs(
      kind.ids.view(), kind.positions.view(), pages_.reshape({max_rows_ * max_pages_}).view(),
      std::as_const(tokens_).slice(0, rows).view(), std::as_const(lengths_).slice(0, rows).view(),
      std::as_const(drawn_).view(), std::as_const(changes_).view(), stream_);
  cache_.put_slots(kind.batch);
  const auto draw = [&](const Tensor& logits) {
    draw_tokens(drawn_, probabilities_, logits, draws_.slice(0, rows * kDrawWords),
                {.ids = cache_.ids().view(),
                 .pages = std::as_const(kind.batch.pages).view(),
                 .lengths = std::as_const(kind.batch.lengths).view(),
                 .last = std::as_const(kind.ids).reshape({rows}).view()});
  };
  if (rows == 1 && text_step_) {
    return draw(text_step_->logits(kind.ids, kind.positions, kind.batch.pages, kind.batch.lengths,
                                   kind.batch.max_length));
  }
  CachedBatch cached{cache_, kind.batch};
  const Variable hidden = run_stages(
      model_,
      {.tokens = RowIds(kind.ids, Tensor()), .position_ids = RowIds(kind.positions, Tensor())},
      &cached);
  draw(gathered_last_axis(model_.chunk->logits(hidden).data(), ranks()));
  share_drawn(rows);
}

void DecodeSteps::share_drawn(int64_t rows) {
  if (ranks().size() == 1) return;
  Tensor own = drawn_.slice(0, rows);
  Tensor all({ranks().size(), rows}, DType::kInt32, stream_);
  comm::all_gather(all.view(), std::as_const(own).view(), ranks(), stream_);
  copy_into(own, std::as_const(all).slice(0, 1).reshape({rows}));
}

}  // namespace megatron
