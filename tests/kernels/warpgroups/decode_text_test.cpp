#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "megatron/kernels/cuda/decode_text_kernel.cuh"
#include "megatron/tensor/tensor.h"
#include "tests/kernels/warpgroups/gpu.h"

// The kernel decode_text, run by gpu.h, against the same layers one number after the other.
namespace megatron::kernels::cuda::text {
namespace {

constexpr int64_t kPageTokens = 16;
constexpr int64_t kPages = 60;

struct DecodeTextCase {
  const char* name;
  DecodeTextShape shape;
  int64_t blocks = 3;
  bool has_biases = true;
  int64_t rotary_dim = 0;
  RotaryPairs pairs = RotaryPairs::kHalves;
  std::vector<int32_t> lengths{1, 17, 650};
  bool has_head_norms = false;
  bool has_expert_bias = false;
};

void PrintTo(const DecodeTextCase& c, std::ostream* out) { *out << c.name; }

// 16-bit elements of a type, at multiples of 16 bytes.
template <class T>
class Numbers16 {
 public:
  Numbers16() = default;
  Numbers16(int64_t n, float middle, float deviation, std::mt19937& random)
      : pieces_(static_cast<size_t>((n + 7) / 8)) {
    std::normal_distribution<float> normal(middle, deviation);
    for (int64_t i = 0; i < n; ++i) data()[i] = T(normal(random));
  }
  size_t size() const { return pieces_.size(); }
  T* data() { return reinterpret_cast<T*>(pieces_.data()); }
  float operator[](int64_t i) const {
    return static_cast<float>(reinterpret_cast<const T*>(pieces_.data())[i]);
  }

 private:
  struct alignas(16) Piece {
    uint16_t elements[8] = {};
  };
  std::vector<Piece> pieces_;
};

using Floats = std::vector<float>;

template <class T>
float rounded_to(float x) {
  return static_cast<float>(T(x));
}

// The parameters of a case, its keys and values, and what they compute.
template <class T>
struct Network {
  struct Layer {
    Numbers16<T> g1, b1, qkv, qkv_bias, proj, proj_bias, g2, b2, fc1, fc1_bias, fc2, fc2_bias;
    Numbers16<T> keys, values, q_norm, q_norm_bias, k_norm, k_norm_bias;
    Numbers16<T> router = {};
    Floats expert_bias = {};
  };
  const DecodeTextCase& c;
  const DecodeTextShape& s;
  std::mt19937 random{11};
  std::vector<Layer> layers;
  Numbers16<T> g, b, head, x;
  std::vector<float> table;
  std::vector<int32_t> pages;

  explicit Network(const DecodeTextCase& own) : c(own), s(own.shape) {
    const auto weight = [&](int64_t rows, int64_t k) {
      return Numbers16<T>(rows * k, 0, 1 / std::sqrt(static_cast<float>(k)), random);
    };
    const auto vector = [&](int64_t n, float middle) {
      return Numbers16<T>(n, middle, 0.1f, random);
    };
    const float one = s.one_plus_weight ? 0.0f : 1.0f;
    const int64_t rows = (s.heads + 2 * s.groups) * s.d;
    const int64_t matrices = std::max<int64_t>(s.experts, 1);
    const int64_t up = s.ffn * (is_gated(s.activation) ? 2 : 1) * matrices;
    const int64_t cached = kPages * kPageTokens * s.groups * s.d;
    for (int64_t i = 0; i < s.layers; ++i) {
      layers.push_back({vector(s.hidden, one), vector(s.hidden, 0), weight(rows, s.hidden),
                        vector(rows, 0), weight(s.hidden, s.heads * s.d), vector(s.hidden, 0),
                        vector(s.hidden, one), vector(s.hidden, 0), weight(up, s.hidden),
                        vector(up, 0), weight(s.hidden * matrices, s.ffn), vector(s.hidden, 0),
                        Numbers16<T>(cached, 0, 1, random), Numbers16<T>(cached, 0, 1, random),
                        vector(s.d, one), vector(s.d, 0), vector(s.d, one), vector(s.d, 0)});
      layers.back().router = weight(s.experts, s.hidden);
      for (int64_t e = 0; e < s.experts; ++e) {
        layers.back().expert_bias.push_back(0.02f * static_cast<float>(e * 7 % 5));
      }
    }
    g = vector(s.hidden, one);
    b = vector(s.hidden, 0);
    head = weight(s.vocabulary, s.hidden);
    x = Numbers16<T>(s.hidden, 0.5f, 1, random);
    for (int64_t position = 0; position < kPages * kPageTokens; ++position) {
      for (int64_t i = 0; i < c.rotary_dim; ++i) {
        const auto angle = static_cast<float>(position) *
                           std::pow(0.1f, static_cast<float>(i % (c.rotary_dim / 2)));
        table.push_back(i < c.rotary_dim / 2 ? std::cos(angle) : std::sin(angle));
      }
    }
    for (int64_t i = 0; i < kPages; ++i) pages.push_back(static_cast<int32_t>(i * 7 % kPages));
  }

