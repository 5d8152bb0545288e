#include "megatron/data/gpt_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/parallel_for.h"
#include "megatron/data/numpy_random.h"

namespace megatron {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kIndexScanGrain = int64_t{1} << 16;  // fewest sequences that pay for a thread

bool has_wide_positions(IndexRange sequences, const EpochPlan& plan) {
  return plan.num_epochs * sequences.size() > kMaxInt32;
}

bool has_wide_order(const EpochPlan& plan) {
  return plan.num_samples >= std::numeric_limits<uint32_t>::max() - 1;
}

std::vector<int32_t> build_document_index(IndexRange sequences, const EpochPlan& plan,
                                          NumpyRandom& random) {
  const int64_t per_epoch = sequences.size();
  std::vector<int32_t> documents(static_cast<size_t>(plan.num_epochs * per_epoch));
  for (int64_t epoch = 0; epoch < plan.num_epochs; ++epoch) {
    const auto begin = documents.begin() + epoch * per_epoch;
    std::iota(begin, begin + per_epoch, static_cast<int32_t>(sequences.begin));
  }
  const std::span<int32_t> all(documents);
  const auto last = static_cast<size_t>(plan.separate_last_epoch ? per_epoch : 0);
  random.shuffle(all.first(all.size() - last));
  random.shuffle(all.last(last));
  return documents;
}

// Sample k begins at token k * seq_length of the concatenated documents. So the documents can be
// cut into parts that are searched independently once the tokens before each part are known.
template <class T>
std::vector<T> build_sample_index(const IndexedDataset& data, std::span<const int32_t> documents,
                                  int64_t num_samples, int64_t seq_length) {
  const auto n = static_cast<int64_t>(documents.size());
  const int64_t parts = std::clamp<int64_t>(n / kIndexScanGrain, 1, num_threads());
  std::vector<int64_t> first_token(static_cast<size_t>(parts + 1), 0);
  parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      int64_t tokens = 0;
      for (int64_t p = n * part / parts; p < n * (part + 1) / parts; ++p) {
        tokens += data.length(documents[static_cast<size_t>(p)]);
      }
      first_token[static_cast<size_t>(part + 1)] = tokens;
    }
  });
  std::partial_sum(first_token.begin(), first_token.end(), first_token.begin());

  std::vector<T> rows(static_cast<size_t>(2 * (num_samples + 1)));
  parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      int64_t document_start = first_token[static_cast<size_t>(part)];
      int64_t sample = (document_start + seq_length - 1) / seq_length;
      for (int64_t p = n * part / parts; p < n * (part + 1) / parts; ++p) {
        const int64_t document_end =
            document_start + data.length(documents[static_cast<size_t>(p)]);
        for (; sample <= num_samples && sample * seq_length < document_end; ++sample) {
          rows[static_cast<size_t>(2 * sample)] = static_cast<T>(p);
          rows[static_cast<size_t>(2 * sample + 1)] =
              static_cast<T>(sample * seq_length - document_start);
        }
        document_start = document_end;
      }
    }
  });
  // Compat: the first row is (0, 0) even if the first documents are empty.
  rows[0] = 0;
  rows[1] = 0;
  return rows;
}

template <class T>
std::vector<T> build_shuffle_index(const EpochPlan& plan, NumpyRandom& random) {
  std::vector<T> order(static_cast<size_t>(plan.num_samples));
  std::iota(order.begin(), order.end(), T{0});
  const std::span<T> all(order);
  const auto first = static_cast<size_t>(
      plan.separate_last_epoch ? plan.num_samples_before_last_epoch : plan.num_samples);
  random.shuffle(all.first(first));
  random.shuffle(all.subspan(first));
  return order;
}

}  // namespace

