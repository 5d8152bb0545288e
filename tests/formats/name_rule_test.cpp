#include "megatron/formats/name_rule.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <cstring>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/formats/safetensors.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// 6 heads of 3 channels in 2 groups, a vocabulary of 5.
constexpr LayoutSizes kSizes{6, 2, 3, 5};

Tensor counted(const Shape& shape, float first = 0) {
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  std::iota(values.begin(), values.end(), first);
  return tensor_of(values, shape);
}

StoredTensor stored_as(const Tensor& x) {
  return tensor_in_one_piece(x.shape(), x.dtype(), [x] { return FileElements{x.view(), x}; });
}

TensorMapping mapped_tensor(const Shape& ours, Layout layout, size_t parts = 1) {
  TensorMapping tensor{{"ours", DType::kFloat32, ours}, {}, layout};
  for (size_t part = 0; part < parts; ++part) tensor.theirs.push_back(std::to_string(part));
  return tensor;
}

// Ours, put together from all pieces; rows of padding are zero.
Tensor to_ours(const TensorMapping& tensor, std::span<const ConstView> theirs,
               const LayoutSizes& sizes) {
  std::vector<StoredTensor> parts;
  for (const ConstView& view : theirs) {
    parts.push_back(
        tensor_in_one_piece(view.shape, view.dtype, [view] { return FileElements{view}; }));
  }
  const DType dtype = theirs[0].dtype;
  Tensor y = zeros(tensor.ours.shape, dtype, {});
  const int64_t width = y.rank() == 2 ? y.size(1) : 1;
  for (const TensorPiece& piece : from_theirs(tensor, parts, sizes).pieces) {
    const FileElements elements = piece.read();
    const Shape& shape = piece.region.shape;
    EXPECT_EQ(elements.view.shape, shape);
    const int64_t columns = shape.rank() == 2 ? shape[1] : 1;
    const int64_t rows = columns == 0 ? 0 : shape.numel() / columns;
    const int64_t row = piece.region.offset.empty() ? 0 : piece.region.offset[0];
    const int64_t column = piece.region.offset.size() == 2 ? piece.region.offset[1] : 0;
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(
          static_cast<std::byte*>(y.view().data) + ((row + r) * width + column) * size_of(dtype),
          static_cast<const std::byte*>(elements.view.data) + r * columns * size_of(dtype),
          static_cast<size_t>(columns * size_of(dtype)));
    }
  }
  return y;
}

void expect_inverse(const TensorMapping& tensor) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64, DType::kUInt8}) {
    const Tensor ours = dtype == DType::kUInt8 || dtype == DType::kFloat64
                            ? zeros(tensor.ours.shape, dtype, {})
                            : random_normal(tensor.ours.shape, {.seed = 3, .dtype = dtype});
    std::vector<Tensor> theirs;
    std::vector<ConstView> views;
    for (size_t part = 0; part < tensor.theirs.size(); ++part) {
      theirs.push_back(to_theirs(tensor, part, ours.view(), kSizes));
      EXPECT_EQ(theirs.back().shape(), their_shapes(tensor, kSizes)[part]);
    }
    for (const Tensor& part : theirs) views.push_back(part.view());
    expect_identical(to_ours(tensor, views, kSizes), ours);
  }
}

TEST(NameRuleTest, EveryLayoutHasAnInverse) {
  expect_inverse(mapped_tensor({}, Layout::kSame));
  expect_inverse(mapped_tensor({0, 4}, Layout::kSame));
  expect_inverse(mapped_tensor({4, 7}, Layout::kTranspose));
  expect_inverse(mapped_tensor({33, 70}, Layout::kTranspose));
  expect_inverse(mapped_tensor({5, 7}, Layout::kPadVocab));
  expect_inverse(mapped_tensor({30, 7}, Layout::kQkvThirds));
  expect_inverse(mapped_tensor({30}, Layout::kQkvThirds));
  expect_inverse(mapped_tensor({30, 7}, Layout::kQkvThirdsTranspose));
  expect_inverse(mapped_tensor({30}, Layout::kQkvThirdsTranspose));
  expect_inverse(mapped_tensor({30, 7}, Layout::kQkvSplit, 3));
  expect_inverse(mapped_tensor({30}, Layout::kQkvSplit, 3));
  expect_inverse(mapped_tensor({8, 3}, Layout::kGateUp, 2));
  expect_inverse(mapped_tensor({36, 7}, Layout::kKvSplit, 2));
}

