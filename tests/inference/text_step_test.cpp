#include "megatron/inference/text_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "megatron/device/stream.h"
#include "megatron/kernels/paged_attention.h"
#include "megatron/parallel/tensor/rounded_linear.h"
#include "megatron/transformer/init.h"
#include "tests/support/device_under_test.h"

namespace megatron {
namespace {

constexpr int64_t kPageTokens = 16;
constexpr int64_t kPages = 64;

struct Variant {
  const char* name;
  TransformerConfig config;
};
void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

TransformerConfig config_of(int64_t layers, int64_t hidden, int64_t heads, int64_t vocabulary) {
  TransformerConfig config;
  config.num_layers = layers;
  config.hidden_size = hidden;
  config.num_attention_heads = heads;
  config.seq_length = config.max_position_embeddings = kPages * kPageTokens;
  config.padded_vocab_size = vocabulary;
  config.init_method_std = 0.1;
  config.hidden_dropout = config.attention_dropout = 0;
  config.params_dtype = DType::kBFloat16;
  return config;
}

std::vector<Variant> variants() {
  std::vector<Variant> all;
  all.push_back({"gpt2", config_of(3, 256, 4, 1003)});
  all.push_back({"gpt2_1558m", config_of(2, 1600, 25, 2048)});
  TransformerConfig large = config_of(1, 2048, 32, 512);  // slots of 1024 columns
  large.normalization = Normalization::kRmsNorm;
  all.push_back({"large", large});
  TransformerConfig llama = config_of(3, 512, 8, 640);
  llama.ffn_hidden_size = 1408;
  llama.group_query_attention = true;
  llama.num_query_groups = 2;
  llama.activation = Activation::kSwiglu;
  llama.normalization = Normalization::kRmsNorm;
  llama.add_bias_linear = false;
  llama.untie_embeddings_and_output_weights = true;
  llama.position_embedding_type = PositionEmbedding::kRope;
  all.push_back({"llama", llama});
  TransformerConfig wide = llama;  // heads of 128 channels
  wide.num_attention_heads = 4;
  wide.params_dtype = DType::kFloat16;
  wide.rotary_interleaved = true;
  wide.rotary_percent = 0.5;
  wide.apply_layernorm_1p = true;
  wide.activation = Activation::kGegluTanh;
  wide.add_qkv_bias = true;
  all.push_back({"fp16_heads_of_128", wide});
  TransformerConfig qwen = llama;  // norms of queries and keys
  qwen.kv_channels = 128;
  qwen.qk_layernorm = true;
  all.push_back({"head_norms", qwen});
  TransformerConfig stable = config_of(2, 256, 4, 640);  // with biases
  stable.position_embedding_type = PositionEmbedding::kRope;
  stable.rotary_percent = 0.25;
  stable.qk_layernorm = stable.apply_layernorm_1p = true;
  all.push_back({"head_layer_norms", stable});
  TransformerConfig narrow = config_of(2, 64, 1, 100);  // fewer rows than multiprocessors
  narrow.position_embedding_type = PositionEmbedding::kNone;
  narrow.activation = Activation::kSquaredRelu;
  all.push_back({"narrow", narrow});
  return all;
}

std::vector<Variant> expert_variants() {
  std::vector<Variant> all;
  TransformerConfig config = config_of(3, 512, 8, 640);
  config.init_method_std = 0.05;  // a larger one amplifies roundings of the router's input
  config.group_query_attention = true;
  config.num_query_groups = 2;
  config.activation = Activation::kSwiglu;
  config.normalization = Normalization::kRmsNorm;
  config.add_bias_linear = false;
  config.untie_embeddings_and_output_weights = true;
  config.position_embedding_type = PositionEmbedding::kRope;
  config.num_experts = 8;
  config.moe_ffn_hidden_size = 256;
  config.moe_router_topk = 2;
  all.push_back({"two_of_8", config});
  TransformerConfig every = config;
  every.moe_router_topk = 8;
  every.moe_router_dtype = DType::kFloat32;
  all.push_back({"eight_of_8", every});
  TransformerConfig sigmoid = config;  // with norms of queries and keys
  sigmoid.hidden_size = 256;
  sigmoid.kv_channels = 128;
  sigmoid.qk_layernorm = true;
  sigmoid.params_dtype = DType::kFloat16;
  sigmoid.num_experts = 64;
  sigmoid.moe_ffn_hidden_size = 128;
  sigmoid.moe_router_topk = 8;
  sigmoid.moe_router_score_function = RouterScore::kSigmoid;
  sigmoid.moe_router_enable_expert_bias = true;
  sigmoid.moe_router_topk_scaling_factor = 2.5;
  all.push_back({"sigmoid_8_of_64", sigmoid});
  TransformerConfig one = config;
  one.num_experts = 16;
  one.moe_router_topk = 1;
  one.moe_router_pre_softmax = true;
  all.push_back({"one_of_16", one});
  TransformerConfig large = config;  // slots of 1024 columns
  large.num_layers = 2;
  large.hidden_size = 2048;
  large.num_attention_heads = large.num_query_groups = 16;
  large.num_experts = 16;
  large.moe_ffn_hidden_size = 1024;
  large.moe_router_topk = 8;
  large.moe_router_pre_softmax = true;
  all.push_back({"eight_of_16_large", large});
  return all;
}

class TextStepTest : public testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
    stream_ = stream_under_test();
    use_device(stream_.device);
    const TransformerConfig config = resolved(GetParam().config);
    auto model = std::make_unique<GptModel>(config, stream_);
    initialize(*model, 5);
    model_ = std::move(model);
  }

