#include "megatron/transformer/layer_memory.h"

#include <algorithm>

#include "megatron/kernels/attention.h"
#include "megatron/kernels/cpu/gemm.h"
#include "megatron/kernels/fp8_blocks.h"
#include "megatron/kernels/matmul.h"

namespace megatron {

int64_t total_bytes(const std::vector<MemoryRow>& rows) {
  int64_t sum = 0;
  for (const MemoryRow& row : rows) sum += row.bytes;
  return sum;
}

int64_t peak_bytes(const std::vector<MemoryStep>& steps) {
  int64_t held = 0;
  int64_t peak = 0;
  for (const MemoryStep& step : steps) {
    held += step.allocates;
    peak = std::max(peak, held);
    held -= step.frees;
  }
  return peak;
}

int64_t norm_statistics_bytes(const TransformerConfig& config, const MicrobatchSizes& sizes) {
  const int64_t one = sizes.block(sizes.residual_tokens(config), DType::kFloat32);
  return config.normalization == Normalization::kLayerNorm ? 2 * one : one;  // mean and 1 / sigma
}

int64_t gathered_bytes(const TransformerConfig& config, const MicrobatchSizes& sizes) {
  if (!sizes.sequence_parallel) return 0;
  return sizes.block(sizes.tokens(config) * config.hidden_size, config.params_dtype);
}

namespace {

// The matrices that FP8 products read, one copy each. Each exists by rows and by columns; the
// backward pass keeps the columns of inputs.
struct Fp8Tensors {
  int64_t hidden = 0;     // inputs of linear_qkv and fc1, gradients of linear_proj and fc2
  int64_t heads = 0;      // input of linear_proj
  int64_t activated = 0;  // input of fc2
  int64_t qkv = 0;        // gradient of linear_qkv
  int64_t wide = 0;       // gradient of fc1
  int64_t scales = 0;     // and inverses, of the inputs of four layers; those of blocks are above
  int64_t numbers = 0;    // the same of the two gradients of an MLP, and sums for fc1's bias
};

// Do the parts of a ring's attention depend on positions (context/chunks.h)? Documents that do not
// see each other are not known here.
bool ring_knows_positions(const TransformerConfig& c) {
  return c.attention_dropout > 0 || c.position_embedding_type == PositionEmbedding::kAlibi;
}

// Can an exchange of heads be cut (context/exchanged_attention.cpp)?
bool exchanges_halves(const TransformerConfig& c, const MicrobatchSizes& m) {
  return m.micro_batch_size > 1 || c.query_groups_of_rank(m.tp) / m.cp > 1;
}

// The tensors of a layer, in bytes.
struct Tensors {
  int64_t residual;        // x and every gradient of a residual stream  [s, b, h]
  int64_t hidden;          // the same in params_dtype
  int64_t norm;            // statistics of one norm
  int64_t qkv;             // [s, b, (n + 2g) d / tp], with g at least tp
  int64_t queries;         // [s, b, n d / tp]
  int64_t keys;            // [s, b, g d / tp], with g at least tp
  int64_t head_norms;      // --qk-layernorm: statistics of the norms of queries and keys
  int64_t all_groups = 0;  // more ranks than groups: the gathered projection [s, b, (n + 2g) d]
  int64_t rank_part = 0;   // and this rank's part of it
  int64_t heads;           // [s, b, n d / tp]
  int64_t lse;             // [b, n / tp, s] fp32
  int64_t wide;            // fc1's output [s, b, f or 2f / tp]
  int64_t activated;       // fc2's input [s, b, f / tp]
  Fp8Tensors fp8;          // of one byte an element
  int64_t context = 0;     // what context parallelism needs in attention's backward pass
  // With cross-attention:
  int64_t encoder_output = 0;  // [se, b, h]
  int64_t encoder_keys = 0;    // its keys and values [se, b, 2 n d / tp]

