#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ostream>
#include <utility>

#include "megatron/comm/collectives.h"
#include "megatron/comm/threads.h"
#include "megatron/kernels/dropout.h"
#include "megatron/parallel/context/attention.h"
#include "megatron/parallel/context/sequence.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

// Ranks that share a sequence, and how.
struct Spread {
  int ranks = 1;
  ContextExchange exchange = ContextExchange::kP2p;
  int neighbours = 0;  // that exchange heads, in a ring of such; 0: no ring

  ParallelConfig config() const {
    ParallelConfig made{.world_size = ranks, .context_parallel_size = ranks};
    made.context_exchange = exchange;
    if (neighbours > 0) {
      made.hierarchical_context_parallel_sizes = {neighbours, ranks / neighbours};
    }
    return made;
  }
};

void PrintTo(const Spread& spread, std::ostream* out) {
  *out << spread.ranks << " ranks, exchange " << static_cast<int>(spread.exchange) << ", "
       << spread.neighbours << " neighbours";
}

ContextParallel context_of(const comm::Group& world, const Spread& spread) {
  return make_parallel_context(world, spread.config()).context;
}

std::vector<Spread> spreads() {
  std::vector<Spread> all;
  for (const int ranks : {1, 2, 3, 4}) {
    for (const ContextExchange exchange :
         {ContextExchange::kP2p, ContextExchange::kAllGather, ContextExchange::kAllToAll}) {
      all.push_back({ranks, exchange});
    }
  }
  for (const auto& [ranks, neighbours] :
       {std::pair{4, 2}, std::pair{8, 2}, std::pair{8, 4}, std::pair{3, 1}, std::pair{2, 2}}) {
    all.push_back({ranks, ContextExchange::kAllToAll, neighbours});
  }
  return all;
}

// This rank's chunks of the first axis, one after the other.
Tensor own_chunks(const Tensor& whole, const ContextParallel& cp) {
  const int64_t length = whole.size(0) / (2 * cp.size());
  Tensor own(whole.shape().with(0, 2 * length), whole.dtype(), Stream{});
  for (size_t half = 0; half < 2; ++half) {
    Tensor to = own.slice(static_cast<int64_t>(half) * length, length);
    copy_into(to, whole.slice(cp.chunks()[half] * length, length));
  }
  return own;
}

double largest_error(const Tensor& got, const Tensor& want) {
  double largest = 0;
  for (int64_t i = 0; i < got.numel(); ++i) {
    largest = std::max(largest, std::abs(element(got, i) - element(want, i)));
  }
  return largest;
}

struct AttentionCase {
  const char* name;
  int64_t heads = 12;
  int64_t groups = 12;
  bool has_documents = false;
  bool has_alibi = false;
  float dropout = 0;
  int64_t batch = 2;
  int64_t window = 0;
  bool has_sinks = false;
};

class ContextAttentionTest : public testing::TestWithParam<Spread> {};