TEST(NameRuleTest, QkvRowsAreWhereMegatronHasThem) {
  // Row of query head 4, channel 1: 19; of key group 1, channel 0: 24; of value group 1: 27.
  const Tensor q = counted({18, 1});
  const Tensor k = counted({6, 1}, 100);
  const Tensor v = counted({6, 1}, 200);
  const TensorMapping split = mapped_tensor({30, 1}, Layout::kQkvSplit, 3);
  const Tensor ours = to_ours(split, std::vector<ConstView>{q.view(), k.view(), v.view()}, kSizes);
  EXPECT_EQ(ours.span<float>()[19], 4 * 3 + 1);
  EXPECT_EQ(ours.span<float>()[24], 100 + 3);
  EXPECT_EQ(ours.span<float>()[27], 200 + 3);

  // Queries, keys and values one after the other are the same in thirds.
  const TensorMapping thirds = mapped_tensor({30, 1}, Layout::kQkvThirds);
  const Tensor fused = to_theirs(thirds, 0, ours.view(), kSizes);
  expect_identical(fused.slice(0, 18), q);
  expect_identical(fused.slice(18, 6), k);
  expect_identical(fused.slice(24, 6), v);
}

TEST(NameRuleTest, AKeyIsBesideItsValue) {
  // Head 1, channel 2: row 8 of the keys; its value's first channel follows.
  const Tensor k = counted({18, 1});
  const Tensor v = counted({18, 1}, 100);
  const TensorMapping split = mapped_tensor({36, 1}, Layout::kKvSplit, 2);
  const Tensor ours = to_ours(split, std::vector<ConstView>{k.view(), v.view()}, kSizes);
  EXPECT_EQ(ours.span<float>()[8], 5);
  EXPECT_EQ(ours.span<float>()[9], 103);
}

TEST(NameRuleTest, TransposedThirdsAreColumns) {
  // One head a group, as GPT-2: c_attn [in, 3h].
  constexpr LayoutSizes kHeads{2, 2, 1, 5};
  const TensorMapping tensor = mapped_tensor({6, 2}, Layout::kQkvThirdsTranspose);
  const Tensor c_attn = counted({2, 6});
  const Tensor ours = to_ours(tensor, std::vector<ConstView>{c_attn.view()}, kHeads);
  // Columns in the order q0 k0 v0 q1 k1 v1.
  EXPECT_THAT(ours.span<float>(), ElementsAre(0, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11));
}

TEST(NameRuleTest, GateComesFirstAndPaddingIsZero) {
  const Tensor gate = counted({2, 1});
  const Tensor up = counted({2, 1}, 10);
  const Tensor fc1 = to_ours(mapped_tensor({4, 1}, Layout::kGateUp, 2),
                             std::vector<ConstView>{gate.view(), up.view()}, kSizes);
  EXPECT_THAT(fc1.span<float>(), ElementsAre(0, 1, 10, 11));
  const TensorMapping table = mapped_tensor({7, 1}, Layout::kPadVocab);
  const Tensor rows = counted({5, 1}, 1);
  const Tensor padded = to_ours(table, std::vector<ConstView>{rows.view()}, kSizes);
  EXPECT_THAT(padded.span<float>(), ElementsAre(1, 2, 3, 4, 5, 0, 0));
  expect_identical(to_theirs(table, 0, padded.view(), kSizes), rows);
}