  // Keys and values of earlier tokens, the same for every call.
  KvCache filled_cache() const { return filled_cache(*model_); }
  KvCache filled_cache(const GptModel& model) const {
    const TransformerConfig& config = model.config();
    KvCache cache(config, whole_model(config.num_layers), 1, kPages, kPageTokens, stream_);
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < config.num_layers; ++i) {
      for (Tensor* const tensor : {&cache.layer(i).keys, &cache.layer(i).values}) {
        std::vector<float> values(static_cast<size_t>(tensor->numel()));
        for (float& value : values) value = normal(random);
        const Tensor rounded =
            cast(tensor_of(values, tensor->shape()), model_->config().params_dtype);
        copy_into(*tensor, cast(rounded, tensor->dtype()).to(stream_));
      }
    }
    return cache;
  }
  // The pages of the text, not in order.
  Tensor pages() const {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < kPages; ++i) ids.push_back(static_cast<int32_t>(i * 5 % kPages));
    return tensor_of(ids, {1, kPages}).to(stream_);
  }
  template <class T>
  Tensor one(T value) const {
    return tensor_of(std::vector<T>{value}, {1, 1}).to(stream_);
  }

  // By the kernels that serve any number of texts.
  Tensor expected(KvCache& cache, int64_t id, int64_t length) const {
    return expected(*model_, cache, id, length);
  }
  Tensor expected(const GptModel& model, KvCache& cache, int64_t id, int64_t length) const {
    PagedBatch batch;
    batch.pages = pages();
    batch.lengths = one(static_cast<int32_t>(length)).reshape({1});
    batch.queries = one(0).reshape({1});
    batch.max_length = length;
    const TransformerConfig& config = model.config();
    const int64_t bytes = kernels::paged_attention_workspace_bytes(
        1, config.num_attention_heads, config.kv_channels, length, stream_);
    if (bytes > 0) batch.workspace = zeros({bytes}, DType::kUInt8, stream_);
    CachedBatch cached{cache, batch};
    const Variable hidden = run_stages(
        {model},
        {.tokens = RowIds(one(id), Tensor()), .position_ids = RowIds(one(length - 1), Tensor())},
        &cached);
    return on_host(model.logits(hidden).data());
  }

  Stream stream_;
  std::unique_ptr<const GptModel> model_;
};

double relative_error(const Tensor& actual, const Tensor& expected) {
  double difference = 0, size = 0;
  const auto x = actual.span<float>(), y = expected.span<float>();
  for (size_t i = 0; i < y.size(); ++i) {
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    size += y[i] * y[i];
  }
  return std::sqrt(difference / size);
}

TEST_P(TextStepTest, HasTheLogitsOfTheOtherKernels) {
  const NoGrad no_grad;
  KvCache cache = filled_cache();
  KvCache other = filled_cache();
  if (!TextStep::takes({*model_}, cache))
    GTEST_SKIP() << "no GPU of compute capability 9.0: not run";
  TextStep step({*model_}, cache);
  const double bound = model_->config().params_dtype == DType::kFloat16 ? 4e-3 : 2e-2;
  int64_t id = 3;
  for (const int64_t length : {1, 2, 17, 129, 300, 513, 1000, 1001}) {
    SCOPED_TRACE(length);
    id = (id * 7 + 1) % 97;
    const auto run = [&] {
      return on_host(step.logits(one(id), one(length - 1), pages(),
                                 one(static_cast<int32_t>(length)).reshape({1}), length));
    };
    const Tensor first = run();
    EXPECT_LT(relative_error(first, expected(other, id, length)), bound);
    const Tensor again = run();
    EXPECT_EQ(relative_error(again, first), 0);
  }
  // The step has written the new keys and values to their pages.
  for (int64_t i = 0; i < model_->config().num_layers; ++i) {
    const auto compare = [&](const Tensor& x, const Tensor& y) {
      const auto floats = [](const Tensor& t) { return cast(t, DType::kFloat32).to(Stream{}); };
      EXPECT_LT(relative_error(floats(x), floats(y)), bound) << i;
    };
    compare(cache.layer(i).keys, other.layer(i).keys);
    compare(cache.layer(i).values, other.layer(i).values);
  }
}

