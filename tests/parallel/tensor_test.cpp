#include <gtest/gtest.h>

#include <string>

#include "megatron/comm/threads.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/embedding.h"
#include "megatron/ops/linear.h"
#include "megatron/parallel/context/sequence.h"
#include "megatron/parallel/tensor/linear.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/parallel/tensor/vocabulary.h"
#include "tests/parallel/shards.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

using testing::Values;

constexpr uint64_t kSeed = 5;

struct TensorLayout {
  int ranks;
  bool sequence_parallel = false;
  bool overlaps_products = false;
  bool overlaps_gradients = true;
};
std::string layout_name(const testing::TestParamInfo<TensorLayout>& info) {
  return "Of" + std::to_string(info.param.ranks) +
         (info.param.sequence_parallel ? "WithSequenceParallel" : "") +
         (info.param.overlaps_products ? "ByPieces" : "") +
         (info.param.overlaps_gradients ? "" : "WithoutOverlap");
}

class TensorParallelTest : public testing::TestWithParam<TensorLayout> {
 protected:
  template <class F>
  void on_ranks(const F& f) {
    comm::run_ranks(GetParam().ranks, [&](const comm::Group& world) {
      f(TensorParallel{.group = world,
                       .sequence_parallel = GetParam().sequence_parallel,
                       .overlaps_gradients = GetParam().overlaps_gradients,
                       .overlaps_products = GetParam().overlaps_products});
    });
  }
};

// A column-parallel layer, something in between, and a row-parallel one.
class TwoLayers final : public Module {
 public:
  explicit TwoLayers(const TensorParallel& tp, int64_t stacked_parts = 1,
                     const LoraOptions& lora = {}, int64_t width = 24)
      : column(8, width, tp,
               {.init = Init::normal(1), .stacked_parts = stacked_parts, .lora = lora},
               {DType::kFloat32, Stream{}, tp.sequence_parallel}),
        row(width, 8, tp, {.init = Init::normal(1), .lora = lora},
            {DType::kFloat32, Stream{}, tp.sequence_parallel}) {
    add_child("column", column);
    add_child("row", row);
    initialize(*this, kSeed);
  }
  Variable forward(const Variable& x, const DropoutKey& column_key = {},
                   const DropoutKey& row_key = {}) const {
    return row.forward_without_bias(column.forward(x, column_key), row_key);
  }
  ColumnParallelLinear column;
  RowParallelLinear row;
};

TEST_P(TensorParallelTest, LinearLayersMatchOneRank) {
  const Tensor x = random_normal({12, 2, 8}, {.seed = 1});   // [s, b, h]
  const Tensor dy = random_normal({12, 2, 8}, {.seed = 2});  // [s, b, h]
  const TwoLayers whole({});
  const Variable want_x = Variable::leaf(x);
  const Variable want_y = whole.forward(want_x);
  backward(want_y, dy);

  on_ranks([&](const TensorParallel& tp) {
    const TwoLayers layers(tp);
    const Variable input = Variable::leaf(own_slice(x, tp));
    const Variable y = layers.forward(input);
    expect_close(y.data(), own_slice(want_y.data(), tp), Tolerance{1e-5, 1e-5});
    backward(y, own_slice(dy, tp));
    expect_close(input.grad(), own_slice(want_x.grad(), tp), Tolerance{1e-5, 1e-5});
    expect_gradients(layers, whole, tp);
  });
}

// Gives each B other values than zero: the same in every layout.
void fill_adapters(const Module& module) {
  module.visit([](const std::string& name, const Parameter& parameter) {
    if (!name.ends_with(kLoraB)) return;
    const Sharding& sharding = parameter.info.sharding;
    const Tensor whole = random_normal(sharding.whole(parameter.shape), {.seed = 3});
    Variable b = parameter.variable;
    b.set_data(shard_of(whole, sharding));
  });
}

TEST_P(TensorParallelTest, AdaptersMatchOneRank) {
  const LoraOptions lora{.rank = 3, .scale = 0.5};
  const Tensor x = random_normal({12, 2, 8}, {.seed = 1});   // [s, b, h]
  const Tensor dy = random_normal({12, 2, 8}, {.seed = 2});  // [s, b, h]
  const TwoLayers whole({}, 1, lora);
  fill_adapters(whole);
  const Variable want_x = Variable::leaf(x);
  const Variable want_y = whole.forward(want_x);
  backward(want_y, dy);

  on_ranks([&](const TensorParallel& tp) {
    const TwoLayers layers(tp, 1, lora);
    fill_adapters(layers);
    const Variable input = Variable::leaf(own_slice(x, tp));
    const Variable y = layers.forward(input);
    expect_close(y.data(), own_slice(want_y.data(), tp), Tolerance{1e-5, 1e-4});
    backward(y, own_slice(dy, tp));
    expect_close(input.grad(), own_slice(want_x.grad(), tp), Tolerance{1e-5, 1e-4});
    expect_gradients(layers, whole, tp);
  });
}

