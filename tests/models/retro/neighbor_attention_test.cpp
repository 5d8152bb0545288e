#include "megatron/models/retro/neighbor_attention.h"

#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "megatron/nn/module.h"
#include "megatron/ops/elementwise.h"
#include "megatron/transformer/transformer_block.h"
#include "tests/ops/op_case.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

constexpr int64_t kNeighborBatch = 2;
constexpr int64_t kNeighborHidden = 8;
constexpr int64_t kHeads = 2;
constexpr int64_t kChunk = 4;               // tokens of a chunk
constexpr int64_t kNeighborLength = 8;      // two of them
constexpr int64_t kFirst = 0, kSecond = 2;  // layers that attend to neighbours, from 0

TransformerConfig neighbor_layers_config(int64_t num_neighbors) {
  TransformerConfig c;
  c.num_layers = 3;
  c.hidden_size = kNeighborHidden;
  c.num_attention_heads = kHeads;
  c.ffn_hidden_size = 12;
  c.seq_length = c.max_position_embeddings = 16;
  c.hidden_dropout = c.attention_dropout = 0;
  c.retro = {.add_retriever = true,
             .layer_numbers = {kFirst + 1, kSecond + 1},
             .chunk_length = kChunk,
             .num_neighbors = num_neighbors,
             .num_retrieved_chunks = kNeighborLength / kChunk,
             .encoder_hidden_dropout = 0,
             .encoder_attention_dropout = 0};
  return resolved(c);
}

// Random values, also for biases and norms.
void fill(const Module& module) {
  uint64_t seed = 100;
  for (Parameter& parameter : named_parameters(module)) {
    const bool is_factor = parameter.name.ends_with("layernorm.weight");
    const Tensor values = random_normal(
        parameter.variable.shape(),
        {.seed = ++seed, .mean = is_factor ? 1.0f : 0.0f, .stddev = is_factor ? 0.2f : 0.4f});
    copy_into(parameter.variable.mutable_data(), values);
  }
}

using Row = std::vector<double>;
using Rows = std::vector<Row>;

// The definition: loops over tokens, chunks and neighbours, in fp64.
class Reference {
 public:
  Reference(const Module& module, const RetroConfig& retro) : retro_(retro) {
    for (const Parameter& parameter : named_parameters(module)) {
      weights_[parameter.name] = parameter.variable.data();
    }
  }

  // What the encoder makes of a neighbour of the chunk.
  Rows encoded(Rows u, const Rows& chunk) const {
    for (int64_t layer = 0; layer < retro_.encoder_layers; ++layer) {
      const std::string in = "encoder.layers." + std::to_string(layer) + ".";
      add(u, self_attention(in + "self_attention.", normed(in + "input_layernorm", u)));
      if (layer == 0) {
        const Rows queries = normed(in + "pre_cross_attn_layernorm", u);
        if (retro_.encoder_residual == RetroResidual::kPost) u = queries;
        add(u, cross_attention(in + "cross_attention.attn.", queries, chunk));
      }
      Rows wide = linear(in + "mlp.linear_fc1", normed(in + "pre_mlp_layernorm", u));
      for (Row& row : wide) {
        for (double& x : row) x = gelu(x);
      }
      add(u, linear(in + "mlp.linear_fc2", wide));
    }
    return u;
  }

  Rows cross_attention(const std::string& in, const Rows& queries, const Rows& keys) const {
    const Rows q = linear(in + "linear_q", queries);
    const Rows kv = linear(in + "linear_kv", keys);
    return linear(in + "linear_proj", attended(
                                          q, kv, [](int64_t head) { return head * kSize; },
                                          [](int64_t head) { return 2 * head * kSize; }));
  }

 private:
  static constexpr int64_t kSize = kNeighborHidden / kHeads;