// With weights in FP8 the kernels that serve any number of texts take the text. Roundings change
// its logits, on the CPU by 0.05 to 0.26; those of other weights would differ by 1.4.
TEST_P(TextStepTest, LeavesWeightsIn8BitsToTheOtherKernels) {
  const NoGrad no_grad;
  KvCache cache = filled_cache();
  if (!TextStep::takes({*model_}, cache))
    GTEST_SKIP() << "no GPU of compute capability 9.0: not run";
  const Tensor exact = expected(cache, 3, 129);
  round_weights(*model_, InferenceWeights::kFp8, stream_);
  KvCache other = filled_cache();
  EXPECT_FALSE(TextStep::takes({*model_}, other));
  const double error = relative_error(expected(other, 3, 129), exact);
  EXPECT_GT(error, 1e-3);
  EXPECT_LT(error, 0.5);
}

class TextStepExpertsTest : public TextStepTest {
 protected:
  void SetUp() override {
    TextStepTest::SetUp();
    if (IsSkipped()) return;
    TransformerConfig config = model_->config();
    config.params_dtype = DType::kFloat32;
    auto exact = std::make_unique<GptModel>(config, stream_);
    const std::vector<Parameter> from = named_tensors(*model_), to = named_tensors(*exact);
    for (size_t i = 0; i < from.size(); ++i) {
      Tensor tensor = to[i].variable.data();
      copy_into(tensor, cast(std::as_const(from[i].variable).data(), tensor.dtype()));
    }
    exact_ = std::move(exact);
  }
  std::unique_ptr<const GptModel> exact_;  // the same weights in fp32
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Both round, and of experts whose logits differ by less, either may choose another than fp32 does.
TEST_P(TextStepExpertsTest, IsAsCloseToFp32AsTheOtherKernels) {
  const NoGrad no_grad;
  KvCache cache = filled_cache(*model_), other = filled_cache(*model_);
  KvCache exact = filled_cache(*exact_);
  if (!TextStep::takes({*model_}, cache))
    GTEST_SKIP() << "no GPU of compute capability 9.0: not run";
  TextStep step({*model_}, cache);
  std::vector<double> errors, errors_of_others;
  for (int64_t i = 0; i < 16; ++i) {
    const int64_t length = 1 + i * i * 4 + i, id = i * 5 % 97;
    SCOPED_TRACE(length);
    const auto run = [&] {
      return on_host(step.logits(one(id), one(length - 1), pages(),
                                 one(static_cast<int32_t>(length)).reshape({1}), length));
    };
    const Tensor first = run();
    EXPECT_EQ(relative_error(run(), first), 0);
    const Tensor wanted = expected(*exact_, exact, id, length);
    errors.push_back(relative_error(first, wanted));
    errors_of_others.push_back(relative_error(expected(*model_, other, id, length), wanted));
  }
  EXPECT_LT(median(errors), 1.5 * median(errors_of_others));
  EXPECT_LT(median(errors), model_->config().params_dtype == DType::kFloat16 ? 0.01 : 0.05);
}

TEST(TextStepOtherExpertsTest, LeavesSharedExpertsToTheOtherKernels) {
  if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
  const Stream stream = stream_under_test();
  use_device(stream.device);
  TransformerConfig config = expert_variants().front().config;
  config.moe_shared_expert_intermediate_size = 256;
  config = resolved(config);
  const GptModel model(config, stream);
  const KvCache cache(config, whole_model(config.num_layers), 1, kPages, kPageTokens, stream);
  EXPECT_FALSE(TextStep::takes({model}, cache));
}

INSTANTIATE_TEST_SUITE_P(Models, TextStepTest, testing::ValuesIn(variants()),
                         [](const auto& param) { return std::string(param.param.name); });
INSTANTIATE_TEST_SUITE_P(Models, TextStepExpertsTest, testing::ValuesIn(expert_variants()),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace megatron
