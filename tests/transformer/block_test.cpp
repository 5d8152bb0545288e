#include "megatron/transformer/transformer_block.h"

#include <set>
#include <string>

#include "megatron/comm/threads.h"
#include "tests/parallel/shards.h"
#include "tests/transformer/tiny_stack.h"

namespace megatron {
namespace {

constexpr StackSlice kWhole = {.first_layer = 0, .num_layers = 2};
constexpr StackSlice kThree = {.first_layer = 0, .num_layers = 3};
constexpr Tolerance kClose = {1e-5, 1e-5};

struct Variant {
  const char* name;
  Stack stack;
  void (*change)(TransformerConfig& config) = [](TransformerConfig&) {};
  bool has_padding = false;
  bool has_relative_bias = false;
};
void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

void with_dropout(TransformerConfig& c) { c.hidden_dropout = c.attention_dropout = 0.3; }

void share_groups(TransformerConfig& c, int64_t groups) {
  c.group_query_attention = true;
  c.num_query_groups = groups;
  c.qk_layernorm = groups == 2;
  with_dropout(c);
}

const Variant kVariants[] = {
    {"decoder", kDecoder, with_dropout},
    {"encoder_with_padding", kEncoder, with_dropout, true},
    {"relative_bias", kEncoder, with_dropout, true, true},
    {"cross_attention", kCrossDecoder, with_dropout, true},
    {"qk_layernorm", kDecoder,
     [](TransformerConfig& c) {
       with_dropout(c);
       c.qk_layernorm = true;
     }},
    {"qk_rms_norm", kDecoder,
     [](TransformerConfig& c) {
       c.qk_layernorm = true;
       c.normalization = Normalization::kRmsNorm;
       c.activation = Activation::kSwigluSecond;
     }},
    {"multi_query", kDecoder, [](TransformerConfig& c) { share_groups(c, 1); }},
    {"two_groups", kDecoder, [](TransformerConfig& c) { share_groups(c, 2); }},
};

TransformerConfig config_of(const Variant& variant) {
  TransformerConfig c = tiny_config();
  c.group_query_attention = true;
  variant.change(c);
  return c;
}

// What a rank has of the inputs, and what it computed.
struct Pass {
  Variable x, encoder_output, relative_bias, y;