// The mask of an element depends on its place in the whole input. The row-parallel layer shares its
// columns, in eights.
TEST_P(TensorParallelTest, DropoutOfAdaptersMatchesOneRank) {
  const LoraOptions lora{.rank = 3, .scale = 0.5};
  constexpr int64_t kWidth = 96;
  const DropoutKey column_key{.key = 5, .first_sample = 7, .probability = 0.5f};
  const DropoutKey row_key{.key = 6, .first_sample = 7, .probability = 0.5f};
  const Tensor x = random_normal({12, 2, 8}, {.seed = 1});   // [s, b, h]
  const Tensor dy = random_normal({12, 2, 8}, {.seed = 2});  // [s, b, h]
  const TwoLayers whole({}, 1, lora, kWidth);
  fill_adapters(whole);
  const Variable want_x = Variable::leaf(x);
  const Variable want_y = whole.forward(want_x, column_key, row_key);
  backward(want_y, dy);

  on_ranks([&](const TensorParallel& tp) {
    const TwoLayers layers(tp, 1, lora, kWidth);
    fill_adapters(layers);
    const Variable input = Variable::leaf(own_slice(x, tp));
    const Variable y = layers.forward(input, of_rows(column_key, input.size(0), tp, {}), row_key);
    expect_close(y.data(), own_slice(want_y.data(), tp), Tolerance{1e-5, 1e-4});
    backward(y, own_slice(dy, tp));
    expect_close(input.grad(), own_slice(want_x.grad(), tp), Tolerance{1e-5, 1e-4});
    expect_gradients(layers, whole, tp);
  });
}

// PEFT's definition: the layer reads x, and A reads dropout(x).
TEST(LoraTest, DropsTheInputOfAOnly) {
  const TwoLayers layers({}, 1, {.rank = 3, .scale = 0.5});
  const TwoLayers plain({});
  fill_adapters(layers);
  const DropoutKey key{.key = 5, .probability = 0.5f};
  const Variable x(random_normal({5, 2, 8}, {.seed = 1}));
  const auto adapter = [&](const Variable& input) {
    return add(layers.column.forward(input), scale(plain.column.forward(input), -1));
  };
  const Variable want = add(plain.column.forward(x), adapter(dropout(x, key)));
  expect_close(layers.column.forward(x, key).data(), want.data(), Tolerance{1e-5, 1e-5});
  const Variable change = add(want, scale(layers.column.forward(x), -1));
  EXPECT_GT(largest(change.data()), 0.1);
}

TEST(LoraTest, AddsTheProductOfItsFactors) {
  const TwoLayers layers({}, 1, {.rank = 3, .scale = 0.5});
  fill_adapters(layers);
  const auto matrix = [&](const std::string& name) {
    for (const Parameter& parameter : named_parameters(layers)) {
      if (parameter.name == name) return parameter.variable.data();
    }
    return Tensor();
  };
  const Tensor a = matrix("column.adapter.linear_in.weight");   // [3, 8]
  const Tensor b = matrix("column.adapter.linear_out.weight");  // [24, 3]
  ASSERT_EQ(a.shape(), (Shape{3, 8}));
  ASSERT_EQ(b.shape(), (Shape{24, 3}));
  Tensor sum = copied(layers.column.weight().data());
  for (size_t row = 0; row < 24; ++row) {
    for (size_t i = 0; i < 8; ++i) {
      for (size_t k = 0; k < 3; ++k) {
        sum.span<float>()[row * 8 + i] +=
            0.5F * b.span<float>()[row * 3 + k] * a.span<float>()[k * 8 + i];
      }
    }
  }
  const Variable x(random_normal({5, 2, 8}, {.seed = 1}));
  expect_close(layers.column.forward(x).data(),
               linear(x, Variable(sum), layers.column.bias()).data(), Tolerance{1e-5, 1e-5});
}

TEST_P(TensorParallelTest, StackedPartsAreSharedPartByPart) {
  on_ranks([&](const TensorParallel& tp) {
    const TwoLayers whole({}, 2);
    const TwoLayers layers(tp, 2);
    expect_identical(layers.column.weight().data(),
                     shard_of(whole.column.weight().data(), tp.sharding(0, 2)));
  });
}