  static double gelu(double x) {
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  }
  static void add(Rows& x, const Rows& more) {
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t j = 0; j < x[i].size(); ++j) x[i][j] += more[i][j];
    }
  }
  double weight(const std::string& name, int64_t at) const {
    return element(weights_.at(name), at);
  }
  Rows normed(const std::string& name, const Rows& x) const {
    Rows y = x;
    for (Row& row : y) {
      double mean = 0, square = 0;
      for (const double value : row) mean += value / kNeighborHidden;
      for (const double value : row) square += (value - mean) * (value - mean) / kNeighborHidden;
      for (int64_t i = 0; i < kNeighborHidden; ++i) {
        double& value = row[static_cast<size_t>(i)];
        value = (value - mean) / std::sqrt(square + 1e-5) * weight(name + ".weight", i) +
                weight(name + ".bias", i);
      }
    }
    return y;
  }
  Rows linear(const std::string& name, const Rows& x) const {
    const int64_t out = weights_.at(name + ".weight").size(0);
    const int64_t width = weights_.at(name + ".weight").size(1);
    Rows y;
    for (const Row& row : x) {
      Row sums;
      for (int64_t i = 0; i < out; ++i) {
        double sum = weight(name + ".bias", i);
        for (int64_t j = 0; j < width; ++j) {
          sum += weight(name + ".weight", i * width + j) * row[static_cast<size_t>(j)];
        }
        sums.push_back(sum);
      }
      y.push_back(sums);
    }
    return y;
  }
  Rows self_attention(const std::string& in, const Rows& x) const {
    const Rows qkv = linear(in + "linear_qkv", x);  // of each head its query, key and value
    return linear(in + "linear_proj", attended(
                                          qkv, qkv, [](int64_t head) { return 3 * head * kSize; },
                                          [](int64_t head) { return (3 * head + 1) * kSize; }));
  }
  // q_at and k_at: where the query and the key of a head begin; its value follows the key.
  template <class QueryAt, class KeyAt>
  static Rows attended(const Rows& q, const Rows& kv, QueryAt q_at, KeyAt k_at) {
    Rows y;
    for (const Row& query : q) {
      Row all;
      for (int64_t head = 0; head < kHeads; ++head) {
        Row scores;
        double sum = 0;
        for (const Row& key : kv) {
          double dot = 0;
          for (int64_t i = 0; i < kSize; ++i) {
            dot += query[static_cast<size_t>(q_at(head) + i)] *
                   key[static_cast<size_t>(k_at(head) + i)];
          }
          scores.push_back(std::exp(dot / std::sqrt(kSize)));
          sum += scores.back();
        }
        for (int64_t i = 0; i < kSize; ++i) {
          double value = 0;
          for (size_t j = 0; j < kv.size(); ++j) {
            value += scores[j] / sum * kv[j][static_cast<size_t>(k_at(head) + kSize + i)];
          }
          all.push_back(value);
        }
      }
      y.push_back(all);
    }
    return y;
  }

  RetroConfig retro_;
  std::map<std::string, Tensor> weights_;
};

Row row_of(const Tensor& x, int64_t row, int64_t column) {
  Row values;
  for (int64_t i = 0; i < kNeighborHidden; ++i) {
    values.push_back(element(x, (row * x.size(1) + column) * kNeighborHidden + i));
  }
  return values;
}

// Both layers that attend to neighbours, on normed tokens of their own.
struct Layers {
  TransformerConfig config;
  NeighborAttention first, second;

  explicit Layers(const TransformerConfig& the_config)
      : config(the_config),
        first(config, Stack().place(kFirst), {}, Stream{}),
        second(config, Stack().place(kSecond), {}, Stream{}) {
    fill(first);
    fill(second);
  }
  // The outputs of both, one after the other: [2 s, b, h].
  std::vector<Variable> forward(const Variable& x, const Variable& x2, const Variable& neighbors,
                                int64_t first_sample = 0) const {
    RandomState random(1);
    random.set_first_sample(first_sample);
    Neighbors shared;
    shared.chunk_length = kChunk;
    shared.embedded = neighbors;
    ForwardContext context;
    context.random = &random;
    context.model = &shared;
    const Variable y = first.forward(x, context).y;
    return {y, second.forward(x2, context).y};
  }
};

// Parameters: tokens of a sequence, neighbours of a chunk, what the encoder's cross-attention is
// added to.
class BruteForceTest : public testing::TestWithParam<std::tuple<int64_t, int64_t, RetroResidual>> {
};