  Floats norm(const Floats& y, const Numbers16<T>& weight, const Numbers16<T>& bias) const {
    double mean = 0, squares = 0;
    const auto n = static_cast<double>(y.size());
    if (!s.is_rms_norm) {
      for (const float v : y) mean += v / n;
    }
    for (const float v : y) squares += (v - mean) * (v - mean) / n;
    Floats z(y.size());
    for (size_t i = 0; i < y.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      const float w = weight[at] + (s.one_plus_weight ? 1.0f : 0.0f);
      z[i] = rounded_to<T>(static_cast<float>((y[i] - mean) / std::sqrt(squares + s.epsilon)) * w +
                           (c.has_biases ? bias[at] : 0.0f));
    }
    return z;
  }
  Floats product(const Numbers16<T>& weight, int64_t rows, const Floats& y,
                 int64_t first = 0) const {
    Floats z;
    const auto k = static_cast<int64_t>(y.size());
    for (int64_t row = first; row < first + rows; ++row) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += weight[row * k + i] * y[static_cast<size_t>(i)];
      z.push_back(static_cast<float>(sum));
    }
    return z;
  }
  float bias_of(const Numbers16<T>& bias, int64_t i) const { return c.has_biases ? bias[i] : 0; }

  int64_t place(int64_t token, int64_t group) const {
    const int64_t page = pages[static_cast<size_t>(token / kPageTokens)];
    return ((page * kPageTokens + token % kPageTokens) * s.groups + group) * s.d;
  }
  void normalize(float* channels, const Numbers16<T>& weight, const Numbers16<T>& bias) const {
    if (!c.has_head_norms) return;
    const Floats normed = norm(Floats(channels, channels + s.d), weight, bias);
    std::copy(normed.begin(), normed.end(), channels);
  }
  void rotate(float* channels, int64_t position) const {
    const int64_t half = c.rotary_dim / 2;
    for (int64_t i = 0; i < half; ++i) {
      float& x1 = channels[c.pairs == RotaryPairs::kHalves ? i : 2 * i];
      float& x2 = channels[c.pairs == RotaryPairs::kHalves ? i + half : 2 * i + 1];
      const float cosine = table[static_cast<size_t>(position * c.rotary_dim + i)];
      const float sine = table[static_cast<size_t>(position * c.rotary_dim + half + i)];
      const float y1 = rounded_to<T>(x1 * cosine - x2 * sine);
      x2 = rounded_to<T>(x2 * cosine + x1 * sine);
      x1 = y1;
    }
  }
  // Also puts the last token's key and value into their page.
  Floats attention(Layer& layer, Floats qkv, int64_t length) const {
    Floats out;
    const int64_t per_group = s.heads / s.groups;
    for (int64_t group = 0; group < s.groups; ++group) {
      float* const first = &qkv[static_cast<size_t>(group * (per_group + 2) * s.d)];
      float* const key = first + per_group * s.d;
      for (float* q = first; q < key; q += s.d) normalize(q, layer.q_norm, layer.q_norm_bias);
      normalize(key, layer.k_norm, layer.k_norm_bias);
      for (float* q = first; q <= key; q += s.d) rotate(q, length - 1);
      for (int64_t i = 0; i < s.d; ++i) {
        layer.keys.data()[place(length - 1, group) + i] = T(key[i]);
        layer.values.data()[place(length - 1, group) + i] = T(key[s.d + i]);
      }
      for (const float* q = first; q < key; q += s.d) {
        std::vector<double> weights;
        double total = 0;
        for (int64_t token = 0; token < length; ++token) {
          double score = 0;
          for (int64_t i = 0; i < s.d; ++i) score += q[i] * layer.keys[place(token, group) + i];
          weights.push_back(std::exp(score * s.scale));
          total += weights.back();
        }
        for (int64_t i = 0; i < s.d; ++i) {
          double sum = 0;
          for (int64_t token = 0; token < length; ++token) {
            sum += weights[static_cast<size_t>(token)] * layer.values[place(token, group) + i];
          }
          out.push_back(rounded_to<T>(static_cast<float>(sum / total)));
        }
      }
    }
    return out;
  }
  void add(Floats& y, const Floats& more, const Numbers16<T>& bias) const {
    for (size_t i = 0; i < y.size(); ++i) {
      const float own = bias.size() == 0 ? 0 : bias_of(bias, static_cast<int64_t>(i));
      y[i] = rounded_to<T>(y[i] + more[i] + own);
    }
  }
  // The outputs of an MLP, without fc2's bias, by fc1 and fc2 of expert `e`.
  Floats mlp(const Layer& layer, const Floats& y, int64_t e, float of_input,
             float of_output) const {
    const bool gated = is_gated(s.activation);
    const int64_t rows = s.ffn * (gated ? 2 : 1);
    const Floats up = product(layer.fc1, rows, y, e * rows);
    Floats middle;
    for (int64_t i = 0; i < s.ffn; ++i) {
      const auto with_bias = [&](int64_t row) {
        const float sum = rounded_to<T>(up[static_cast<size_t>(row)] * of_input);
        return s.experts > 0 ? sum : sum + bias_of(layer.fc1_bias, row);
      };
      const float x2 = gated ? with_bias(s.ffn + i) : 0.0f;
      middle.push_back(rounded_to<T>(activated(s.activation, with_bias(i), x2) * of_output));
    }
    return product(layer.fc2, s.hidden, middle, e * s.hidden);
  }
  Floats experts(const Layer& layer, const Floats& y) const {
    Tensor logits({1, s.experts}, DType::kFloat32, Stream{});
    const Floats sums = product(layer.router, s.experts, y);
    for (size_t e = 0; e < sums.size(); ++e) {
      logits.span<float>()[e] = s.rounds_router ? rounded_to<T>(sums[e]) : sums[e];
    }
    Tensor ids({1, s.topk}, DType::kInt32, Stream{}),
        weights({1, s.topk}, DType::kFloat32, Stream{});
    const ConstView bias{layer.expert_bias.data(), {s.experts}, DType::kFloat32};
    kernels::route_tokens(ids.view(), weights.view(), logits.view(),
                          c.has_expert_bias ? bias : ConstView{}, s.router, Stream{});
    Floats all(static_cast<size_t>(s.hidden));
    for (size_t j = 0; j < static_cast<size_t>(s.topk); ++j) {
      float weight = weights.span<float>()[j];
      if (s.rounds_router) weight = rounded_to<T>(weight);
      const Floats one = mlp(layer, y, ids.span<int32_t>()[j], s.weighs_input ? weight : 1,
                             s.weighs_input ? 1 : weight);
      for (size_t i = 0; i < all.size(); ++i) all[i] += one[i];
    }
    return all;
  }
  Floats logits(int64_t length) {
    Floats y;
    for (int64_t i = 0; i < s.hidden; ++i) y.push_back(x[i]);
    for (Layer& layer : layers) {
      const int64_t rows = (s.heads + 2 * s.groups) * s.d;
      Floats qkv = product(layer.qkv, rows, norm(y, layer.g1, layer.b1));
      for (int64_t i = 0; i < rows; ++i) {
        float& v = qkv[static_cast<size_t>(i)];
        v = rounded_to<T>(v + bias_of(layer.qkv_bias, i));
      }
      add(y, product(layer.proj, s.hidden, attention(layer, qkv, length)), layer.proj_bias);
      const Floats z = norm(y, layer.g2, layer.b2);
      if (s.experts > 0) {
        add(y, experts(layer, z), {});
      } else {
        add(y, mlp(layer, z, 0, 1, 1), layer.fc2_bias);
      }
    }
    return product(head, s.vocabulary, norm(y, g, b));
  }
};

template <class T>
class OnDevice {
 public:
  explicit OnDevice(Network<T>& network)
      : n_(network),
        division_(division_of(network.s, network.c.blocks, 200 * 1024)),
        logits_(static_cast<size_t>(network.s.vocabulary)) {
    const auto optional = [&](Numbers16<T>& bias) -> const void* {
      return n_.c.has_biases ? bias.data() : nullptr;
    };
    const auto of_heads = [&](const void* parameters) {
      return n_.c.has_head_norms ? parameters : nullptr;
    };
    const auto of_dense = [&](const void* bias) { return n_.s.experts > 0 ? nullptr : bias; };
    for (auto& l : n_.layers) {
      layers_.push_back({l.g1.data(),
                         optional(l.b1),
                         l.qkv.data(),
                         optional(l.qkv_bias),
                         of_heads(l.q_norm.data()),
                         of_heads(optional(l.q_norm_bias)),
                         of_heads(l.k_norm.data()),
                         of_heads(optional(l.k_norm_bias)),
                         l.proj.data(),
                         optional(l.proj_bias),
                         l.g2.data(),
                         optional(l.b2),
                         l.router.data(),
                         n_.c.has_expert_bias ? l.expert_bias.data() : nullptr,
                         l.fc1.data(),
                         of_dense(optional(l.fc1_bias)),
                         l.fc2.data(),
                         of_dense(optional(l.fc2_bias)),
                         l.keys.data(),
                         l.values.data()});
    }
    text_ = {.shape = n_.s,
             .layers = {layers_.data(), {}, DType::kUInt8},
             .final_norm_weight = n_.g.data(),
             .final_norm_bias = optional(n_.b),
             .head_weight = n_.head.data(),
             .rotary_pairs = n_.c.pairs};
    if (n_.c.rotary_dim > 0) {
      text_.rotary_table = {
          n_.table.data(), {kPages * kPageTokens, n_.c.rotary_dim}, DType::kFloat32};
    }
    const auto most_splits = static_cast<int>(kMostBlocks / n_.s.heads);
    workspace_.resize(static_cast<size_t>(workspace_offsets(n_.s, most_splits).end / 4 + 1));
  }
  const Division& division() const { return division_; }