  Pass(const Variant& variant, const TransformerBlock& block, const TensorParallel& tp,
       int64_t hidden_size) {
    x = Variable::leaf(own_slice(random_hidden(kLength, hidden_size, 1), tp));
    RandomState random(7);
    ForwardContext context;
    context.random = &random;
    if (variant.has_padding) {
      context.sequence.key_padding_mask = padding_mask({kLength, 7}, kLength);
    }
    if (variant.stack.has_cross_attention) {
      encoder_output = Variable::leaf(own_slice(random_hidden(kEncoderLength, hidden_size, 2), tp));
      context.encoder.output = encoder_output;
      context.encoder.padding_mask = padding_mask({5, kEncoderLength}, kEncoderLength);
    }
    if (variant.has_relative_bias) {
      const int64_t heads = 4 / tp.size();
      const Tensor bias = random_normal({4, 2 * kLength - 1}, {.seed = 3});
      relative_bias = Variable::leaf(copied(bias.slice(heads * tp.rank(), heads)));
      context.sequence.relative_bias = relative_bias;
    }
    y = block.forward(x, context);
    backward(y, own_slice(random_hidden(kLength, hidden_size, 4), tp));
  }
};

struct Layout {
  int ranks;
  bool sequence_parallel;
};

class TransformerBlockTest : public testing::TestWithParam<std::tuple<Variant, Layout>> {};

TEST_P(TransformerBlockTest, RanksComputeWhatOneComputes) {
  const auto& [variant, layout] = GetParam();
  const TransformerConfig c = config_of(variant);
  const TransformerBlock whole(c, variant.stack, kWhole, {}, Stream{});
  initialize(whole, 5);
  const Pass want(variant, whole, {}, c.hidden_size);
  comm::run_ranks(layout.ranks, [&, &v = variant, &l = layout](const comm::Group& world) {
    const TensorParallel tp{.group = world, .sequence_parallel = l.sequence_parallel};
    const TransformerBlock block(c, v.stack, kWhole, tp, Stream{});
    initialize(block, 5);
    const Pass got(v, block, tp, c.hidden_size);
    expect_close(got.y.data(), own_slice(want.y.data(), tp), kClose, "y");
    expect_close(got.x.grad(), own_slice(want.x.grad(), tp), kClose, "dx");
    if (v.stack.has_cross_attention) {
      expect_close(got.encoder_output.grad(), own_slice(want.encoder_output.grad(), tp), kClose,
                   "gradient of the encoder's output");
    }
    if (v.has_relative_bias) {
      const int64_t heads = 4 / tp.size();
      expect_close(got.relative_bias.grad(),
                   copied(want.relative_bias.grad().slice(heads * tp.rank(), heads)), kClose,
                   "gradient of the relative bias");
    }
    expect_gradients(block, whole, tp);
  });
}

std::string name_of_case(const testing::TestParamInfo<std::tuple<Variant, Layout>>& one) {
  const auto& [variant, layout] = one.param;
  return std::string(variant.name) + "_tp" + std::to_string(layout.ranks) +
         (layout.sequence_parallel ? "_sp" : "");
}

INSTANTIATE_TEST_SUITE_P(Layouts, TransformerBlockTest,
                         testing::Combine(testing::ValuesIn(kVariants),
                                          testing::Values(Layout{1, false}, Layout{2, false},
                                                          Layout{2, true}, Layout{4, false},
                                                          Layout{4, true})),
                         name_of_case);

// Layers that are computed again are the same layers: the masks of dropout, the gradients of
// parameters, and those of the encoder's output and the bias, which all regions share.
class RecomputedBlockTest : public testing::TestWithParam<Variant> {};

TEST_P(RecomputedBlockTest, ComputesTheSame) {
  TransformerConfig c = config_of(GetParam());
  const TransformerBlock plain(c, GetParam().stack, kWhole, {}, Stream{});
  initialize(plain, 5);
  const Pass want(GetParam(), plain, {}, c.hidden_size);
  c.recompute_granularity = RecomputeGranularity::kFull;
  for (const RecomputeMethod method : {RecomputeMethod::kUniform, RecomputeMethod::kBlock}) {
    for (const int64_t num_layers : {1, 2}) {
      c.recompute_method = method;
      c.recompute_num_layers = num_layers;
      const TransformerBlock block(c, GetParam().stack, kWhole, {}, Stream{});
      initialize(block, 5);
      const Pass got(GetParam(), block, {}, c.hidden_size);
      expect_identical(got.y.data(), want.y.data());
      expect_close(got.x.grad(), want.x.grad(), kClose);
      if (want.encoder_output.defined()) {
        expect_close(got.encoder_output.grad(), want.encoder_output.grad(), kClose);
      }
      if (want.relative_bias.defined()) {
        expect_close(got.relative_bias.grad(), want.relative_bias.grad(), kClose);
      }
      expect_gradients(block, plain, {});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, RecomputedBlockTest, testing::ValuesIn(kVariants),
                         [](const auto& one) { return std::string(one.param.name); });

// The passes of two blocks have the same bits, and so have the gradients of their parameters.
void expect_same_bits(const Pass& got, const TransformerBlock& block, const Pass& want,
                      const TransformerBlock& plain) {
  expect_identical(got.y.data(), want.y.data());
  expect_identical(got.x.grad(), want.x.grad());
  if (want.encoder_output.defined()) {
    expect_identical(got.encoder_output.grad(), want.encoder_output.grad());
  }
  if (want.relative_bias.defined()) {
    expect_identical(got.relative_bias.grad(), want.relative_bias.grad());
  }
  const std::vector<Parameter> wanted = named_parameters(plain);
  const std::vector<Parameter> parameters = named_parameters(block);
  ASSERT_EQ(parameters.size(), wanted.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    expect_identical(parameters[i].variable.grad(), wanted[i].variable.grad(), parameters[i].name);
  }
}

TEST_P(RecomputedBlockTest, PartsChangeNoBit) {
  TransformerConfig c = config_of(GetParam());
  const TransformerBlock plain(c, GetParam().stack, kWhole, {}, Stream{});
  initialize(plain, 5);
  const Pass want(GetParam(), plain, {}, c.hidden_size);
  c.recompute_granularity = RecomputeGranularity::kSelective;
  for (const char* const of_mlp : {"activation", "mlp"}) {
    c.recompute_modules = {"layernorm", of_mlp};
    const TransformerBlock block(c, GetParam().stack, kWhole, {}, Stream{});
    initialize(block, 5);
    const Pass got(GetParam(), block, {}, c.hidden_size);
    expect_same_bits(got, block, want, plain);
  }
}

// Inputs that wait in host memory are the same inputs.
TEST_P(RecomputedBlockTest, InputsOnTheHostChangeNoBit) {
  TransformerConfig c = config_of(GetParam());
  c.recompute_granularity = RecomputeGranularity::kFull;
  c.recompute_method = RecomputeMethod::kUniform;
  c.recompute_num_layers = 1;
  const TransformerBlock on_device(c, GetParam().stack, kWhole, {}, Stream{});
  c.checkpoint_in_cpu = true;
  const TransformerBlock on_host(c, GetParam().stack, kWhole, {}, Stream{});
  EXPECT_EQ(on_device.host_store(), nullptr);
  for (const TransformerBlock* block : {&on_device, &on_host}) initialize(*block, 5);
  const Pass want(GetParam(), on_device, {}, c.hidden_size);
  const Pass got(GetParam(), on_host, {}, c.hidden_size);
  expect_identical(got.y.data(), want.y.data());
  expect_identical(got.x.grad(), want.x.grad());
  const std::vector<Parameter> parameters = named_parameters(on_host);
  for (size_t i = 0; i < parameters.size(); ++i) {
    expect_identical(parameters[i].variable.grad(), named_parameters(on_device)[i].variable.grad(),
                     parameters[i].name);
  }
  const MemoryStats stats = on_host.host_store()->stats();
  EXPECT_EQ(stats.allocated_bytes, 0);
  EXPECT_EQ(stats.peak_allocated_bytes, 2 * kLength * kBatch * c.hidden_size * 4);
}

// Activations that wait in host memory are the same activations, beside parts that are computed
// again, too.
TEST_P(RecomputedBlockTest, ActivationsOnTheHostChangeNoBit) {
  TransformerConfig c = config_of(GetParam());
  const TransformerBlock on_device(c, GetParam().stack, kThree, {}, Stream{});
  EXPECT_EQ(on_device.activation_store(), nullptr);
  initialize(on_device, 5);
  const Pass want(GetParam(), on_device, {}, c.hidden_size);
  c.min_offloaded_tensor_size = 0;
  for (const std::vector<std::string>& again :
       {std::vector<std::string>{}, {"layernorm", "activation"}, {"layernorm", "mlp"}}) {
    int64_t least_on_host = 0;
    for (const int64_t num_layers : {1, 2, 3}) {
      c.cpu_offloading_num_layers = num_layers;
      c.recompute_granularity =
          again.empty() ? RecomputeGranularity::kNone : RecomputeGranularity::kSelective;
      c.recompute_modules = again;
      const TransformerBlock on_host(c, GetParam().stack, kThree, {}, Stream{});
      initialize(on_host, 5);
      const Pass got(GetParam(), on_host, {}, c.hidden_size);
      expect_same_bits(got, on_host, want, on_device);
      const MemoryStats stats = on_host.activation_store()->stats();
      EXPECT_EQ(stats.allocated_bytes, 0);
      EXPECT_GT(stats.peak_allocated_bytes, least_on_host);
      least_on_host = stats.peak_allocated_bytes;
    }
  }
}

// The sites of the dropouts of stacks differ by name, and those of GPT are fixed: a resumed run
// must drop the same elements.
TEST(StackTest, LayersAreNamedAfterTheirStack) {
  EXPECT_EQ(kDecoder.place(3).name, "decoder.layers.3");
  EXPECT_EQ(kEncoder.place(0).name, "encoder.layers.0");
}

TEST(StackTest, EncoderAndDecoderDropOtherElements) {
  TransformerConfig c = tiny_config();
  c.attention_dropout = 0;
  c.hidden_dropout = 0.5;
  std::vector<Tensor> outputs;
  for (const char* name : {"encoder", "decoder", "decoder"}) {
    const Stack stack = {.name = name};
    const TransformerBlock block(c, stack, kWhole, {}, Stream{});
    initialize(block, 5);
    RandomState random(7);
    ForwardContext context;
    context.random = &random;
    outputs.push_back(block.forward(Variable(random_hidden(kLength, 32, 1)), context).data());
  }
  expect_identical(outputs[1], outputs[2]);
  int64_t equal = 0;
  for (int64_t i = 0; i < outputs[0].numel(); ++i) {
    equal += element(outputs[0], i) == element(outputs[1], i) ? 1 : 0;
  }
  EXPECT_LT(equal, outputs[0].numel() / 10);
}

TEST(StackTest, SlicesMakeTheWholeStack) {
  const TransformerConfig c = tiny_config();
  const TransformerBlock whole(c, kEncoder, kWhole, {}, Stream{});
  const TransformerBlock first(c, kEncoder, {0, 1, false}, {}, Stream{});
  const TransformerBlock second(c, kEncoder, {1, 1, true}, {}, Stream{});
  std::set<std::string> names;
  for (const TransformerBlock* block : {&first, &second}) {
    initialize(*block, 5);
    for (const Parameter& parameter : named_parameters(*block)) names.insert(parameter.name);
  }
  initialize(whole, 5);
  EXPECT_EQ(names.size(), named_parameters(whole).size());
  EXPECT_TRUE(names.contains("layers.1.self_attention.linear_qkv.weight"));
  EXPECT_TRUE(names.contains("final_layernorm.weight"));

  RandomState random(7);
  ForwardContext context;
  context.random = &random;
  const Variable x(random_hidden(kLength, 32, 1));
  expect_identical(second.forward(first.forward(x, context), context).data(),
                   whole.forward(x, context).data());
}

}  // namespace
}  // namespace megatron
