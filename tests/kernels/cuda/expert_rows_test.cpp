#include "megatron/kernels/expert_rows.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "megatron/kernels/bias_activation.h"
#include "megatron/kernels/fp8_rows.h"
#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

// Ids of `tokens` with k choices of `experts`, some of them -1.
Tensor random_choices(int64_t tokens, int64_t k, int64_t experts) {
  std::mt19937 random(7);
  std::vector<int32_t> ids(static_cast<size_t>(tokens * k));
  for (int32_t& id : ids) {
    id = static_cast<int32_t>(random() % static_cast<uint64_t>(experts + 1)) - 1;
  }
  return tensor_of(ids, {tokens, k});
}

struct OrderCase {
  int64_t tokens, k, experts, first, local;
};
const std::vector<OrderCase> kOrderCases = {{5, 2, 8, 0, 8},
                                            {1000, 3, 8, 2, 3},
                                            {777, 8, 300, 0, 300},
                                            {4096, 2, 512, 256, 256},
                                            {3, 1, 4, 3, 1}};

struct Order {
  Tensor offsets, slots, rows;
};
Order order_of(const Tensor& ids, const OrderCase& c) {
  Order order{Tensor({c.local + 1}, DType::kInt32, Stream{}),
              Tensor({ids.numel()}, DType::kInt32, Stream{}),
              Tensor(ids.shape(), DType::kInt32, Stream{})};
  kernels::order_by_expert(order.offsets.view(), order.slots.view(), order.rows.view(), ids.view(),
                           c.first, TensorView{}, Stream{});
  return order;
}

class ExpertRowsCudaTest : public CudaDtypeTest {};
INSTANTIATE_TEST_SUITE_P(Dtypes, ExpertRowsCudaTest, kTrainingDtypes, dtype_name);

TEST_P(ExpertRowsCudaTest, OrdersSlotsByExpert) {
  for (const OrderCase& c : kOrderCases) {
    const Tensor ids = random_choices(c.tokens, c.k, c.experts);
    const auto [offsets, slots, rows] = order_of(ids, c);
    expect_twins(
        {zeros(offsets.shape(), DType::kInt32, Stream{}),
         zeros(slots.shape(), DType::kInt32, Stream{}),
         zeros(rows.shape(), DType::kInt32, Stream{}), ids},
        [&](std::vector<Tensor>& t, Stream stream) {
          Tensor workspace({kernels::expert_order_workspace_bytes(c.tokens * c.k, c.local, stream)},
                           DType::kUInt8, stream);
          kernels::order_by_expert(t[0].view(), t[1].view(), t[2].view(), t[3].view(), c.first,
                                   workspace.view(), stream);
          synchronize(stream);
        },
        {.what = std::to_string(c.tokens) + " tokens, " + std::to_string(c.experts) + " experts"});
  }
}

TEST_P(ExpertRowsCudaTest, MovesAndWeighsRows) {
  for (const OrderCase& c : kOrderCases) {
    for (const int64_t cols : {64, 37}) {
      const Tensor ids = random_choices(c.tokens, c.k, c.experts);
      const auto [offsets, slots, rows] = order_of(ids, c);
      const auto tensor = [&](int64_t count, uint64_t seed) {
        return random_normal({count, cols}, {.seed = seed, .dtype = GetParam()});
      };
      const Tensor weights = random_normal(ids.shape(), {.seed = 9});
      // The terms of a weight's gradient cancel: their size, about 1, sets the error.
      Tolerance of_sums = tolerance_of(GetParam());
      of_sums.absolute = std::max(
          of_sums.absolute, tolerance_of(DType::kFloat32).relative * static_cast<double>(cols + 1));
      expect_twins({tensor(ids.numel(), 1), tensor(c.tokens, 2), slots},
                   [&](std::vector<Tensor>& t, Stream stream) {
                     kernels::gather_token_rows(t[0].view(), t[1].view(), t[2].view(), c.k, stream);
                   });
      expect_twins({tensor(c.tokens, 1), tensor(ids.numel(), 2), rows},
                   [](std::vector<Tensor>& t, Stream stream) {
                     kernels::combine_token_rows(t[0].view(), t[1].view(), t[2].view(), stream);
                   });
      expect_twins({tensor(ids.numel(), 1), tensor(ids.numel(), 2), weights, slots},
                   [](std::vector<Tensor>& t, Stream stream) {
                     kernels::weigh_rows_forward(t[0].view(), t[1].view(), t[2].view(), t[3].view(),
                                                 stream);
                   });
      expect_twins({tensor(ids.numel(), 1), random_normal(ids.shape(), {.seed = 3}),
                    tensor(ids.numel(), 4), tensor(ids.numel(), 5), weights, slots},
                   [](std::vector<Tensor>& t, Stream stream) {
                     kernels::weigh_rows_backward(t[0].view(), t[1].view(), t[2].view(),
                                                  t[3].view(), t[4].view(), t[5].view(), stream);
                   },
                   {.tolerance = of_sums});
    }
  }
}

