#include "megatron/ops/embedding.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "megatron/ops/elementwise.h"
#include "tests/ops/op_case.h"

namespace megatron {
namespace {

Tensor embedding_expected(const std::vector<Tensor>& in, const Tensor& ids,
                          const Tensor& position_ids) {
  const int64_t batch = ids.size(0);
  const int64_t length = ids.size(1);
  const int64_t h = in[0].size(1);
  Tensor y({length, batch, h}, DType::kFloat32, Stream{});
  for (int64_t e = 0; e < y.numel(); ++e) {
    const int64_t i = e / h / batch;
    const int64_t j = e / h % batch;
    const auto at = static_cast<size_t>(j * length + i);
    double value = element(in[0], ids.span<int64_t>()[at] * h + e % h);
    if (in.size() > 1) value += element(in[1], position_ids.span<int64_t>()[at] * h + e % h);
    y.span<float>()[static_cast<size_t>(e)] = static_cast<float>(value);
  }
  return y;
}

OpCase embedding_make_case(int64_t batch, int64_t length, int64_t h, bool with_positions) {
  const Tensor ids = random_ids({batch, length}, 7, 1);
  const Tensor positions = default_position_ids(batch, length);
  OpCase c{.name = "embedding",
           .inputs = {random_normal({7, h}, {.seed = 2})},
           .op =
               [=](const auto& in) {
                 return with_positions ? embedding(in[0], ids, in[1], positions)
                                       : embedding(in[0], ids);
               },
           .expected = [=](const auto& in) { return embedding_expected(in, ids, positions); },
           .terms = std::max<int64_t>(4, batch * length)};
  if (with_positions) c.inputs.push_back(random_normal({length + 2, h}, {.seed = 3}));
  return c;
}

TEST(EmbeddingTest, FollowsItsDefinition) {
  for (const bool with_positions : {false, true}) {
    check(embedding_make_case(2, 3, 4, with_positions));
    check(embedding_make_case(1, 1, 1, with_positions));
    check(embedding_make_case(3, 9, 5, with_positions));    // every row several times
    check(embedding_make_case(40, 60, 2, with_positions));  // more often than one sum has rows
  }
}

TEST(EmbeddingTest, FollowsItsDefinitionOnRowsOfManyTiles) {
  OpCase c = embedding_make_case(2, 9, 1283, true);
  c.check_differences = false;
  check(c);
}

TEST(EmbeddingTest, PositionsAreSortedById) {
  for (const int64_t rows : {1, 2, 2048, 2049, 50257, 5'000'000}) {
    const Tensor ids = random_ids({3, 700}, rows, 5);
    const auto id_at = [&](int64_t position) {
      return ids.span<int64_t>()[static_cast<size_t>(position)];
    };
    std::vector<int64_t> expected(2100);
    std::iota(expected.begin(), expected.end(), 0);
    std::stable_sort(expected.begin(), expected.end(),
                     [&](int64_t a, int64_t b) { return id_at(a) < id_at(b); });
    const RowIds prepared = prepared_ids(ids, rows, "token id");
    const auto order = prepared.order.span<int64_t>();
    EXPECT_EQ(std::vector<int64_t>(order.begin(), order.end()), expected) << rows << " rows";
  }
}

TEST(EmbeddingTest, EmptyBatch) {
  OpCase c = embedding_make_case(0, 4, 3, true);
  c.check_differences = false;
  check(c);
}

TEST(EmbeddingTest, SumsOfMany16BitGradientsAreRoundedOnce) {
  const Variable weight = Variable::leaf(full({2, 1}, 0, DType::kBFloat16, Stream{}));
  const Tensor ids = tensor_of(std::vector<int64_t>(1000, 1), {1, 1000});
  const Variable y = embedding(weight, ids);
  backward(y, full(y.shape(), 1, DType::kBFloat16, Stream{}));
  EXPECT_EQ(element(weight.grad(), 0), 0);
  EXPECT_EQ(element(weight.grad(), 1), 1000);  // adding in bf16 would stop at 256
}

TEST(EmbeddingTest, ATiedWeightGetsBothContributions) {
  Variable weight = Variable::leaf(random_normal({4, 3}, {.seed = 1}));
  const Tensor ids = tensor_of(std::vector<int64_t>{1, 1}, {1, 2});
  const auto run = [&] {
    const Variable y = embedding(weight, ids);
    const Variable head = scale(weight, 10);
    backward(y, full(y.shape(), 1, DType::kFloat32, Stream{}));
    backward(head, full(head.shape(), 1, DType::kFloat32, Stream{}));
  };
  const auto expect_both = [&] {
    for (int64_t i = 0; i < 12; ++i) {
      EXPECT_EQ(element(weight.grad(), i), i / 3 == 1 ? 12 : 10) << i;
    }
  };
  run();
  expect_both();
  weight.clear_grad();
  weight.set_main_grad(zeros({4, 3}, DType::kFloat32, Stream{}));
  run();
  expect_both();
}

TEST(EmbeddingTest, ShardsSumToTheWhole) {
  const Tensor table = random_normal({6, 4}, {.seed = 1});
  const Tensor ids = random_ids({2, 5}, 6, 3);
  const Variable whole = Variable::leaf(table);
  const Variable want = embedding(whole, ids);
  const Tensor dy = random_normal(want.shape(), {.seed = 2});
  backward(want, dy);

  Tensor sum = zeros(want.shape(), DType::kFloat32, Stream{});
  for (const int64_t first : {0, 3}) {
    const Variable shard = Variable::leaf(table.slice(first, 3));
    const Variable y =
        embedding_shard(shard, ids, Variable(), RowIds(), {.first_row = first, .num_rows = 6});
    add_inplace(sum, y.data());
    backward(y, dy);
    expect_identical(shard.grad(), whole.grad().slice(first, 3));
  }
  expect_identical(sum, want.data());
}

TEST(EmbeddingTest, RefusesIdsOutsideTheTable) {
  const Variable weight(random_normal({7, 2}, {.seed = 1}));
  const Tensor ids = tensor_of(std::vector<int64_t>{0, 1, 2, 3, 7, 5}, {2, 3});
  const std::string message = message_of<ShapeError>([&] { embedding(weight, ids); });
  EXPECT_NE(message.find("token id 7 at sample 1, position 1 is outside the table of 7 rows"),
            std::string::npos)
      << message;
  const Tensor good = tensor_of(std::vector<int64_t>{0, 1}, {1, 2});
  const Tensor bad = tensor_of(std::vector<int64_t>{0, -1}, {1, 2});
  EXPECT_NE(message_of<ShapeError>([&] {
              embedding(weight, good, weight, bad);
            }).find("position id -1 at sample 0, position 1"),
            std::string::npos);
}

}  // namespace
}  // namespace megatron