TEST_P(TensorParallelTest, EmbeddingAndCrossEntropyMatchOneRank) {
  constexpr int64_t kVocabulary = 36;
  const Tensor ids = random_ids({2, 12}, kVocabulary, 3);     // [b, s]
  const Tensor labels = random_ids({2, 12}, kVocabulary, 4);  // [b, s]
  const Tensor dy = random_normal({12, 2}, {.seed = 5});      // of the losses [s, b]
  for (const float smoothing : {0.0f, 0.1f}) {
    const VocabParallelEmbedding whole(kVocabulary, 8, {}, {Init::normal(1)}, {});
    initialize(whole, kSeed);
    const Variable hidden = embedding(whole.weight(), ids);
    const Variable logits = linear(hidden, whole.weight(), Variable());
    const Variable losses = cross_entropy(logits, labels, smoothing);
    const Tensor want_scores = log_probabilities(logits.data(), labels);
    const Tensor want_logits = copied(logits.data());
    backward(losses, dy);

    on_ranks([&](const TensorParallel& tp) {
      const VocabParallelEmbedding table(kVocabulary, 8, tp, {Init::normal(1)}, {});
      initialize(table, kSeed);
      const Variable partial = table.forward_partial(ids);
      const Variable x = tp.sequence_parallel ? reduce_scatter_to_sequence_region(partial, tp)
                                              : reduce_from_tensor_region(partial, tp);
      expect_identical(x.data(), own_slice(hidden.data(), tp), "embedding");
      const Variable mine = column_parallel_linear(x, table.weight(), Variable(), tp);
      expect_close(gathered_last_axis(mine.data(), tp.group), want_logits, Tolerance{1e-5, 1e-5},
                   "logits");
      const VocabularyShard shard = vocabulary_shard(mine.size(-1), tp);
      expect_close(log_probabilities(mine.data(), labels, shard), want_scores,
                   Tolerance{1e-5, 1e-5}, "scores");
      const Variable y = cross_entropy(mine, labels, smoothing, shard);
      expect_close(y.data(), losses.data(), Tolerance{1e-5, 1e-5}, "losses");
      backward(y, dy);
      expect_gradients(table, whole, tp);
    });
  }
}

// Positions are added by one rank, and their gradient is whole on all.
TEST_P(TensorParallelTest, WordsAndPositionsHaveTheBitsOfOneRank) {
  constexpr int64_t kVocabulary = 36;
  const Tensor ids = random_ids({2, 12}, kVocabulary, 3);  // [b, s]
  const Tensor position_ids = default_position_ids(2, 12);
  const Tensor dy = random_normal({12, 2, 8}, {.seed = 5});
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Placement placement{dtype, Stream{}};
    const auto position_table = [&] {
      return Variable::leaf(random_normal({12, 8}, {.seed = 6, .dtype = dtype}));
    };
    const VocabParallelEmbedding whole(kVocabulary, 8, {}, {Init::normal(1)}, placement);
    initialize(whole, kSeed);
    const Variable want_positions = position_table();
    const Variable want = embedding(whole.weight(), ids, want_positions, position_ids);
    backward(want, cast(dy, dtype));

    on_ranks([&](const TensorParallel& tp) {
      const VocabParallelEmbedding table(kVocabulary, 8, tp, {Init::normal(1)}, placement);
      initialize(table, kSeed);
      const Variable positions = position_table();
      const Variable partial = table.forward_partial(ids, positions, position_ids);
      const Variable x = tp.sequence_parallel ? reduce_scatter_to_sequence_region(partial, tp)
                                              : reduce_from_tensor_region(partial, tp);
      expect_identical(x.data(), own_slice(want.data(), tp), "embedding");
      backward(x, own_slice(cast(dy, dtype), tp));
      expect_identical(positions.grad(), want_positions.grad(), "positions");
      const int64_t rows = kVocabulary / tp.size();
      expect_identical(table.weight().grad(), whole.weight().grad().slice(tp.rank() * rows, rows),
                       "words");
    });
  }
}

