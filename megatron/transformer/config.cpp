#include "megatron/transformer/config.h"

#include <algorithm>
#include <cstdlib>
#include <initializer_list>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "megatron/core/error.h"
#include "megatron/transformer/expert_config.h"
#include "megatron/transformer/lora.h"

namespace megatron {
namespace {

// "1, 2, 4": the divisors of `value` up to `limit`, for messages: the first thousand numbers and
// `value` are tried.
std::string divisors(int64_t value, int64_t limit) {
  constexpr int64_t kTried = 1000;
  std::string text;
  const auto add = [&](int64_t d) { text += fmt::format("{}{}", text.empty() ? "" : ", ", d); };
  for (int64_t d = 1; d <= std::min(limit, kTried); ++d) {
    if (value % d == 0) add(d);
  }
  if (limit == value && value > kTried) add(value);
  return text;
}

bool is_probability(double value) { return value >= 0.0 && value < 1.0; }

}  // namespace

std::string_view name_of(Activation activation) {
  switch (activation) {
    case Activation::kGeluTanh:
      return "gelu_tanh";
    case Activation::kGeluErf:
      return "gelu_erf";
    case Activation::kGeluOnnx:
      return "gelu_onnx";
    case Activation::kSquaredRelu:
      return "squared_relu";
    case Activation::kRelu:
      return "relu";
    case Activation::kSwiglu:
      return "swiglu";
    case Activation::kGeglu:
      return "geglu";
    case Activation::kLiglu:
      return "liglu";
    case Activation::kReglu:
      return "reglu";
    case Activation::kSwigluSecond:
      return "swiglu_second";
    case Activation::kGegluTanh:
      return "geglu_tanh";
    case Activation::kGegluTanhFirst:
      return "geglu_tanh_first";
    case Activation::kQuickGeglu:
      return "quick_geglu";
    case Activation::kClampedQuickGeglu:
      return "clamped_quick_geglu";
  }
  throw InternalError("name_of: unknown activation");
}

Activation activation_of(const ActivationFlags& flags, bool add_bias_linear) {
  if (flags.openai_gelu) return Activation::kGeluTanh;
  if (flags.onnx_safe) return Activation::kGeluOnnx;
  if (flags.swiglu) return Activation::kSwiglu;
  if (flags.squared_relu) return Activation::kSquaredRelu;
  if (flags.relu) return Activation::kRelu;
  switch (flags.glu_activation) {
    case GluActivation::kGeglu:
      return Activation::kGeglu;
    case GluActivation::kGegluTanh:
      return Activation::kGegluTanh;
    case GluActivation::kLiglu:
      return Activation::kLiglu;
    case GluActivation::kReglu:
      return Activation::kReglu;
    case GluActivation::kSwiglu:
      return Activation::kSwigluSecond;
    case GluActivation::kGegluTanhFirst:
      return Activation::kGegluTanhFirst;
    case GluActivation::kNone:
      break;
  }
  if (flags.quick_geglu) {
    return flags.activation_func_clamp_value > 0 ? Activation::kClampedQuickGeglu
                                                 : Activation::kQuickGeglu;
  }
  return flags.bias_gelu_fusion && add_bias_linear ? Activation::kGeluTanh : Activation::kGeluErf;
}

std::vector<std::string> problems(const ActivationFlags& flags) {
  std::vector<std::string> found;
  std::string chosen;
  int count = 0;
  const auto choose = [&](bool is_on, const char* flag) {
    if (!is_on) return;
    chosen += fmt::format("{}{}", count == 0 ? "" : ", ", flag);
    count += 1;
  };
  choose(flags.openai_gelu, "--openai-gelu");
  choose(flags.onnx_safe, "--onnx-safe");
  choose(flags.swiglu, "--swiglu");
  choose(flags.squared_relu, "--squared-relu");
  choose(flags.relu, "--relu");
  choose(flags.glu_activation != GluActivation::kNone, "--glu-activation");
  choose(flags.quick_geglu, "--quick-geglu");
  if (count > 1) {
    found.push_back(fmt::format("{}: a model has one activation; keep one of these flags", chosen));
  }
  const double offset = flags.glu_linear_offset;
  const double clamp = flags.activation_func_clamp_value;
  if (!flags.quick_geglu && (offset != 0.0 || clamp != 0.0)) {
    found.emplace_back(
        "--glu-linear-offset and --activation-func-clamp-value need --quick-geglu; add it");
  } else if (!(offset == 0.0 && clamp == 0.0) && !(offset == 1.0 && clamp == 7.0)) {
    found.push_back(fmt::format(
        "--quick-geglu with --glu-linear-offset {} and --activation-func-clamp-value {} is not "
        "available; use 1 and 7, or neither",
        offset, clamp));
  }
  return found;
}

bool RecomputeConfig::recomputes(std::string_view module) const {
  return recompute_granularity == RecomputeGranularity::kSelective &&
         std::ranges::find(recompute_modules, module) != recompute_modules.end();
}

int64_t LayerConfig::rotary_dim() const {
  const int64_t channels = multi_latent_attention ? qk_pos_emb_head_dim : kv_channels;
  return rotary_percent < 1.0 ? static_cast<int64_t>(static_cast<double>(channels) * rotary_percent)
                              : channels;
}

namespace {

// Expands a single number n to all layers: every n-th has `value`, 0 or 1, the others the opposite.
void expand_period(std::vector<int>& layers, int64_t num_layers, int value) {
  if (layers.size() != 1 || layers.front() < 1 || num_layers < 1) return;
  const int period = layers.front();
  layers.assign(static_cast<size_t>(num_layers), 1 - value);
  for (size_t i = 0; i < layers.size(); ++i) {
    if ((i + 1) % static_cast<size_t>(period) == 0) layers[i] = value;
  }
}

}  // namespace

TransformerConfig resolved(TransformerConfig config) {
  if (config.num_layers == 0) config.num_layers = config.encoder_num_layers;
  if (config.encoder_num_layers == 0) config.encoder_num_layers = config.num_layers;
  if (config.seq_length == 0) config.seq_length = config.encoder_seq_length;
  if (config.encoder_seq_length == 0) config.encoder_seq_length = config.seq_length;
  if (config.ffn_hidden_size == 0) {
    // Compat: Megatron-LM core_r0.5.0 with --swiglu rounds ffn_hidden_size down to a multiple
    // of 64.
    config.ffn_hidden_size =
        config.activation == Activation::kSwiglu
            ? static_cast<int64_t>(4.0 * static_cast<double>(config.hidden_size) * 2 / 3 / 64) * 64
            : 4 * config.hidden_size;
  }
  const int64_t heads = config.num_attention_heads;
  if (config.kv_channels == 0 && heads > 0 && config.hidden_size % heads == 0) {
    config.kv_channels = config.hidden_size / heads;
  }
  if (config.multi_latent_attention) {
    // Keys and values of all heads are padded to one size (LatentHeads).
    config.kv_channels =
        std::max(config.qk_head_dim + config.qk_pos_emb_head_dim, config.v_head_dim);
    config.group_query_attention = false;
  }
  if (!config.group_query_attention) config.num_query_groups = heads;
  if (config.embedding_init_method_std == 0.0) {
    config.embedding_init_method_std = config.init_method_std;
  }
  if (config.padded_vocab_size == 0) config.padded_vocab_size = config.pad_vocab_size_to;
  if (config.apply_query_key_layer_scaling) config.attention_softmax_in_fp32 = true;
  expand_period(config.no_rope_layers, config.num_layers, 1);
  if (config.num_layers > 1) expand_period(config.window_layers, config.num_layers, 0);
  resolve_experts(config);
  config.retro = resolved(config.retro, config.num_layers);
  return config;
}

namespace {

// Collects problems, one sentence each.
struct ProblemList {
  std::vector<std::string> found;