TEST_P(BruteForceTest, EqualsChunkedCrossAttention) {
  const auto [s, k, residual] = GetParam();
  TransformerConfig config = neighbor_layers_config(k);
  config.retro.encoder_residual = residual;
  const Layers layers(config);
  const int64_t l = config.retro.num_chunks(s);
  const Tensor x = random_normal({s, kNeighborBatch, kNeighborHidden}, {.seed = 1});
  const Tensor x2 = random_normal({s, kNeighborBatch, kNeighborHidden}, {.seed = 2});
  const Tensor neighbors =
      random_normal({kNeighborLength, kNeighborBatch * l * k, kNeighborHidden}, {.seed = 3});
  const std::vector<Variable> got = layers.forward(Variable(x), Variable(x2), Variable(neighbors));

  const Reference first(layers.first, config.retro);
  const Reference second(layers.second, config.retro);
  Tensor want = zeros({s, kNeighborBatch, kNeighborHidden}, DType::kFloat32, Stream{});
  Tensor want2 = copied(want);
  for (int64_t sample = 0; sample < kNeighborBatch; ++sample) {
    int64_t end = s - (l - 1) * kChunk;  // behind the first chunk
    for (int64_t chunk = 0; chunk < l; ++chunk, end += kChunk) {
      Rows own(kChunk, Row(kNeighborHidden));  // a shorter first chunk has zeros behind it
      for (int64_t t = chunk == 0 ? 0 : end - kChunk, i = 0; t < end; ++t, ++i) {
        own[static_cast<size_t>(i)] = row_of(x, t, sample);
      }
      Rows keys;
      for (int64_t j = 0; j < k; ++j) {
        Rows neighbor;
        for (int64_t i = 0; i < kNeighborLength; ++i) {
          neighbor.push_back(row_of(neighbors, i, (sample * l + chunk) * k + j));
        }
        for (const Row& row : first.encoded(neighbor, own)) keys.push_back(row);
      }
      for (int64_t t = end - 1; t < std::min(end - 1 + kChunk, s); ++t) {
        const auto put = [&](Tensor& to, const Reference& layer, const Tensor& from) {
          const Rows y = layer.cross_attention("attn.", {row_of(from, t, sample)}, keys);
          for (int64_t i = 0; i < kNeighborHidden; ++i) {
            to.span<float>()[static_cast<size_t>((t * kNeighborBatch + sample) * kNeighborHidden +
                                                 i)] =
                static_cast<float>(y[0][static_cast<size_t>(i)]);
          }
        };
        put(want, first, x);
        put(want2, second, x2);
      }
    }
  }
  expect_close(got[0].data(), want, {1e-4, 1e-4}, "the first layer");
  expect_close(got[1].data(), want2, {1e-4, 1e-4}, "the second layer");
  EXPECT_GT(largest(want), 0.1);
}

// Whole chunks, shorter first ones, and a text that is shorter than a chunk.
INSTANTIATE_TEST_SUITE_P(Sizes, BruteForceTest,
                         testing::Combine(testing::Values(12, 10, 9, 3), testing::Values(1, 2, 3),
                                          testing::Values(RetroResidual::kPre)));
INSTANTIATE_TEST_SUITE_P(MegatronCore, BruteForceTest,
                         testing::Values(std::tuple(10, 2, RetroResidual::kPost)));

// Central differences through both layers and the encoder. Inputs: tokens, their values before the
// second layer, neighbours.
TEST(NeighborAttentionTest, HasTheRightGradients) {
  for (const float dropout : {0.0f, 0.3f}) {
    TransformerConfig config = neighbor_layers_config(2);
    config.hidden_dropout = config.attention_dropout = dropout;
    config.retro.encoder_hidden_dropout = config.retro.encoder_attention_dropout = dropout;
    config.retro.attention_gate = 0.5;
    const Layers layers(config);
    check({.name = "NeighborAttention",
           .inputs = {random_normal({6, 1, kNeighborHidden}, {.seed = 1}),
                      random_normal({6, 1, kNeighborHidden}, {.seed = 2}),
                      random_normal({kNeighborLength, 4, kNeighborHidden}, {.seed = 3})},
           .op =
               [&](const auto& in) {
                 const auto both = layers.forward(in[0], in[1], in[2]);
                 return add(both[0], both[1]);
               },
           .terms = 1024,
           .dtypes = {},
           .step = 0x1p-7,
           .gradient_tolerance = 4e-3});
  }
}