TEST_P(ContextAttentionTest, IsThatOfOneRank) {
  constexpr int64_t kHeadSize = 8;
  const int ranks = GetParam().ranks;
  // Chunks end within the kernels' tiles. ALiBi's scores grow with the sequence and lose digits.
  const int64_t s = int64_t{ranks} * 2 * (ranks > 4 ? 5 : 11);
  for (const AttentionCase& one :
       {AttentionCase{.name = "plain"}, AttentionCase{.name = "grouped", .groups = 4},
        AttentionCase{.name = "multi-query", .groups = 1, .has_alibi = true},
        AttentionCase{.name = "three samples", .batch = 3},
        AttentionCase{.name = "one sample", .groups = 4, .batch = 1},
        AttentionCase{.name = "one sample of one group", .groups = 1, .batch = 1},
        AttentionCase{.name = "biased", .has_alibi = true},
        AttentionCase{.name = "documents", .groups = 4, .has_documents = true},
        AttentionCase{.name = "dropout", .dropout = 0.3f},
        AttentionCase{.name = "window", .groups = 4, .window = 16},
        AttentionCase{.name = "window of documents", .has_documents = true, .window = 5},
        AttentionCase{.name = "sinks", .groups = 4, .has_sinks = true},
        AttentionCase{.name = "sinks of one sample", .batch = 1, .window = 9, .has_sinks = true},
        AttentionCase{.name = "all", .has_documents = true, .has_alibi = true, .dropout = 0.3f}}) {
    if (one.groups % head_exchange_size(GetParam().config()) != 0) continue;
    SCOPED_TRACE(one.name);
    const Tensor x =
        random_normal({s, one.batch, (one.heads + 2 * one.groups) * kHeadSize}, {.seed = 1});
    const Tensor dy = random_normal({s, one.batch, one.heads * kHeadSize}, {.seed = 2});
    AttentionOptions options{.num_heads = one.heads,
                             .num_query_groups = one.groups,
                             .dropout = {.key = 9, .first_sample = 3, .probability = one.dropout},
                             .first_head = 5,
                             .window = one.window,
                             .logit_cap = one.window > 0 ? 2.0f : 0.0f};
    if (one.has_alibi) options.alibi_slopes = tensor_of(alibi_slopes(one.heads), {one.heads});
    // Documents of 7 and 9 tokens.
    const auto start_of = [](int64_t batch, int64_t i) {
      return static_cast<int32_t>(i / (7 + 2 * batch) * (7 + 2 * batch));
    };
    AttentionOptions of_whole = options;
    if (one.has_documents) {
      std::vector<int32_t> starts;
      for (int64_t batch = 0; batch < one.batch; ++batch) {
        for (int64_t i = 0; i < s; ++i) starts.push_back(start_of(batch, i));
      }
      of_whole.document_starts = tensor_of(starts, {one.batch, s});
    }
    const Variable want_x = Variable::leaf(x);
    const Tensor sinks = random_normal({one.heads}, {.seed = 3});
    const auto sinks_leaf = [&] { return one.has_sinks ? Variable::leaf(sinks) : Variable(); };
    const Variable want_sinks = sinks_leaf();
    const Variable want_y = attention(want_x, of_whole, {}, want_sinks);
    backward(want_y, dy);

    comm::run_ranks(ranks, [&](const comm::Group& world) {
      const ContextParallel cp = context_of(world, GetParam());
      AttentionOptions own = options;
      if (one.has_documents) {
        const ContextParallel ring = cp.ring();
        const int64_t length = s / (2 * ring.size());
        std::vector<int32_t> starts;
        for (const int64_t chunk : ring.chunks()) {
          for (int64_t batch = 0; batch < one.batch; ++batch) {
            for (int64_t i = 0; i < length; ++i) {
              starts.push_back(start_of(batch, chunk * length + i));
            }
          }
        }
        own.document_starts =
            ring.size() == 1 ? of_whole.document_starts : tensor_of(starts, {2, one.batch, length});
      }
      const Variable input = Variable::leaf(own_chunks(x, cp));
      const Variable own_sinks = sinks_leaf();
      const Variable y = context_parallel_attention(input, own, cp, own_sinks);
      backward(y, own_chunks(dy, cp));
      const Tolerance close{1e-5, 1e-5};
      if (one.has_sinks) {
        Tensor dsinks = own_sinks.grad();
        comm::all_reduce(dsinks.view(), comm::Reduce::kSum, world, Stream{});
        expect_close(dsinks, want_sinks.grad(), {1e-5, 1e-4}, "sinks");
      }
      expect_close(y.data(), own_chunks(want_y.data(), cp), close, "y");
      expect_close(input.grad(), own_chunks(want_x.grad(), cp), close, "dqkv");
    });
  }
}

INSTANTIATE_TEST_SUITE_P(SizesAndExchanges, ContextAttentionTest, testing::ValuesIn(spreads()));

// In 16 bits, sums of several terms are no worse than those of one rank.
TEST_P(ContextAttentionTest, RoundsAboutAsOftenAsOneRank) {
  const int ranks = GetParam().ranks;
  const int64_t s = int64_t{ranks} * 2 * 16;
  const Tensor x = random_normal({s, 1, 3 * 12 * 8}, {.seed = 1, .dtype = DType::kBFloat16});
  const Tensor dy = random_normal({s, 1, 12 * 8}, {.seed = 2, .dtype = DType::kBFloat16});
  const AttentionOptions options{.num_heads = 12};
  const Variable exact_x = Variable::leaf(cast(x, DType::kFloat32));
  const Variable exact_y = attention(exact_x, options);
  backward(exact_y, cast(dy, DType::kFloat32));
  const Variable one_x = Variable::leaf(x);
  const Variable one_y = attention(one_x, options);
  backward(one_y, dy);
  const double of_y = largest_error(one_y.data(), exact_y.data());
  const double of_dx = largest_error(one_x.grad(), exact_x.grad());
  comm::run_ranks(ranks, [&](const comm::Group& world) {
    const ContextParallel cp = context_of(world, GetParam());
    const Variable input = Variable::leaf(own_chunks(x, cp));
    const Variable y = context_parallel_attention(input, options, cp);
    backward(y, own_chunks(dy, cp));
    EXPECT_LE(largest_error(y.data(), own_chunks(exact_y.data(), cp)), 2 * of_y);
    EXPECT_LE(largest_error(input.grad(), own_chunks(exact_x.grad(), cp)), 2 * of_dx);
  });
}