  Tensors(const TransformerConfig& c, const MicrobatchSizes& m) {
    const int64_t tokens = m.tokens(c);
    const DType dtype = c.params_dtype;
    const int64_t stream = m.residual_tokens(c) * c.hidden_size;
    residual = m.block(stream, c.fp32_residual_connection ? DType::kFloat32 : dtype);
    hidden = m.block(stream, dtype);
    norm = norm_statistics_bytes(c, m);
    const int64_t n = c.num_attention_heads;
    const int64_t g = c.query_groups_of_rank(m.tp) * m.tp;
    qkv = m.block(tokens * (n + 2 * g) * c.kv_channels / m.tp, dtype);
    queries = m.block(tokens * n * c.kv_channels / m.tp, dtype);
    keys = m.block(tokens * g * c.kv_channels / m.tp, dtype);
    const int64_t statistics = c.normalization == Normalization::kLayerNorm ? 2 : 1;
    head_norms = statistics * (m.block(tokens * n / m.tp, DType::kFloat32) +
                               m.block(tokens * g / m.tp, DType::kFloat32));
    if (c.num_query_groups < m.tp) {
      const int64_t all = tokens * (n + 2 * c.num_query_groups) * c.kv_channels;
      all_groups = m.block(all, dtype);
      rank_part = m.block(all / m.tp, dtype);
    }
    heads = m.block(tokens * n * c.kv_channels / m.tp, dtype);
    lse = m.block(tokens * n / m.tp, DType::kFloat32);
    wide = m.block(tokens * c.ffn_hidden_size * (c.is_gated() ? 2 : 1) / m.tp, dtype);
    activated = m.block(tokens * c.ffn_hidden_size / m.tp, dtype);
    if (m.encoder_length > 0) {
      const int64_t of_encoder = m.encoder_length * m.micro_batch_size;
      encoder_output =
          m.block(of_encoder * c.hidden_size / (m.sequence_parallel ? m.tp : 1), dtype);
      encoder_keys = m.block(of_encoder * 2 * n * c.kv_channels / m.tp, dtype);
    }
    if (c.fp8.is_on()) {
      const bool has_blocks = c.fp8.recipe == Fp8Recipe::kBlockwise;
      const auto bytes = [&](int64_t features) {
        const int64_t matrix = m.block(tokens * features, DType::kFloat8E4M3);
        if (!has_blocks) return matrix;
        constexpr auto kLines = kernels::Fp8Blocks::kLine;
        const int64_t inverses =
            std::max(kernels::fp8_scales_shape(kLines, {tokens, features}).numel(),
                     kernels::fp8_scales_shape(kLines, {features, tokens}).numel());
        return matrix + m.block(inverses, DType::kFloat32);
      };
      fp8 = {.hidden = bytes(c.hidden_size),
             .heads = bytes(n * c.kv_channels / m.tp),
             .activated = bytes(c.ffn_hidden_size / m.tp),
             .qkv = bytes((n + 2 * g) * c.kv_channels / m.tp),
             .wide = bytes(c.ffn_hidden_size * (c.is_gated() ? 2 : 1) / m.tp)};
      const int64_t number = has_blocks ? 0 : m.block(1, DType::kFloat32);
      const int64_t num_sums = (tokens + kernels::kFp8SumRows - 1) / kernels::kFp8SumRows;
      fp8.scales = 4 * 2 * number;
      fp8.numbers = 2 * 2 * number;
      if (c.add_bias_linear) {
        fp8.numbers += m.block(num_sums * c.ffn_hidden_size / m.tp, DType::kFloat32);
      }
    }
    const int64_t both = tokens * 2 * g * c.kv_channels / m.tp;  // this rank's keys and values
    if (m.cp > 1 && m.exchange == ContextExchange::kAllGather) {
      // Those of this rank and their gradients, those of all ranks and theirs. The first chunk of
      // the last rank sees half of all keys.
      context = 2 * m.block(both, dtype) + 2 * m.block(both * m.cp, dtype) +
                m.block(both * m.cp / 2, dtype);
    } else if (m.cp > 1 && m.exchange == ContextExchange::kP2p) {
      context = of_ring(c, m, tokens * n * c.kv_channels / m.tp, both);
    } else if (m.cp > 1) {
      // When the first half's gradients are given back: those, before and after their exchange, and
      // the second half's. What cannot be halved is there twice.
      context = exchanges_halves(c, m) ? qkv + qkv / 2 : 2 * qkv;
    }
  }

  // Two blocks of keys and values, the gradients of one that are sent and of one that is received
  // (and, with more ranks, of one that is computed), a call's terms of gradients that wait to be
  // added, and sums in fp32.
  int64_t of_ring(const TransformerConfig& c, const MicrobatchSizes& m, int64_t own,
                  int64_t both) const {
    const DType dtype = c.params_dtype;
    const bool by_position = ring_knows_positions(c);
    const int64_t blocks = m.cp > 2 ? 5 : 4;
    int64_t bytes = blocks * m.block(both, dtype);
    const int64_t of_half = m.block(own / 2, dtype) + m.block(both / 2, dtype);
    if (by_position) {  // a call has one chunk
      bytes += of_half + lse;
    } else if (m.cp == 2) {  // keys and values have a term of each rank, in its place
      bytes += m.block(own, dtype);
    } else {
      bytes += std::max(m.block(own, dtype), of_half) + lse;
    }
    if (dtype != DType::kFloat32 && (m.cp > 2 || by_position)) {
      bytes += m.block(own, DType::kFloat32) + m.block(both, DType::kFloat32);
    }
    return bytes;
  }
};

// The largest call of attention on a rank.
struct AttentionCall {
  int64_t samples, queries, keys, heads, groups;