TEST(NameRuleTest, TensorsOfEachExpertAreOneOfOurs) {
  const TensorSpec fc1{"fc1", DType::kFloat32, {2, 4, 3}};
  const NameTable table{
      {{"fc1", {"experts.{e}.gate", "experts.{e}.up"}, Layout::kExpertGateUp}}, "", {}};
  const TensorMapping tensor = mapped(table, {&fc1, 1}).front();
  EXPECT_THAT(tensor.theirs,
              ElementsAre("experts.0.gate", "experts.0.up", "experts.1.gate", "experts.1.up"));
  std::vector<Tensor> theirs;
  std::vector<StoredTensor> stored;
  for (int part = 0; part < 4; ++part) {
    theirs.push_back(counted({2, 3}, static_cast<float>(100 * part)));
    stored.push_back(stored_as(theirs.back()));
  }
  const Tensor ours = read_whole(from_theirs(tensor, stored, kSizes));
  EXPECT_EQ(ours.span<float>()[(1 * 4 + 0) * 3 + 1], 201);  // expert 1, its gate
  EXPECT_EQ(ours.span<float>()[(1 * 4 + 3) * 3 + 2], 305);  // its last row
  for (size_t part = 0; part < 4; ++part) {
    expect_identical(to_theirs(tensor, part, ours.view(), kSizes), theirs[part]);
  }
  const TensorMapping odd = {{"fc1", DType::kFloat32, {2, 3, 3}}, tensor.theirs, tensor.layout};
  EXPECT_THROW(their_shapes(odd, kSizes), ShapeError);
  const TensorMapping flat = {{"fc1", DType::kFloat32, {8, 3}}, tensor.theirs, tensor.layout};
  EXPECT_THAT(message_of<ShapeError>([&] { their_shapes(flat, kSizes); }),
              HasSubstr("expected [experts, rows, columns]"));
}

// GPT-OSS: matrices [columns, rows] of all experts, gate and up in turns.
TEST(NameRuleTest, OneTensorOfAllExpertsHasTransposedPairs) {
  const TensorMapping fc1 = mapped_tensor({2, 4, 3}, Layout::kExpertColumnPairs);
  const Tensor theirs = counted({2, 3, 4});
  EXPECT_EQ(their_shapes(fc1, kSizes), std::vector<Shape>({theirs.shape()}));
  const StoredTensor stored = from_theirs(fc1, {stored_as(theirs)}, kSizes);
  EXPECT_EQ(stored.pieces.size(), 2u);  // a rank of an expert group reads its experts alone
  const Tensor ours = read_whole(stored);
  EXPECT_THAT(ours.slice(0, 1).span<float>(), ElementsAre(0, 4, 8, 2, 6, 10, 1, 5, 9, 3, 7, 11));
  EXPECT_EQ(ours.span<float>()[(1 * 4 + 3) * 3 + 1], 12 + 1 * 4 + 3);
  expect_identical(to_theirs(fc1, 0, ours.view(), kSizes), theirs);

  const TensorMapping bias = mapped_tensor({2, 4}, Layout::kExpertColumnPairs);
  const Tensor biases = counted({2, 4});
  const Tensor our_biases = read_whole(from_theirs(bias, {stored_as(biases)}, kSizes));
  EXPECT_THAT(our_biases.span<float>(), ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));
  expect_identical(to_theirs(bias, 0, our_biases.view(), kSizes), biases);

  const TensorMapping fc2 = mapped_tensor({2, 3, 4}, Layout::kExpertColumns);
  const Tensor down = read_whole(from_theirs(fc2, {stored_as(counted({2, 4, 3}))}, kSizes));
  EXPECT_THAT(down.slice(0, 1).span<float>(), ElementsAre(0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11));
  expect_identical(to_theirs(fc2, 0, down.view(), kSizes), counted({2, 4, 3}));

  EXPECT_THAT(message_of<ShapeError>([&] {
                their_shapes(mapped_tensor({2, 3, 4}, Layout::kExpertColumnPairs), kSizes);
              }),
              HasSubstr("expected an even number of rows"));
  EXPECT_THAT(message_of<ShapeError>(
                  [&] { their_shapes(mapped_tensor({8}, Layout::kExpertColumns), kSizes); }),
              HasSubstr("expected [experts, rows, columns] or [experts, rows]"));
}

// Parts of several dtypes make a tensor of fp32.
TEST(NameRuleTest, JoinsPartsOfSeveralDtypes) {
  const TensorMapping fc1 = mapped_tensor({4, 1}, Layout::kGateUp, 2);
  const Tensor gate = cast(counted({2, 1}), DType::kBFloat16);
  const StoredTensor ours =
      from_theirs(fc1, {stored_as(gate), stored_as(counted({2, 1}, 10))}, kSizes);
  EXPECT_EQ(ours.dtype, DType::kFloat32);
  EXPECT_THAT(read_whole(ours).span<float>(), ElementsAre(0, 1, 10, 11));
}