TEST_P(ExpertRowsCudaTest, ActivatesAndWeighsRows) {
  for (const OrderCase& c : kOrderCases) {
    for (const int64_t cols : {64, 37, 520}) {
      if (c.tokens * c.k > 100 && cols != 37) continue;  // rows of several packs: a few
      const Tensor ids = random_choices(c.tokens, c.k, c.experts);
      const Tensor slots = order_of(ids, c).slots;
      const Tensor weights = random_normal(ids.shape(), {.seed = 9});
      const auto tensor = [&](int64_t width, uint64_t seed) {
        return random_normal({ids.numel(), width}, {.seed = seed, .dtype = GetParam()});
      };
      // The terms of a weight's gradient cancel: their size, a few units, sets the error.
      Tolerance of_sums = tolerance_of(GetParam());
      of_sums.absolute = std::max(of_sums.absolute, 4 * tolerance_of(DType::kFloat32).relative *
                                                        static_cast<double>(cols + 1));
      for (const Activation activation :
           {Activation::kGeluTanh, Activation::kSwiglu, Activation::kSwigluSecond,
            Activation::kClampedQuickGeglu}) {
        const int64_t width = is_gated(activation) ? 2 * cols : cols;
        expect_twins({tensor(cols, 1), tensor(width, 2), weights, slots},
                     [&](std::vector<Tensor>& t, Stream stream) {
                       kernels::weighed_activation_forward(t[0].view(), t[1].view(), t[2].view(),
                                                           t[3].view(), activation, stream);
                     },
                     {.tolerance = of_sums});
        for (const bool in_place : {false, true}) {
          expect_twins({tensor(width, 1), tensor(cols, 2), random_normal(ids.shape(), {.seed = 3}),
                        tensor(cols, 4), tensor(width, 5), weights, slots},
                       [&](std::vector<Tensor>& t, Stream stream) {
                         kernels::weighed_activation_backward(
                             t[0].view(), {}, t[in_place ? 3 : 1].view(), t[2].view(), t[3].view(),
                             t[4].view(), t[5].view(), t[6].view(), activation, stream);
                       },
                       {.tolerance = of_sums});
        }
      }
    }
  }
}

// The kernels that also round rows to FP8 equal those that do one after the other.
TEST_P(ExpertRowsCudaTest, RoundsWeighedActivations) {
  for (const int64_t f : {16, 1024, 1168}) {
    for (const Activation activation : {Activation::kGeluTanh, Activation::kSwiglu}) {
      const int64_t width = is_gated(activation) ? 2 * f : f;
      constexpr int64_t kRows = 21;
      const auto random = [&](int64_t cols, uint64_t seed) {
        return random_normal({kRows, cols}, {.seed = seed, .dtype = GetParam()}).to(stream());
      };
      std::vector<int32_t> order(kRows, -1);
      for (int32_t r = 0; r < kRows - 2; ++r) order[static_cast<size_t>(r)] = (r * 7) % (kRows - 2);
      const Tensor slots = tensor_of(order, {kRows}).to(stream());
      const Tensor weights = random_normal({kRows, 1}, {.seed = 9}).to(stream());
      const Tensor x = random(width, 1);
      const Tensor dy = random(f, 2);
      Tensor y(dy.shape(), GetParam(), stream());
      kernels::weighed_activation_forward(y.view(), x.view(), weights.view(), slots.view(),
                                          activation, stream());
      const auto rows8 = [&](const Tensor& like, DType type) {
        return std::vector{Tensor(like.shape(), type, stream()),
                           Tensor({kRows}, DType::kFloat32, stream())};
      };
      const auto expect_rounded = [&](const std::vector<Tensor>& got, const Tensor& of) {
        std::vector<Tensor> want = rows8(of, got[0].dtype());
        kernels::fp8_quantize_rows(want[0].view(), want[1].view(), of.view(), stream());
        for (size_t i = 0; i < 2; ++i) {
          expect_identical(got[i].to(Stream{}), want[i].to(Stream{}), std::to_string(f));
        }
      };
      std::vector<Tensor> y8 = rows8(y, DType::kFloat8E4M3);
      kernels::weighed_activation_fp8({y8[0].view(), y8[1].view()}, x.view(), weights.view(),
                                      slots.view(), activation, stream());
      expect_rounded(y8, y);
      for (const DType type : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
        Tensor dx(x.shape(), GetParam(), stream());
        std::vector<Tensor> dx8 = rows8(dx, type);
        Tensor dweights = zeros(weights.shape(), DType::kFloat32, stream());
        kernels::weighed_activation_backward(dx.view(), {dx8[0].view(), dx8[1].view()}, y.view(),
                                             dweights.view(), dy.view(), x.view(), weights.view(),
                                             slots.view(), activation, stream());
        expect_rounded(dx8, dx);
      }
    }
  }
}

}  // namespace
}  // namespace megatron