TEST_P(TensorParallelTest, MappingsAreConjugate) {
  const Tensor x = random_normal({12, 2, 4}, {.seed = 6});
  on_ranks([&](const TensorParallel& tp) {
    const auto size = static_cast<float>(tp.size());
    const Variable slice = scatter_to_sequence_region(Variable::leaf(x), tp);
    const Variable again = gather_from_sequence_region(slice, tp);
    expect_identical(again.data(), x, "scatter, gather");

    const Variable whole = Variable::leaf(x);
    backward(scatter_to_sequence_region(whole, tp), slice.data());
    expect_identical(whole.grad(), x, "scatter: all_gather");

    const Variable part = Variable::leaf(copied(slice.data()));
    backward(gather_from_sequence_region(part, tp), x);
    Tensor sum = copied(slice.data());
    scale_inplace(sum, size);
    expect_close(part.grad(), sum, Tolerance{1e-6, 1e-6}, "gather: reduce_scatter");

    const Variable copy = Variable::leaf(x);
    backward(copy_to_tensor_region(copy, tp), x);
    Tensor all = copied(x);
    scale_inplace(all, size);
    expect_close(copy.grad(), all, Tolerance{1e-6, 1e-6}, "copy: all_reduce");

    const Variable reduced = Variable::leaf(x);
    const Variable y = reduce_from_tensor_region(reduced, tp);
    expect_close(y.data(), all, Tolerance{1e-6, 1e-6}, "reduce");
    backward(y, x);
    expect_identical(reduced.grad(), x, "reduce: identity");
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, TensorParallelTest,
                         Values(TensorLayout{1}, TensorLayout{2}, TensorLayout{2, true},
                                TensorLayout{3}, TensorLayout{3, true}, TensorLayout{4, true},
                                TensorLayout{2, true, true}, TensorLayout{3, true, true},
                                TensorLayout{4, true, true}, TensorLayout{1, false, true},
                                TensorLayout{2, false, true}, TensorLayout{3, false, true},
                                TensorLayout{2, false, false, false},
                                TensorLayout{2, true, false, false}),
                         layout_name);

// Parameter: tensor-parallel size.
class ByPiecesTest : public testing::TestWithParam<int> {};

// Gathering by pieces changes no sum, and ranks are summed up in one order. Only the weight
// gradient of a row-parallel layer is a sum over a rank's own rows and then the others'.
TEST_P(ByPiecesTest, GivesTheBitsOfOnePiece) {
  const Tensor x = random_normal({12, 2, 8}, {.seed = 1});   // [s, b, h]
  const Tensor dy = random_normal({12, 2, 8}, {.seed = 2});  // [s, b, h]
  comm::run_ranks(GetParam(), [&](const comm::Group& world) {
    const TensorParallel tp{.group = world, .sequence_parallel = true};
    TensorParallel by_pieces = tp;
    by_pieces.overlaps_products = true;
    const TwoLayers layers(tp);
    const TwoLayers cut(by_pieces);
    const auto gradients = [&](const TwoLayers& of) {
      const Variable input = Variable::leaf(own_slice(x, tp));
      const Variable wide = of.column.forward(input);
      const Tensor copy = copied(wide.data());
      const Variable y = of.row.forward_without_bias(wide);
      const Tensor result = copied(y.data());
      backward(y, own_slice(dy, tp));
      return std::vector{copy,
                         result,
                         input.grad(),
                         of.column.weight().grad(),
                         of.column.bias().grad(),
                         of.row.weight().grad()};
    };
    const std::vector<Tensor> want = gradients(layers);
    const std::vector<Tensor> got = gradients(cut);
    const std::vector<const char*> names = {"wide",    "y",     "dx",
                                            "dweight", "dbias", "dweight of row"};
    for (size_t i = 0; i < want.size(); ++i) {
      if (i == 3 || i == 5) {
        expect_close(got[i], want[i], Tolerance{1e-5, 1e-5}, names[i]);
      } else {
        expect_identical(got[i], want[i], names[i]);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(TensorParallelSizes, ByPiecesTest, Values(2, 3, 4));

TEST(PartsTest, ARankKeepsItsPartOfAnActivation) {
  const Tensor x = random_normal({3, 2, 2}, {.seed = 1});
  comm::run_ranks(3, [&](const comm::Group& world) {
    const Tensor part = own_part(x, world);
    EXPECT_EQ(part.shape(), Shape({4}));
    EXPECT_TRUE(part.is_sole_owner());
    expect_identical(gathered_parts(part, x.shape(), world), x);
  });
  comm::run_ranks(2, [&](const comm::Group& world) {
    EXPECT_EQ(message_of<ShapeError>([&] {
                own_part(random_normal({3, 1}, {}), world);
              }),
              "--distribute-saved-activations: 3 elements do not divide among 2 ranks; run without "
              "it");
  });
}

TEST(TensorParallelErrorTest, ASequenceThatDoesNotDivideIsRefused) {
  comm::run_ranks(2, [&](const comm::Group& world) {
    const TensorParallel tp{world, true};
    EXPECT_EQ(message_of<ShapeError>([&] {
                scatter_to_sequence_region(Variable(random_normal({3, 1, 2}, {})), tp);
              }),
              "sequence parallel: a sequence of 3 tokens does not divide among 2 ranks; make it a "
              "multiple, or run without --sequence-parallel");
  });
}

}  // namespace
}  // namespace megatron