TEST(NameRuleTest, ReadsUnalignedSources) {
  const Tensor x = counted({4, 3});
  std::vector<std::byte> shifted(static_cast<size_t>(x.bytes()) + 1);
  std::ranges::copy(bytes_of(x.view()), shifted.begin() + 1);
  const ConstView source{shifted.data() + 1, {4, 3}, DType::kFloat32};
  const Tensor y =
      to_ours(mapped_tensor({3, 4}, Layout::kTranspose), std::vector<ConstView>{source}, kSizes);
  EXPECT_THAT(y.span<float>(), ElementsAre(0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11));
}

TEST(NameRuleTest, RefusesSizesThatDoNotFit) {
  const auto refusal = [](const Shape& shape, Layout layout, size_t parts) {
    return message_of<ShapeError>(
        [&] { their_shapes(mapped_tensor(shape, layout, parts), kSizes); });
  };
  EXPECT_THAT(refusal({29, 2}, Layout::kQkvSplit, 3), HasSubstr("expected 30 rows"));
  EXPECT_THAT(refusal({4, 2}, Layout::kPadVocab, 1), HasSubstr("expected 5 rows"));
  EXPECT_THAT(refusal({3, 2}, Layout::kGateUp, 2), HasSubstr("expected 2 rows"));
  EXPECT_THAT(refusal({}, Layout::kGateUp, 2), HasSubstr("expected a tensor with rows"));
  EXPECT_THAT(refusal({2, 2, 2}, Layout::kTranspose, 1), HasSubstr("two axes"));
}

// A rank of a tensor-parallel group moves the elements of its own rows or columns alone.
TEST(NameRuleTest, PiecesAreAsSmallAsRanksNeed) {
  constexpr LayoutSizes kManyHeads{16, 16, 2, 5};
  const auto number = [&](const TensorMapping& tensor) {
    const std::vector<StoredTensor> theirs(
        tensor.theirs.size(), tensor_in_one_piece(tensor.ours.shape, DType::kFloat32, {}));
    return from_theirs(tensor, theirs, kManyHeads).pieces.size();
  };
  EXPECT_EQ(number(mapped_tensor({8, 4}, Layout::kSame)), 1u);
  EXPECT_EQ(number(mapped_tensor({8, 4}, Layout::kGateUp, 2)), 2u);
  EXPECT_EQ(number(mapped_tensor({96, 4}, Layout::kQkvThirdsTranspose)), 8u);
  EXPECT_EQ(number(mapped_tensor({96, 4}, Layout::kQkvSplit, 3)), 8u);
  EXPECT_EQ(number(mapped_tensor({64, 32}, Layout::kTranspose)), 64u);
}

TEST(NameRuleTest, FindsRulesByLayer) {
  static constexpr NameRule kRules[] = {
      {"layers.{i}.weight", {"h.{i}.w"}, Layout::kTranspose},
      {"layers.{i}.bias", {"h.{i}.b"}},
      {"final", {"ln"}},
  };
  const NameTable table{{std::begin(kRules), std::end(kRules)}, "", {}};
  const auto specs = [](std::vector<std::string> names) {
    std::vector<TensorSpec> found;
    for (std::string& name : names) found.push_back({std::move(name), DType::kFloat32, {2, 2}});
    return found;
  };
  const std::vector<TensorMapping> tensors =
      mapped(table, specs({"layers.11.weight", "final", "layers.0.bias"}));
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_THAT(tensors[0].theirs, ElementsAre("h.11.w"));
  EXPECT_EQ(tensors[0].layout, Layout::kTranspose);
  EXPECT_THAT(tensors[1].theirs, ElementsAre("ln"));
  EXPECT_THAT(tensors[2].theirs, ElementsAre("h.0.b"));
  EXPECT_THAT(message_of<Unsupported>([&] {
                mapped(table, specs({"layers.x.bias", "layers..bias", "finale"}));
              }),
              HasSubstr("layers.x.bias, layers..bias, finale"));
}

}  // namespace
}  // namespace megatron