// Parameters have no central differences above: a step against their gradients lowers a loss as
// much as these say.
TEST(NeighborAttentionTest, ParametersHaveTheRightGradients) {
  const Layers layers(neighbor_layers_config(2));
  const Tensor x = random_normal({6, 1, kNeighborHidden}, {.seed = 1});
  const Tensor x2 = random_normal({6, 1, kNeighborHidden}, {.seed = 2});
  const Tensor neighbors = random_normal({kNeighborLength, 4, kNeighborHidden}, {.seed = 3});
  const Tensor w = random_normal({6, 1, kNeighborHidden}, {.seed = 4});
  const auto outputs = [&] {
    return layers.forward(Variable(x), Variable(x2), Variable(neighbors));
  };
  const auto loss = [&] {
    double sum = 0;
    const NoGrad no_grad;
    for (const Variable& y : outputs()) {
      for (int64_t i = 0; i < w.numel(); ++i) sum += element(y.data(), i) * element(w, i);
    }
    return sum;
  };
  const std::vector<Variable> ys = outputs();
  backward(ys, std::vector<Tensor>{w, w});
  for (const NeighborAttention* layer : {&layers.first, &layers.second}) {
    for (Parameter& parameter : named_parameters(*layer)) {
      ASSERT_TRUE(parameter.variable.grad().defined()) << parameter.name;
      const Tensor direction = random_normal(parameter.variable.shape(), {.seed = 9});
      double want = 0;
      for (int64_t i = 0; i < direction.numel(); ++i) {
        want += element(parameter.variable.grad(), i) * element(direction, i);
      }
      constexpr float kStep = 0x1p-8f;
      add_inplace(parameter.variable.mutable_data(), direction, kStep);
      const double above = loss();
      add_inplace(parameter.variable.mutable_data(), direction, -2 * kStep);
      const double below = loss();
      add_inplace(parameter.variable.mutable_data(), direction, kStep);
      EXPECT_NEAR((above - below) / (2 * kStep), want, 1e-2 * std::abs(want) + 5e-3)
          << parameter.name;
    }
  }
}

// Every dropout: the second of two samples is masked as it is alone.
TEST(NeighborAttentionTest, DropoutDependsOnTheSampleAlone) {
  TransformerConfig config = neighbor_layers_config(2);
  config.hidden_dropout = config.attention_dropout = 0.3;
  config.retro.encoder_hidden_dropout = config.retro.encoder_attention_dropout = 0.3;
  const Layers layers(config);
  constexpr int64_t kTokens = 10;
  constexpr int64_t kColumns = 3 * 2;  // neighbours of a sample
  const Tensor x = random_normal({kTokens, 2, kNeighborHidden}, {.seed = 1});
  const Tensor neighbors =
      random_normal({kNeighborLength, 2 * kColumns, kNeighborHidden}, {.seed = 3});
  const auto second_half = [](const Tensor& both) {
    const int64_t columns = both.size(1) / 2;
    Tensor half({both.size(0), columns, kNeighborHidden}, DType::kFloat32, Stream{});
    for (int64_t i = 0; i < half.numel(); ++i) {
      const int64_t row = i / kNeighborHidden / columns;
      const int64_t column = columns + i / kNeighborHidden % columns;
      half.span<float>()[static_cast<size_t>(i)] = static_cast<float>(
          element(both, (row * both.size(1) + column) * kNeighborHidden + i % kNeighborHidden));
    }
    return half;
  };
  const std::vector<Variable> both =
      layers.forward(Variable(x), Variable(x), Variable(neighbors), 5);
  const Variable alone(second_half(x));
  const Variable its_neighbors(second_half(neighbors));
  const std::vector<Variable> one = layers.forward(alone, alone, its_neighbors, 6);
  const std::vector<Variable> other = layers.forward(alone, alone, its_neighbors, 7);
  for (size_t i = 0; i < 2; ++i) {
    expect_close(one[i].data(), second_half(both[i].data()), Tolerance{1e-5, 1e-5});
    EXPECT_NE(element(one[i].data(), kTokens * kNeighborHidden - 1),
              element(other[i].data(), kTokens * kNeighborHidden - 1));
  }
}

}  // namespace
}  // namespace megatron