  void require(bool holds, std::string problem) {
    if (!holds) found.push_back(std::move(problem));
  }
  bool positive(int64_t value, const char* flag, const char* example) {
    require(value > 0, value == 0
                           ? fmt::format("{} is required; for example {} {}", flag, flag, example)
                           : fmt::format("{} {} must be greater than 0", flag, value));
    return value > 0;
  }
};

// The random bits of eight columns are drawn together.
void check_adapter_dropout(const TransformerConfig& c, int64_t tp, ProblemList& list) {
  list.require(is_probability(c.lora_dropout),
               fmt::format("--lora-dropout {} must be in [0, 1)", c.lora_dropout));
  if (c.lora_dropout == 0.0 || tp <= 1) return;
  const auto expect_eights = [&](const char* layer, const char* what, int64_t columns) {
    if (lora_of(c, layer).rank == 0 || columns % (8 * tp) == 0) return;
    list.require(
        false, fmt::format("--lora-dropout {} needs {} {} to be a multiple of 8 * "
                           "--tensor-model-parallel-size {}; use fewer ranks, or no adapter of {}",
                           c.lora_dropout, what, columns, tp, layer));
  };
  if (c.multi_latent_attention) {
    expect_eights("linear_proj", "--num-attention-heads * --v-head-dim",
                  c.num_attention_heads * c.v_head_dim);
  } else {
    expect_eights("linear_proj", "--num-attention-heads * --kv-channels",
                  c.num_attention_heads * c.kv_channels);
  }
  expect_eights("linear_fc2", "--ffn-hidden-size", c.ffn_hidden_size);
}

void check_adapters(const TransformerConfig& c, int64_t tp, ProblemList& list) {
  list.require(c.lora_rank >= 0, fmt::format("--lora-rank {} must be at least 0", c.lora_rank));
  if (c.lora_rank <= 0) return;
  list.require(c.is_decoder_only(),
               fmt::format("--lora-rank {} is for a GPT, and this is a {}; remove it", c.lora_rank,
                           name_of(c.kind)));
  list.require(c.lora_alpha > 0,
               fmt::format("--lora-alpha {} must be greater than 0", c.lora_alpha));
  check_adapter_dropout(c, tp, list);
  list.require(!c.lora_target_modules.empty(),
               "--lora-target-modules names no layer; use linear_qkv or all-linear");
  const std::vector<std::string> layers = lora_layers(c);
  for (const std::string& name : c.lora_target_modules) {
    const std::vector<std::string> meant = lora_layers_of(name);
    if (std::ranges::find_first_of(meant, layers) != meant.end()) continue;
    list.require(false,
                 fmt::format("--lora-target-modules {} is no linear layer of the model; use {}, "
                             "a name in transformers such as {} or q_proj, or all-linear",
                             name, fmt::join(layers, ", "),
                             c.multi_latent_attention ? "kv_b_proj" : "c_attn"));
  }
}

// Products in FP8 need extents that are multiples of 16.
void check_fp8(const LayerConfig& c, int64_t tp, ProblemList& list) {
  const Fp8Config& fp8 = c.fp8;
  list.require(std::abs(fp8.margin) <= 32,
               fmt::format("--fp8-margin {} must be between -32 and 32", fp8.margin));
  list.require(fp8.interval > 0,
               fmt::format("--fp8-interval {} must be greater than 0", fp8.interval));
  list.require(
      fp8.amax_history_len > 0,
      fmt::format("--fp8-amax-history-len {} must be greater than 0", fp8.amax_history_len));
  const int64_t start = fp8.num_layers_at_start_in_bf16;
  const int64_t end = fp8.num_layers_at_end_in_bf16;
  list.require(
      start >= 0 && end >= 0,
      fmt::format("--num-layers-at-start-in-bf16 {} and --num-layers-at-end-in-bf16 {} must be "
                  "at least 0",
                  start, end));
  list.require(
      !fp8.first_last_layers_bf16 || start + end < c.num_layers,
      fmt::format("--first-last-layers-bf16 leaves none of {} layers in FP8: {} at the start "
                  "and {} at the end stay in 16 bits; lower --num-layers-at-start-in-bf16 or "
                  "--num-layers-at-end-in-bf16",
                  c.num_layers, start, end));
  const auto suits = [&](int64_t size, int64_t unit, const char* what) {
    list.require(size % unit == 0,
                 fmt::format("--fp8-format needs {} {} to be a multiple of {}; choose "
                             "another size or remove --fp8-format",
                             what, size, unit));
  };
  suits(c.hidden_size, 16, "--hidden-size");
  suits(c.ffn_hidden_size, 16 * tp, "--ffn-hidden-size");
  suits(c.moe_shared_expert_intermediate_size, 16 * tp, "--moe-shared-expert-intermediate-size");
  suits(c.num_attention_heads * c.kv_channels, 16 * tp, "--num-attention-heads x --kv-channels");
  suits(2 * c.num_query_groups * c.kv_channels, 16 * tp, "2 x --num-query-groups x --kv-channels");
}

// Beyond these, products of sizes may overflow and loops may not end.
void check_limits(const TransformerConfig& c, ProblemList& list) {
  constexpr int64_t kMaxLayers = 100'000;
  constexpr int64_t kMaxWidth = int64_t{1} << 24;
  const auto at_most = [&](int64_t value, const char* flag, int64_t most) {
    list.require(value <= most, fmt::format("{} {} must be at most {}", flag, value, most));
  };
  at_most(c.num_layers, "--num-layers", kMaxLayers);
  at_most(c.decoder_num_layers, "--decoder-num-layers", kMaxLayers);
  at_most(c.num_attention_heads, "--num-attention-heads", kMaxWidth);
  at_most(c.num_query_groups, "--num-query-groups", kMaxWidth);
}

void check_sizes(const TransformerConfig& c, ProblemList& list) {
  list.positive(c.num_layers, "--num-layers", "12");
  const bool has_hidden = list.positive(c.hidden_size, "--hidden-size", "768");
  const bool has_heads = list.positive(c.num_attention_heads, "--num-attention-heads", "12");
  list.positive(c.seq_length, "--seq-length", "1024");
  list.positive(c.max_position_embeddings, "--max-position-embeddings", "1024");
  list.require(c.decoder_num_layers >= 0,
               fmt::format("--decoder-num-layers {} must be greater than 0", c.decoder_num_layers));
  if (has_hidden && has_heads) {
    list.require(c.kv_channels >= 0,
                 fmt::format("--kv-channels {} must be greater than 0", c.kv_channels));
    list.require(
        c.kv_channels != 0,
        fmt::format("--hidden-size {} must be a multiple of --num-attention-heads {}; use one "
                    "of {} heads, or give --kv-channels",
                    c.hidden_size, c.num_attention_heads,
                    divisors(c.hidden_size, std::min<int64_t>(c.hidden_size, 64))));
    list.require(
        c.ffn_hidden_size > 0,
        c.ffn_hidden_size < 0
            ? fmt::format("--ffn-hidden-size {} must be greater than 0", c.ffn_hidden_size)
            : fmt::format("--hidden-size {} is too small for the default MLP size of --swiglu, a "
                          "multiple of 64; give --ffn-hidden-size",
                          c.hidden_size));
  }
}

void check_heads(const AttentionConfig& c, int64_t tp, ProblemList& list) {
  const int64_t heads = c.num_attention_heads;
  if (heads <= 0) return;
  list.require(heads % tp == 0, fmt::format("--num-attention-heads {} must be a multiple of "
                                            "--tensor-model-parallel-size {}; use one of {}",
                                            heads, tp, divisors(heads, heads)));
  if (c.num_query_groups < 1) {
    list.require(false,
                 fmt::format("--num-query-groups {} must be greater than 0", c.num_query_groups));
  } else if (c.group_query_attention) {
    list.require(
        heads % c.num_query_groups == 0,
        fmt::format("--num-attention-heads {} must be a multiple of --num-query-groups {}; "
                    "use one of {} groups",
                    heads, c.num_query_groups, divisors(heads, heads)));
    list.require(
        c.num_query_groups % tp == 0 || tp % c.num_query_groups == 0,
        fmt::format("--num-query-groups {} must be a multiple or a divisor of "
                    "--tensor-model-parallel-size {}; use one of {}",
                    c.num_query_groups, tp, divisors(c.num_query_groups, c.num_query_groups)));
    list.require(
        c.num_query_groups % tp == 0 || tp % c.num_query_groups != 0 ||
            (heads + 2 * c.num_query_groups) * c.kv_channels % tp == 0,
        fmt::format("--num-query-groups {} with --kv-channels {} gives a projection of {} rows, "
                    "which do not divide among --tensor-model-parallel-size {} ranks; choose "
                    "another --kv-channels",
                    c.num_query_groups, c.kv_channels,
                    (heads + 2 * c.num_query_groups) * c.kv_channels, tp));
  }
}

// Windows, caps of scores, sinks and gates.
void check_attention_options(const TransformerConfig& c, int64_t tp, ProblemList& list) {
  list.require(
      c.window_layers.empty() || static_cast<int64_t>(c.window_layers.size()) == c.num_layers,
      fmt::format("--window-attn-skip-freq names {} layers and --num-layers is {}; name "
                  "each layer",
                  c.window_layers.size(), c.num_layers));
  list.require(c.attn_logit_softcapping >= 0.0,
               fmt::format("--attn-logit-softcapping {} must be at least 0; 0 leaves scores as "
                           "they are",
                           c.attn_logit_softcapping));
  list.require(c.attn_logit_softcapping == 0.0 ||
                   (c.position_embedding_type != PositionEmbedding::kAlibi &&
                    c.position_embedding_type != PositionEmbedding::kRelative),
               fmt::format("--attn-logit-softcapping {} does not work with "
                           "--position-embedding-type alibi or relative; remove one of them",
                           c.attn_logit_softcapping));
  list.require(!c.attention_output_gate || c.num_query_groups % tp == 0,
               fmt::format("--attention-output-gate needs --num-query-groups {} to be a multiple "
                           "of --tensor-model-parallel-size {}; use fewer ranks",
                           c.num_query_groups, tp));
}

void check_lengths(const TransformerConfig& c, int64_t tp, ProblemList& list) {
  if (c.hidden_size > 0 && c.ffn_hidden_size > 0) {
    list.require(
        c.ffn_hidden_size % tp == 0,
        fmt::format("--ffn-hidden-size {} must be a multiple of --tensor-model-parallel-size "
                    "{}; use {}",
                    c.ffn_hidden_size, tp, (c.ffn_hidden_size + tp - 1) / tp * tp));
  }
  if (c.seq_length > 0 && c.max_position_embeddings > 0) {
    const auto fits = [&](int64_t length, const char* flag) {
      list.require(
          length <= c.max_position_embeddings,
          fmt::format("{} {} must not exceed --max-position-embeddings {}; raise the latter", flag,
                      length, c.max_position_embeddings));
    };
    // Compat: BigScience Megatron-DeepSpeed has no table with alibi, so it sets no limit.
    if (c.position_embedding_type != PositionEmbedding::kAlibi &&
        c.position_embedding_type != PositionEmbedding::kRelative) {
      fits(c.seq_length, "--seq-length");
      fits(c.decoder_seq_length, "--decoder-seq-length");
    }
  }
}

void check_rope_scaling(const LayerConfig& c, ProblemList& list) {
  const RopeScaling& scaling = c.rope_scaling;
  if (scaling.type == RopeScalingType::kNone) return;
  list.require(
      scaling.factor > 0.0,
      fmt::format("the factor {} of rotary scaling must be greater than 0", scaling.factor));
  list.require(
      !c.use_rope_scaling,
      "--use-rope-scaling is one scaling of rotary frequencies, and the model has another; "
      "remove it");
  if (scaling.type == RopeScalingType::kLinear) return;
  list.require(scaling.original_max_position_embeddings > 0,
               fmt::format("rotary scaling of this type needs original_max_position_embeddings "
                           "greater than 0, not {}; give the length before the scaling",
                           scaling.original_max_position_embeddings));
  if (scaling.type != RopeScalingType::kLongRope) return;
  const int64_t pairs = (c.rotary_dim() + 1) / 2;
  for (const std::vector<double>& divisors : {scaling.short_factor, scaling.long_factor}) {
    list.require(static_cast<int64_t>(divisors.size()) == pairs,
                 fmt::format("short_factor and long_factor of LongRoPE need {} numbers each, one "
                             "for each pair of rotated channels, not {}",
                             pairs, divisors.size()));
  }
}

void check_rotary(const LayerConfig& c, ProblemList& list) {
  list.require(c.rotary_percent > 0.0 && c.rotary_percent <= 1.0,
               fmt::format("--rotary-percent {} must be above 0 and at most 1", c.rotary_percent));
  list.require(c.rotary_base > 0.0,
               fmt::format("--rotary-base {} must be greater than 0", c.rotary_base));
  list.require(c.rotary_seq_len_interpolation_factor > 0,
               fmt::format("--rotary-seq-len-interpolation-factor {} must be greater than 0",
                           c.rotary_seq_len_interpolation_factor));
  list.require(
      c.rope_scaling_factor > 0.0,
      fmt::format("--rope-scaling-factor {} must be greater than 0", c.rope_scaling_factor));
  check_rope_scaling(c, list);
  if (c.position_embedding_type == PositionEmbedding::kRope && c.kv_channels > 0) {
    // Compat: an odd number is legal; Megatron-LM and transformers then turn one channel more.
    list.require(
        c.rotary_dim() > 0 && (c.rotary_dim() + 1) / 2 * 2 <= c.kv_channels,
        fmt::format("rotary position embeddings turn pairs of channels, which {} of the {} "
                    "channels of a head cannot be; choose another --rotary-percent or "
                    "--kv-channels",
                    c.rotary_dim(), c.kv_channels));
  }
}

void check_latent(const TransformerConfig& c, ProblemList& list) {
  if (!c.multi_latent_attention) return;
  list.require(c.is_decoder_only() && !c.retro.add_retriever,
               fmt::format("--multi-latent-attention is for a GPT, and this is a {}; remove it",
                           c.retro.add_retriever ? "Retro" : name_of(c.kind)));
  list.positive(c.kv_lora_rank, "--kv-lora-rank", "512");
  list.positive(c.qk_head_dim, "--qk-head-dim", "128");
  list.positive(c.v_head_dim, "--v-head-dim", "128");
  list.require(c.q_lora_rank >= 0,
               fmt::format("--q-lora-rank {} must be greater than 0", c.q_lora_rank));
  list.require(c.qk_pos_emb_head_dim > 0 && c.qk_pos_emb_head_dim % 2 == 0,
               fmt::format("--qk-pos-emb-head-dim {} must be even and greater than 0: pairs of "
                           "channels are rotated",
                           c.qk_pos_emb_head_dim));
  constexpr int64_t kMaxHeadSize = 256;  // kernels::attention_forward()
  list.require(
      c.kv_channels <= kMaxHeadSize,
      fmt::format("--multi-latent-attention with --qk-head-dim {}, --qk-pos-emb-head-dim "
                  "{} and --v-head-dim {} has heads of {} channels; at most {} are "
                  "possible",
                  c.qk_head_dim, c.qk_pos_emb_head_dim, c.v_head_dim, c.kv_channels, kMaxHeadSize));
  list.require(c.position_embedding_type == PositionEmbedding::kRope,
               "--multi-latent-attention needs --position-embedding-type rope");
  list.require(!c.attention_output_gate,
               "--attention-output-gate and --multi-latent-attention exclude each other; keep one");
  list.require(!c.qk_layernorm_of_projection && !c.qk_layernorm_weight_per_head,
               "--multi-latent-attention has norms of its latents, not of projections or heads; "
               "remove one of them");
  list.require(c.rotary_base_local == 0.0,
               "--multi-latent-attention has one base of rotary frequencies; remove the local one");
  list.require(!c.fp8.is_on(),
               "--fp8-format does not work with --multi-latent-attention yet; remove it");
}

void check_multi_token(const TransformerConfig& c, ProblemList& list) {
  list.require(c.mtp_num_layers >= 0,
               fmt::format("--mtp-num-layers {} must be at least 0", c.mtp_num_layers));
  if (c.mtp_num_layers <= 0) return;
  list.require(c.is_decoder_only() && !c.retro.add_retriever,
               fmt::format("--mtp-num-layers is for a GPT, and this is a {}; remove it",
                           c.retro.add_retriever ? "Retro" : name_of(c.kind)));
  list.require(c.mtp_loss_scaling_factor > 0.0,
               fmt::format("--mtp-loss-scaling-factor {} must be greater than 0",
                           c.mtp_loss_scaling_factor));
  list.require(
      c.mtp_num_layers < c.seq_length,
      fmt::format("--mtp-num-layers {} must be below --seq-length {}: the last tokens have "
                  "none so far beyond them",
                  c.mtp_num_layers, c.seq_length));
}

void check_vocabulary(const VocabularyConfig& c, int64_t tp, ProblemList& list) {
  list.require(c.true_vocab_size >= 0 &&
                   (c.padded_vocab_size == 0 || c.true_vocab_size <= c.padded_vocab_size),
               fmt::format("true_vocab_size {} must be at most padded_vocab_size {}",
                           c.true_vocab_size, c.padded_vocab_size));
  if (list.positive(c.make_vocab_size_divisible_by, "--make-vocab-size-divisible-by", "128")) {
    list.require(
        c.pad_vocab_size_to >= 0 && c.pad_vocab_size_to % c.make_vocab_size_divisible_by == 0,
        fmt::format("--pad-vocab-size-to {} must be a multiple of "
                    "--make-vocab-size-divisible-by {}",
                    c.pad_vocab_size_to, c.make_vocab_size_divisible_by));
    list.require(c.pad_vocab_size_to % tp == 0,
                 fmt::format("--pad-vocab-size-to {} must be a multiple of "
                             "--tensor-model-parallel-size {}",
                             c.pad_vocab_size_to, tp));
  }
}

void check_numbers(const TransformerConfig& c, ProblemList& list) {
  list.require(c.norm_epsilon > 0.0,
               fmt::format("--norm-epsilon {} must be greater than 0", c.norm_epsilon));
  list.require(c.softmax_scale >= 0.0,
               fmt::format("--softmax-scale {} must be greater than 0", c.softmax_scale));
  list.require(is_probability(c.attention_dropout),
               fmt::format("--attention-dropout {} must be in [0, 1)", c.attention_dropout));
  list.require(is_probability(c.hidden_dropout),
               fmt::format("--hidden-dropout {} must be in [0, 1)", c.hidden_dropout));
  list.require(is_probability(c.label_smoothing),
               fmt::format("label smoothing {} must be in [0, 1)", c.label_smoothing));
  list.require(c.init_method_std >= 0.0,
               fmt::format("--init-method-std {} must be at least 0", c.init_method_std));
  list.require(
      !c.fp32_residual_connection || c.params_dtype != DType::kFloat32,
      "--fp32-residual-connection needs --fp16 or --bf16; with fp32 parameters the residual is "
      "fp32 anyway, so remove it");
  list.require(!c.fp16_lm_cross_entropy || c.params_dtype == DType::kFloat16,
               "--fp16-lm-cross-entropy needs --fp16; add it or remove --fp16-lm-cross-entropy");
}

// Options of layers that BERT, T5 and Retro do not have.
void check_gpt_options(const TransformerConfig& c, ProblemList& list) {
  if (c.is_decoder_only() && !c.retro.add_retriever) return;
  const auto exclude = [&](bool is_on, const char* flag) {
    list.require(!is_on, fmt::format("{} is for a GPT without retrieval, and this is a {}; "
                                     "remove it",
                                     flag, c.is_decoder_only() ? "Retro" : name_of(c.kind)));
  };
  exclude(c.norm_placement != NormPlacement::kBefore, "--norm-placement");
  exclude(c.parallel_residual_shares_norm, "--parallel-residual-shares-norm");
  exclude(c.residual_multiplier != 1, "--residual-multiplier");
  exclude(c.embedding_multiplier != 1, "--embedding-multiplier");
  exclude(c.logits_multiplier != 1, "--logits-multiplier");
  exclude(c.final_logit_softcapping != 0, "--final-logit-softcapping");
  exclude(c.add_output_bias, "--add-output-bias");
  exclude(c.qk_layernorm_of_projection, "--qk-layernorm-of-projection");
  exclude(c.qk_layernorm_weight_per_head, "--qk-layernorm-weight-per-head");
  exclude(!c.no_rope_layers.empty(), "--no-rope-freq");
  exclude(c.rotary_base_local != 0, "--rotary-base-local");
  exclude(c.attention_window != 0, "--window-size");
  exclude(c.attn_logit_softcapping != 0, "--attn-logit-softcapping");
  exclude(c.softmax_type != SoftmaxType::kVanilla, "--softmax-type");
  exclude(c.attention_output_gate, "--attention-output-gate");
  exclude(c.learned_position_offset != 0, "--learned-position-offset");
}

void check_norms(const TransformerConfig& c, int64_t tp, ProblemList& list) {
  const bool follows = c.norm_placement == NormPlacement::kAfter;
  list.require(!follows || !c.apply_residual_connection_post_layernorm,
               "--apply-residual-connection-post-layernorm takes the output of a norm that "
               "--norm-placement after leaves out; remove one of them");
  list.require(!follows || !c.fp32_residual_connection,
               "--norm-placement after gives the residual stream to linear layers, which "
               "--fp32-residual-connection keeps in fp32; remove one of them");
  list.require(!c.parallel_residual_shares_norm || c.parallel_residual,
               "--parallel-residual-shares-norm needs --parallel-residual; add it");
  list.require(!c.parallel_residual_shares_norm || !follows,
               "--parallel-residual-shares-norm has no norm to share with --norm-placement after; "
               "remove one of them");
  list.require(c.add_norm_bias || c.normalization == Normalization::kLayerNorm,
               "--disable-norm-bias needs --normalization LayerNorm: RMSNorm has no bias; "
               "remove it");
  const auto check_heads_norm = [&](bool is_on, const char* flag) {
    if (!is_on) return;
    list.require(c.qk_layernorm, fmt::format("{} needs --qk-layernorm; add it", flag));
    list.require(c.num_query_groups % tp == 0,
                 fmt::format("{} needs --num-query-groups {} to be a multiple of "
                             "--tensor-model-parallel-size {}; use fewer ranks",
                             flag, c.num_query_groups, tp));
  };
  check_heads_norm(c.qk_layernorm_of_projection, "--qk-layernorm-of-projection");
  check_heads_norm(c.qk_layernorm_weight_per_head, "--qk-layernorm-weight-per-head");
  list.require(!c.qk_layernorm_of_projection || c.normalization == Normalization::kRmsNorm,
               "--qk-layernorm-of-projection needs --normalization RMSNorm; add it");
  if (!c.qk_layernorm_weight_per_head) return;
  list.require(!c.qk_layernorm_of_projection,
               "--qk-layernorm-weight-per-head contradicts --qk-layernorm-of-projection; remove "
               "one of them");
  list.require(!c.apply_layernorm_1p,
               "--qk-layernorm-weight-per-head does not go with --apply-layernorm-1p; remove one "
               "of them");
  list.require(!c.add_norm_bias || c.normalization == Normalization::kRmsNorm,
               "--qk-layernorm-weight-per-head is a norm without a bias; add --disable-norm-bias");
}

void check_multipliers(const TransformerConfig& c, ProblemList& list) {
  const auto positive = [&](double value, const char* flag) {
    list.require(value > 0, fmt::format("{} {} must be greater than 0", flag, value));
  };
  positive(c.residual_multiplier, "--residual-multiplier");
  positive(c.embedding_multiplier, "--embedding-multiplier");
  positive(c.logits_multiplier, "--logits-multiplier");
  list.require(c.final_logit_softcapping >= 0,
               fmt::format("--final-logit-softcapping {} must be at least 0; 0 is none",
                           c.final_logit_softcapping));
  list.require(!c.add_output_bias || c.untie_embeddings_and_output_weights,
               "--add-output-bias is of an output layer with its own weight; add "
               "--untie-embeddings-and-output-weights");
}

// Each number of a rotary scaling belongs to some types.
void check_rope_numbers(const RopeScaling& scaling, ProblemList& list) {
  using T = RopeScalingType;
  const RopeScaling unset;
  const auto needs = [&](bool is_set, const char* flag, std::initializer_list<T> types,
                         const char* names) {
    const bool has_type = std::find(types.begin(), types.end(), scaling.type) != types.end();
    list.require(!is_set || has_type,
                 fmt::format("{} has no effect without --rope-type {}; remove it", flag, names));
  };
  needs(scaling.low_freq_factor != unset.low_freq_factor, "--rope-low-freq-factor", {T::kLlama3},
        "llama3");
  needs(scaling.high_freq_factor != unset.high_freq_factor, "--rope-high-freq-factor", {T::kLlama3},
        "llama3");
  needs(scaling.attention_factor != 0, "--rope-attention-factor", {T::kYarn, T::kLongRope},
        "yarn or longrope");
  needs(!scaling.truncate, "--no-rope-truncate", {T::kYarn}, "yarn");
  needs(!scaling.short_factor.empty(), "--rope-short-factor", {T::kLongRope}, "longrope");
  needs(!scaling.long_factor.empty(), "--rope-long-factor", {T::kLongRope}, "longrope");
}

void check_positions(const TransformerConfig& c, ProblemList& list) {
  check_rope_numbers(c.rope_scaling, list);
  const bool rotates = c.position_embedding_type == PositionEmbedding::kRope;
  const auto layers = static_cast<int64_t>(c.no_rope_layers.size());
  list.require(layers == 0 || layers == c.num_layers,
               fmt::format("--no-rope-freq names {} layers, but --num-layers is {}; name each "
                           "layer, or give one number",
                           layers, c.num_layers));
  list.require(layers == 0 || rotates,
               "--no-rope-freq needs --position-embedding-type rope; add it or remove the flag");
  list.require(c.rotary_base_local == 0 || (rotates && c.rotary_base_local > 0),
               fmt::format("--rotary-base-local {} must be greater than 0, with "
                           "--position-embedding-type rope",
                           c.rotary_base_local));
  list.require(c.rotary_base_local == 0 || c.attention_window > 0,
               "--rotary-base-local is of layers with a window and needs --window-size; add it or "
               "remove the flag");
  list.require(
      c.learned_position_offset >= 0,
      fmt::format("--learned-position-offset {} must be at least 0", c.learned_position_offset));
  list.require(c.learned_position_offset == 0 ||
                   c.position_embedding_type == PositionEmbedding::kLearnedAbsolute,
               "--learned-position-offset needs --position-embedding-type learned_absolute; "
               "remove it");
  list.require(
      !c.alibi_before_scaling || c.position_embedding_type == PositionEmbedding::kAlibi,
      "--alibi-before-scaling needs --position-embedding-type alibi; add it or remove the flag");
}

void check_recomputation(const TransformerConfig& c, int64_t tp, ProblemList& list) {
  switch (c.recompute_granularity) {
    case RecomputeGranularity::kNone:
      list.require(
          c.recompute_method == RecomputeMethod::kNone,
          "--recompute-method needs --recompute-granularity full; add it or remove the method");
      break;
    case RecomputeGranularity::kSelective:
      list.require(
          c.recompute_method == RecomputeMethod::kNone,
          "--recompute-method has no meaning with --recompute-granularity selective; remove it");
      list.require(c.recompute_num_layers == 0,
                   "--recompute-num-layers has no meaning with --recompute-granularity selective; "
                   "remove it");
      list.require(!c.recompute_modules.empty(),
                   "--recompute-modules names no part of a layer; use core_attn, which recomputes "
                   "nothing");
      break;
    case RecomputeGranularity::kFull:
      list.require(c.recompute_method != RecomputeMethod::kNone,
                   "--recompute-granularity full needs --recompute-method uniform or block");
      list.require(c.recompute_num_layers > 0,
                   "--recompute-granularity full needs --recompute-num-layers of at least 1");
      break;
  }
  for (const std::string& module : c.recompute_modules) {
    list.require(std::ranges::find(kRecomputedModules, module) != kRecomputedModules.end(),
                 fmt::format("--recompute-modules {} is no part of a layer; use {}", module,
                             fmt::join(kRecomputedModules, ", ")));
  }
  list.require(c.multi_latent_attention || !c.recomputes("mla_up_proj"),
               "--recompute-modules mla_up_proj needs --multi-latent-attention; remove it");
  if (c.distribute_saved_activations) {
    list.require(tp > 1,
                 "--distribute-saved-activations needs --tensor-model-parallel-size above 1; "
                 "remove the flag");
    list.require(c.recompute_granularity == RecomputeGranularity::kFull,
                 "--distribute-saved-activations needs --recompute-granularity full");
  }
}

void check_offloading(const TransformerConfig& c, ProblemList& list) {
  const int64_t most = std::max(c.num_layers, c.decoder_num_layers);
  list.require(c.cpu_offloading_num_layers >= 0 && c.cpu_offloading_num_layers <= most,
               fmt::format("--cpu-offloading-num-layers {} must be between 0 and {}, the number of "
                           "layers",
                           c.cpu_offloading_num_layers, most));
  list.require(
      c.cpu_offloading_num_layers == 0 || c.recompute_granularity != RecomputeGranularity::kFull,
      "--cpu-offloading-num-layers and --recompute-granularity full exclude each other, "
      "because recomputed layers keep no activations; keep one, or use "
      "--checkpoint-in-cpu for their inputs");
  list.require(c.min_offloaded_tensor_size >= 0,
               fmt::format("--min-offloaded-tensor-size {} must be at least 0",
                           c.min_offloaded_tensor_size));
}

}  // namespace

std::vector<std::string> problems(const TransformerConfig& c, int64_t tp) {
  ProblemList list;
  check_limits(c, list);
  if (!list.found.empty()) return list.found;
  check_sizes(c, list);
  check_heads(c, tp, list);
  check_attention_options(c, tp, list);
  check_lengths(c, tp, list);
  check_adapters(c, tp, list);
  check_rotary(c, list);
  check_latent(c, list);
  check_multi_token(c, list);
  check_vocabulary(c, tp, list);
  check_numbers(c, list);
  check_gpt_options(c, list);
  check_norms(c, tp, list);
  check_multipliers(c, list);
  check_positions(c, list);
  check_recomputation(c, tp, list);
  check_offloading(c, list);
  if (c.fp8.is_on()) check_fp8(c, tp, list);
  for (std::string& problem : expert_problems(c)) list.require(false, std::move(problem));
  for (std::string& problem : retro_problems(c)) list.require(false, std::move(problem));
  return list.found;
}

}  // namespace megatron