  Floats logits(int32_t length, const gpu::Timing& timing) {
    const DType dtype = n_.s.dtype;
    const Parameters p =
        parameters_of({logits_.data(), {}, dtype}, {n_.x.data(), {}, dtype}, text_,
                      {n_.pages.data(), {}, DType::kInt32}, {&length, {}, DType::kInt32}, length,
                      {workspace_.data(), {}, DType::kUInt8}, division_);
    const Kernel kernel = kernel_of(n_.s, division_.columns);
    const auto blocks = static_cast<int>(division_.blocks);
    EXPECT_TRUE(gpu::run(
        blocks, kBlockThreads, static_cast<int>(division_.bytes), timing, [&] { kernel(p); },
        blocks));
    return {logits_.begin(), logits_.end()};
  }

 private:
  struct alignas(16) Piece {
    uint32_t words[4] = {};
  };
  Network<T>& n_;
  Division division_;
  DecodeText text_;
  std::vector<DecodeTextLayer> layers_;
  std::vector<Piece> workspace_;
  std::vector<T> logits_;
};

double relative_error(const Floats& x, const Floats& y) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    size += y[i] * y[i];
  }
  return std::sqrt(difference / size);
}

std::vector<DecodeTextCase> cases() {
  DecodeTextShape gpt{.layers = 2,
                      .hidden = 128,
                      .ffn = 192,
                      .heads = 2,
                      .groups = 2,
                      .d = 64,
                      .vocabulary = 501,
                      .scale = 0.125f,
                      .page_tokens = kPageTokens};
  DecodeTextShape llama{.dtype = DType::kFloat16,
                        .layers = 2,
                        .hidden = 256,
                        .ffn = 320,
                        .heads = 2,
                        .groups = 1,
                        .d = 128,
                        .vocabulary = 90,
                        .activation = Activation::kSwiglu,
                        .is_rms_norm = true,
                        .one_plus_weight = true,
                        .scale = 0.09f,
                        .page_tokens = kPageTokens};
  DecodeTextShape few = gpt;  // slots of 384 columns
  few.layers = 1;
  few.hidden = few.ffn = 768;
  few.heads = 6;
  few.groups = 1;
  few.d = 128;
  DecodeTextShape pieces = few;  // three slots of each group for a row
  pieces.hidden = 2304;
  DecodeTextShape many = llama;  // slots of 1024 columns
  many.dtype = DType::kBFloat16;
  many.layers = 1;
  many.hidden = many.ffn = 2048;
  many.heads = 16;
  many.groups = 4;
  DecodeTextShape experts = llama;
  experts.ffn = 64;
  experts.experts = 8;
  experts.topk = 2;
  experts.rounds_router = true;
  DecodeTextShape sigmoid = gpt;  // choices from groups; five blocks for eight rows of experts
  sigmoid.experts = 40;
  sigmoid.topk = 4;
  sigmoid.router = {.score = RouterScore::kSigmoid,
                    .num_groups = 8,
                    .group_topk = 2,
                    .group_score_topk = 2,
                    .scaling_factor = 2.5f};
  sigmoid.weighs_input = true;
  DecodeTextShape one = llama;  // of few experts: blocks without rows of the router
  one.experts = 3;
  one.topk = 1;
  one.router.pre_softmax = true;
  DecodeTextShape three = many;  // an odd number of them, slots of 512 columns
  three.hidden = 1024;
  three.heads = 8;
  three.ffn = 512;
  three.experts = 70;
  three.topk = 3;
  DecodeTextShape eight = gpt;
  eight.dtype = DType::kFloat16;
  eight.layers = 3;
  eight.activation = Activation::kSwiglu;
  eight.experts = 200;
  eight.topk = 8;
  eight.router.score = RouterScore::kSqrtSoftplus;
  return {{"gpt", gpt, 3},
          {"experts", experts, 5, false, 128},
          {"experts_head_norms", experts, 6, false, 128, RotaryPairs::kHalves, {17, 650}, true},
          {"experts_of_groups", sigmoid, 5, true, 0, RotaryPairs::kHalves, {1, 17}, false, true},
          {"one_expert", one, 7, false, 128, RotaryPairs::kHalves, {1, 17, 650}},
          {"three_experts", three, 9, false, 64, RotaryPairs::kHalves, {17}, false, true},
          {"eight_experts", eight, 3, true, 0, RotaryPairs::kHalves, {17, 18}},
          {"two_blocks", gpt, 2},
          {"llama", llama, 4, false, 128},
          {"half_rotary", gpt, 5, true, 32, RotaryPairs::kInterleaved},
          {"few", few, 6},
          {"pieces", pieces, 6, true, 0, RotaryPairs::kHalves, {17}},
          {"many", many, 16, false, 64, RotaryPairs::kHalves, {650}},
          {"gpt_head_norms", gpt, 3, true, 32, RotaryPairs::kInterleaved, {1, 17, 650}, true},
          {"llama_head_norms", llama, 4, false, 128, RotaryPairs::kHalves, {1, 17, 650}, true}};
}