EpochPlan plan_epochs(int64_t tokens_per_epoch, std::optional<int64_t> num_samples,
                      int64_t seq_length) {
  invariant(tokens_per_epoch > 0 && seq_length > 0, "an epoch and a sample have tokens");
  // num_samples(e) = (e * tokens_per_epoch - 1) / seq_length: the last sample needs one more token.
  const int64_t tokens = num_samples.value_or(0) * seq_length + 1;
  EpochPlan plan{.tokens_per_epoch = tokens_per_epoch,
                 .num_epochs = (tokens + tokens_per_epoch - 1) / tokens_per_epoch};
  plan.num_samples = (plan.num_epochs * tokens_per_epoch - 1) / seq_length;
  plan.num_samples_before_last_epoch = ((plan.num_epochs - 1) * tokens_per_epoch - 1) / seq_length;
  if (plan.num_epochs == 1) {
    plan.num_samples_before_last_epoch = 0;
    return plan;
  }
  const int64_t wanted_of_last = *num_samples - plan.num_samples_before_last_epoch;
  const int64_t samples_per_epoch = (tokens_per_epoch - 1) / seq_length;
  invariant(wanted_of_last >= 0 && wanted_of_last <= samples_per_epoch + 1,
            "the last epoch holds the missing samples");
  // Compat: Megatron-LM core_r0.5.0 shuffles the last epoch separately if less than 80 % is used.
  plan.separate_last_epoch =
      wanted_of_last < static_cast<int64_t>(0.80 * static_cast<double>(samples_per_epoch));
  return plan;
}

GptIndex::Position GptIndex::position(int64_t row) const {
  if (!wide_sample_index.empty()) {
    return {wide_sample_index[2 * row], wide_sample_index[2 * row + 1]};
  }
  return {sample_index[2 * row], sample_index[2 * row + 1]};
}

int64_t GptIndex::shuffled(int64_t sample) const {
  if (!wide_shuffle_index.empty()) return wide_shuffle_index[sample];
  return shuffle_index[sample];
}

int64_t count_tokens(const IndexedDataset& data, IndexRange sequences) {
  std::atomic<int64_t> total{0};
  parallel_for(sequences.size(), kIndexScanGrain, [&](int64_t begin, int64_t end) {
    int64_t sum = 0;
    for (int64_t i = begin; i < end; ++i) sum += data.length(sequences.begin + i);
    total += sum;
  });
  return total;
}

int64_t index_bytes(IndexRange sequences, const EpochPlan& plan) {
  const int64_t row = has_wide_positions(sequences, plan) ? 16 : 8;
  return 4 * plan.num_epochs * sequences.size() + row * (plan.num_samples + 1) +
         (has_wide_order(plan) ? 8 : 4) * plan.num_samples;
}

GptIndex build_gpt_index(const IndexedDataset& data, IndexRange sequences, const EpochPlan& plan,
                         int64_t seq_length, int64_t seed) {
  if (sequences.end > kMaxInt32) {
    throw Unsupported(fmt::format(
        "{}: sequence numbers go up to {}, but index files hold 32-bit ones; cut the dataset into "
        "several of at most {} sequences and blend them",
        data.prefix().string(), sequences.end - 1, kMaxInt32));
  }
  NumpyRandom random(static_cast<uint32_t>(seed));
  GptIndex index;
  std::vector<int32_t> documents = build_document_index(sequences, plan, random);
  const auto num_positions = static_cast<int64_t>(documents.size());

  if (has_wide_positions(sequences, plan)) {
    index.wide_sample_index = NpyArray<int64_t>(
        build_sample_index<int64_t>(data, documents, plan.num_samples, seq_length),
        {plan.num_samples + 1, 2});
  } else {
    index.sample_index = NpyArray<int32_t>(
        build_sample_index<int32_t>(data, documents, plan.num_samples, seq_length),
        {plan.num_samples + 1, 2});
  }
  index.document_index = NpyArray<int32_t>(std::move(documents), {num_positions});

  if (has_wide_order(plan)) {
    index.wide_shuffle_index =
        NpyArray<int64_t>(build_shuffle_index<int64_t>(plan, random), {plan.num_samples});
  } else {
    index.shuffle_index =
        NpyArray<uint32_t>(build_shuffle_index<uint32_t>(plan, random), {plan.num_samples});
  }
  return index;
}

}  // namespace megatron