// Ranks 0 to 3 and 4 to 7 exchange heads, and each is in a ring with the rank of the same place
// among the others: together four neighbours have two adjacent runs of chunks.
TEST(ContextLevelsTest, NeighboursExchangeHeads) {
  const Spread spread{8, ContextExchange::kAllToAll, 4};
  comm::run_ranks(spread.ranks, [&](const comm::Group& world) {
    const ContextParallel cp = context_of(world, spread);
    const int rank = world.rank();
    const int first = rank / 4 * 4;
    const auto ranks_of = [](const comm::Group& group) {
      return std::vector<int>(group.world_ranks().begin(), group.world_ranks().end());
    };
    EXPECT_EQ(ranks_of(cp.heads().group),
              (std::vector<int>{first, first + 1, first + 2, first + 3}));
    EXPECT_EQ(ranks_of(cp.ring().group), (std::vector<int>{rank % 4, rank % 4 + 4}));
    EXPECT_EQ(cp.size(), 8);
    for (size_t half = 0; half < 2; ++half) {
      EXPECT_EQ(cp.chunks()[half] / 4, cp.ring().chunks()[half]);
    }
  });
}

// One level is all of the ranks, the other one rank.
TEST(ContextLevelsTest, OtherTypesHaveOneLevel) {
  for (const auto& [exchange, heads] :
       {std::pair{ContextExchange::kP2p, 1}, std::pair{ContextExchange::kAllGather, 1},
        std::pair{ContextExchange::kAllToAll, 2}}) {
    comm::run_ranks(2, [exchange = exchange, heads = heads](const comm::Group& world) {
      const ContextParallel cp = context_of(world, {2, exchange});
      EXPECT_EQ(cp.heads().size(), heads);
      EXPECT_EQ(cp.ring().size(), 2 / heads);
    });
  }
}

// Parameter: context-parallel size.
class ContextParallelTest : public testing::TestWithParam<int> {};

// A mask depends on the places in the whole sequence, also where a slice of a tensor-parallel rank
// crosses the border of two chunks.
TEST_P(ContextParallelTest, DropoutGoesByPlacesInTheWhole) {
  const int ranks = GetParam();
  const int64_t s = int64_t{ranks} * 2 * 6;
  const Tensor x = full({s, 2, 24}, 1.0f, DType::kFloat32, Stream{});
  const DropoutKey key{.key = 4, .first_sample = 7, .probability = 0.5f};
  const auto dropped = [](const Tensor& in, const DropoutKey& with) {
    Tensor y = empty_like(in);
    kernels::bias_dropout_add_forward(y.view(), std::as_const(in).view(), ConstView{}, ConstView{},
                                      with, Stream{});
    return y;
  };
  const Tensor want = dropped(x, key);
  comm::run_ranks(ranks, [&](const comm::Group& world) {
    const ContextParallel cp = context_of(world, {ranks});
    const Tensor own = own_chunks(want, cp);
    expect_identical(dropped(own_chunks(x, cp), of_rows(key, 12, {}, cp)), own);
  });
  for (const int tp_size : {2, 3, 4}) {
    comm::run_ranks(tp_size, [&](const comm::Group& tp_world) {
      const TensorParallel tp{tp_world, true};
      const int64_t rows = 12 / tp_size;
      comm::run_ranks(ranks, [&](const comm::Group& world) {
        const ContextParallel cp = context_of(world, {ranks});
        const Tensor own = own_chunks(want, cp).slice(tp.rank() * rows, rows);
        expect_identical(
            dropped(own_chunks(x, cp).slice(tp.rank() * rows, rows), of_rows(key, rows, tp, cp)),
            copied(own));
      });
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ContextParallelTest, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace megatron