template <class T>
void expect_logits(const DecodeTextCase& c) {
  Network<T> network(c), other(c);
  OnDevice<T> device(network);
  ASSERT_GT(device.division().blocks, 0);
  const double bound = c.shape.dtype == DType::kFloat16 ? 1e-3 : 8e-3;
  gpu::Timing timing{.has_slow_warp = false};
  for (const int32_t length : c.lengths) {
    SCOPED_TRACE(length);
    const Floats expected = other.logits(length);
    ++timing.seed;
    const Floats first = device.logits(length, timing);
    EXPECT_LT(relative_error(first, expected), bound);
    // In another order, the same bits.
    ++timing.seed;
    timing.has_late_copies = !timing.has_late_copies;
    EXPECT_EQ(device.logits(length, timing), first);
    if (testing::Test::HasFailure()) return;
  }
  for (size_t i = 0; i < network.layers.size(); ++i) {
    for (int64_t at = 0; at < kPages * kPageTokens * c.shape.groups * c.shape.d; ++at) {
      ASSERT_NEAR(network.layers[i].keys[at], other.layers[i].keys[at], 0.1) << at;
      ASSERT_NEAR(network.layers[i].values[at], other.layers[i].values[at], 0.1) << at;
    }
  }
}

class DecodeTextKernelTest : public testing::TestWithParam<DecodeTextCase> {};

TEST_P(DecodeTextKernelTest, HasTheLogitsOfPlainLoops) {
  if (GetParam().shape.dtype == DType::kBFloat16) {
    expect_logits<BFloat16>(GetParam());
  } else {
    expect_logits<Float16>(GetParam());
  }
}

TEST(DecodeTextKernelNumbersTest, PassesOnWhatIsNoNumber) {
  const DecodeTextCase c = cases()[0];
  Network<BFloat16> network(c);
  network.x.data()[5] = std::numeric_limits<float>::quiet_NaN();
  OnDevice<BFloat16> device(network);
  for (const float logit : device.logits(17, {})) ASSERT_TRUE(std::isnan(logit));
}

INSTANTIATE_TEST_SUITE_P(Shapes, DecodeTextKernelTest, testing::ValuesIn(cases()),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace megatron::kernels::cuda::text