  AttentionCall(const TransformerConfig& c, const MicrobatchSizes& m)
      : samples(m.micro_batch_size),
        queries(c.seq_length),
        keys(c.seq_length),
        heads(c.num_attention_heads / m.tp),
        groups(c.query_groups_of_rank(m.tp)) {
    if (m.cp > 1 && m.exchange == ContextExchange::kAllToAll) {
      heads /= m.cp;
      groups /= m.cp;
      if (samples > 1) {  // half of the work
        samples = (samples + 1) / 2;
      } else if (groups > 1) {
        heads = heads / groups * ((groups + 1) / 2);
        groups = (groups + 1) / 2;
      }
    } else if (m.cp > 1 && m.exchange == ContextExchange::kP2p) {
      queries /= ring_knows_positions(c) ? 2 * m.cp : m.cp;
      keys /= m.cp;
    } else if (m.cp > 1) {  // a chunk's queries
      queries /= 2 * m.cp;
    }
  }
};

// The gradient of attention's output in bias_dropout_add: dy itself where nothing changes.
bool has_own_gradient(const TransformerConfig& config) {
  return config.hidden_dropout > 0 ||
         (config.fp32_residual_connection && config.params_dtype != DType::kFloat32);
}

// Scratch memory. On the CPU, products pack blocks for each thread, and attention keeps separate
// gradients for each head in work. On a GPU, cuBLASLt owns a workspace, and attention sums the
// gradients of queries in fp32; cuDNN may keep those of the scores to add them in one order.
int64_t workspace_bytes(const TransformerConfig& c, const MicrobatchSizes& m, const Tensors& t) {
  const auto [samples, queries, keys, heads, groups] = AttentionCall(c, m);
  if (m.device == DeviceType::kCuda) {
    const auto tiled = [](int64_t s) { return (s + 63) / 64 * 64; };  // cuDNN's tiles
    int64_t gradients = t.lse;
    if (c.params_dtype != DType::kFloat32) {
      int64_t bytes = m.is_deterministic ? samples * heads * tiled(queries) * tiled(keys) * 2
                                         : samples * heads * queries * c.kv_channels * 4;
      const bool has_relative_bias = c.position_embedding_type == PositionEmbedding::kRelative;
      if (c.attention_dropout > 0 || has_relative_bias) {
        bytes = kernels::cuda::BackwardBytes(samples, heads, queries, keys, c.kv_channels,
                                             has_relative_bias)
                    .total();
      }
      gradients += m.block(bytes / 2, DType::kBFloat16);
    }
    return kernels::kCudaMatmulWorkspaceBytes + gradients;
  }
  const Shape q = {keys, samples, heads, c.kv_channels};
  return std::max(kernels::cpu::attention_backward_workspace_bytes(q, groups),
                  kernels::cpu::gemm_workspace_bytes(c.params_dtype));
}

}  // namespace

LayerMemory layer_memory(const TransformerConfig& config, const MicrobatchSizes& sizes,
                         bool is_recomputed) {
  const Tensors t(config, sizes);
  const bool is_parallel = config.parallel_residual;
  // The inputs of linear layers; linear_proj without FP8 shares attention's output.
  // Adapters read theirs in 16 bits.
  const bool is_fp8 = config.fp8.is_on() && config.fp8.wgrad && config.lora_rank == 0;
  const int64_t normed = is_fp8 ? t.fp8.hidden : t.hidden;
  const int64_t activated = is_fp8 ? 0 : t.activated;  // fp8_mlp makes it again
  const int64_t heads = is_fp8 ? t.fp8.heads : 0;
  LayerMemory memory;
  memory.input = {"layer input", t.residual};
  memory.kept = {{"input norm, output", normed},
                 {"norm statistics", 2 * t.norm},
                 {"queries, keys, values", t.qkv},
                 {"attention output", t.heads + heads},
                 {"softmax log-sum-exp", t.lse},
                 {"pre-MLP norm, output", normed},
                 {"fc1 output", t.wide}};
  // Heads that are given back are another tensor, which linear_proj keeps.
  const bool gives_back = sizes.cp > 1 && sizes.exchange == ContextExchange::kAllToAll;
  const int64_t given_back = gives_back && !is_fp8 ? t.heads : 0;
  if (given_back > 0) memory.kept.push_back({"attention output by sequence", given_back});
  if (activated > 0) memory.kept.push_back({"activation output", activated});
  if (is_fp8 && t.fp8.scales > 0) memory.kept.push_back({"scales in FP8", t.fp8.scales});
  // Parallel halves have one input, which both norms keep.
  if (!is_parallel) memory.kept.push_back({"residual after attention", t.residual});

  if (config.qk_layernorm) {
    memory.kept.push_back({"queries and keys before their norms", t.queries + t.keys});
    memory.kept.push_back({"their statistics", t.head_norms});
  }
  if (sizes.encoder_length > 0) {
    memory.kept.push_back({"cross-attention's norm, output", t.hidden});
    memory.kept.push_back({"its statistics", t.norm});
    memory.kept.push_back({"residual after self-attention", t.residual});
    memory.kept.push_back({"queries of cross-attention", t.queries});
    memory.kept.push_back({"keys and values of the encoder's output", t.encoder_keys});
    memory.kept.push_back({"cross-attention output", t.heads});
    memory.kept.push_back({"its log-sum-exp", t.lse});
  }
  const int64_t whole = gathered_bytes(config, sizes);
  const int64_t own = has_own_gradient(config) ? t.hidden : 0;
  std::vector<MemoryStep>& steps = memory.backward;
  // recompute() holds the output and its gradient, so that the layer may not write over them.
  if (is_recomputed) steps.push_back({"output", t.residual, 0});
  steps.push_back({"MLP dropout", own, 0});
  // With FP8 the gradient of each layer's output in FP8, both ways.
  const Fp8Tensors& fp8 = t.fp8;
  if (is_fp8) {
    steps.push_back({"fc2", whole + 2 * fp8.hidden + t.activated, whole + fp8.hidden + own});
    steps.push_back({"activation", 2 * fp8.wide + fp8.activated + fp8.numbers,
                     t.wide + t.activated + fp8.numbers});
    steps.push_back({"weight of fc2", 0, fp8.hidden + fp8.activated});
  } else {
    steps.push_back({"fc2", whole + 2 * fp8.hidden + t.activated,
                     whole + 2 * fp8.hidden + own + activated});  // the activation goes
    // bias_activation writes its gradient over its input; gelu_mlp frees both.
    steps.push_back({"activation", 0, t.activated});
  }
  const int64_t dwide = is_fp8 ? 2 * fp8.wide : t.wide;
  steps.push_back({"fc1", 2 * whole + t.hidden, 2 * whole + dwide + normed});
  if (is_parallel) {
    steps.push_back({"pre-MLP norm", t.residual, t.hidden + t.norm});
    steps.push_back({"attention dropout", own, 0});
  } else {
    // One kernel with attention's dropout; it adds the gradient of the residual stream.
    const int64_t gradient = is_recomputed ? 0 : t.residual;  // recompute() holds that
    steps.push_back({"pre-MLP norm", t.residual + own, gradient + t.residual + t.hidden + t.norm});
  }
  if (sizes.encoder_length > 0) {
    steps.push_back({"cross-attention's linear_proj", whole + t.heads, whole + own});
    steps.push_back({"cross-attention", t.queries + t.encoder_keys,
                     2 * t.heads + t.queries + t.encoder_keys + t.lse});
    steps.push_back({"linear_kv", t.encoder_output, t.encoder_keys + t.encoder_output});
    steps.push_back({"linear_q", whole + t.hidden, whole + t.queries + t.hidden});
    steps.push_back(
        {"cross-attention's norm", t.residual + own, 2 * t.residual + t.hidden + t.norm});
  }
  steps.push_back({"linear_proj", whole + 2 * fp8.hidden + t.heads,
                   whole + 2 * fp8.hidden + own + heads + given_back});
  steps.push_back({"attention", t.qkv + t.context, 2 * t.heads + t.qkv + t.lse + t.context});
  if (config.qk_layernorm) {
    steps.push_back({"joined heads", t.queries + 2 * t.keys, t.qkv});
    steps.push_back({"norm of keys", t.keys, 2 * t.keys});
    steps.push_back({"norm of queries", t.queries, 2 * t.queries + t.head_norms});
    steps.push_back({"split heads", t.qkv, t.queries + 2 * t.keys});
  }
  int64_t projected = t.qkv;
  if (t.all_groups > 0) {
    projected = t.rank_part;
    steps.push_back({"shared groups", 2 * t.all_groups + t.rank_part, 2 * t.all_groups + t.qkv});
  }
  steps.push_back({"linear_qkv", 2 * whole + 2 * fp8.qkv + t.hidden,
                   2 * whole + 2 * fp8.qkv + projected + normed});
  steps.push_back({"input norm", t.residual, 2 * t.residual + t.hidden + t.norm});
  memory.workspace = workspace_bytes(config, sizes, t);
  return memory;
}

}  // namespace megatron
