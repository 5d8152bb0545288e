#include <string>
#include <vector>

#include "megatron/settings/groups/groups.h"

namespace megatron {

void add_network_size_flags(FlagTable& flags, TrainingArgs& args) {
  using T = FlagType;
  TransformerConfig& c = args.transformer;
  ActivationFlags& activation = args.activation;
  ArgMap& other = args.other;

  flags.group("network size");
  flags
      .add_optional("--num-layers", c.num_layers,
                    "Number of transformer layers; for T5, of the encoder.")
      .architecture()
      .continued()
      .nickname({"--layers"})
      .required("--use-checkpoint-args");
  flags.add_optional("--encoder-num-layers", c.encoder_num_layers, "The same as --num-layers.")
      .becomes("num_layers");
  flags
      .add_optional("--decoder-num-layers", c.decoder_num_layers,
                    "Number of T5 decoder layers; that of the encoder if not given.")
      .not_zero()
      .architecture()
      .only_for({"T5"});
  flags.add_optional("--hidden-size", c.hidden_size, "Size of the hidden state.")
      .architecture()
      .continued()
      .required("--use-checkpoint-args");
  flags
      .add_optional("--ffn-hidden-size", c.ffn_hidden_size,
                    "Hidden size of the MLP; if not given, 4 * hidden size, or with --swiglu 2/3 "
                    "of that, rounded down to a multiple of 64.")
      .not_zero()
      .architecture();
  flags.add_optional("--num-attention-heads", c.num_attention_heads, "Number of attention heads.")
      .architecture()
      .continued()
      .nickname({"--heads", "--num-heads"})
      .required("--use-checkpoint-args");
  flags
      .add_optional("--kv-channels", c.kv_channels,
                    "Size of one attention head; hidden size / heads if not given.")
      .not_zero()
      .architecture();
  flags
      .add_switch("--group-query-attention", c.group_query_attention,
                  "Let heads share keys and values in --num-query-groups groups.")
      .architecture(FromCheckpoint::kAlways)
      .becomes("num_query_groups");
  flags
      .add("--num-query-groups", c.num_query_groups,
           "Groups of --group-query-attention; 1 is multi-query attention.")
      .architecture(FromCheckpoint::kAlways);
  flags
      .add_later_entry("--attention-head-type", T::kChoice, other, "multihead",
                       "multihead, or multiquery: all heads share keys and values, as with "
                       "--num-query-groups 1.")
      .among({"multihead", "multiquery"})
      .becomes("num_query_groups")
      .status = FlagStatus::kUsed;
  flags
      .add_optional("--max-position-embeddings", c.max_position_embeddings,
                    "Number of positions of the position embedding; at least the sequence length.")
      .architecture()
      .continued()
      .required("--use-checkpoint-args");
  using P = PositionEmbedding;
  flags
      .add_choice("--position-embedding-type", c.position_embedding_type,
                  {{"learned_absolute", P::kLearnedAbsolute},
                   {"rope", P::kRope},
                   {"alibi", P::kAlibi},
                   {"none", P::kNone},
                   {"relative", P::kRelative},
                   {"absolute", P::kLearnedAbsolute},
                   {"rotary", P::kRope}},
                  "Kind of position embedding.")
      .architecture(FromCheckpoint::kAlways);
  flags
      .add_switch("--use-rotary-position-embeddings", args.legacy.use_rotary_position_embeddings,
                  "The same as --position-embedding-type rope.")
      .architecture(FromCheckpoint::kAlways)
      .becomes("position_embedding_type");
  flags.add("--rotary-base", c.rotary_base, "Base of the rotary frequencies.")
      .prints(int64_t{10000})
      .architecture(FromCheckpoint::kAlways);
  flags.add("--rotary-percent", c.rotary_percent, "Fraction of a head's channels to rotate.")
      .architecture(FromCheckpoint::kAlways)
      .becomes("rotary_dim");
  flags
      .add_switch("--rotary-interleaved", c.rotary_interleaved,
                  "Rotate the channel pairs (2i, 2i+1) instead of (i, i + half).")
      .architecture(FromCheckpoint::kAlways);
  flags
      .add_optional("--rotary-seq-len-interpolation-factor", c.rotary_seq_len_interpolation_factor,
                    "Divide positions by this, for sequences longer than in training.")
      .architecture();
  flags
      .add_switch("--use-rope-scaling", c.use_rope_scaling,
                  "Scale the rotary frequencies as Llama 3 does.")
      .architecture();
  flags.add("--rope-scaling-factor", c.rope_scaling_factor, "Factor of --use-rope-scaling.")
      .architecture();
  RopeScaling& scaling = c.rope_scaling;
  flags
      .add("--rope-low-freq-factor", scaling.low_freq_factor,
           "Llama 3's rotary scaling divides frequencies that turn less often in the original "
           "length.")
      .architecture()
      .becomes("rope_scaling.low_freq_factor");
  flags
      .add("--rope-high-freq-factor", scaling.high_freq_factor,
           "Llama 3's rotary scaling keeps frequencies that turn more often in the original "
           "length.")
      .architecture()
      .becomes("rope_scaling.high_freq_factor");
  flags
      .add_optional("--rope-attention-factor", scaling.attention_factor,
                    "Factor of cosines and sines with YaRN or LongRoPE; that of the type's "
                    "formula if not given.")
      .not_zero()
      .architecture()
      .becomes("rope_scaling.attention_factor");
  flags
      .add_off("--no-rope-truncate -> rope_truncate", scaling.truncate,
               "YaRN's ramp need not begin and end at whole numbers, like GPT-OSS.")
      .architecture()
      .becomes("rope_scaling.truncate");
  flags
      .add("--rope-short-factor", scaling.short_factor,
           "LongRoPE's divisor of each frequency, up to the original length.")
      .architecture()
      .becomes("rope_scaling.short_factor");
  flags
      .add("--rope-long-factor", scaling.long_factor,
           "LongRoPE's divisor of each frequency, beyond the original length.")
      .architecture()
      .becomes("rope_scaling.long_factor");
  flags
      .add_optional("--rotary-base-local", c.rotary_base_local,
                    "Base of the rotary frequencies of layers with a window, without scaling, "
                    "like Gemma 3.")
      .not_zero()
      .architecture();
  flags
      .add("--no-rope-freq", c.no_rope_layers,
           "Layers without rotary positions: each N-th, or a list with 1 for each such layer, "
           "as in ([0]*3+[1])*2.")
      .architecture()
      .becomes("no_rope_layers");
  flags
      .add("--learned-position-offset", c.learned_position_offset,
           "Row of the position table of a text's first token; 2 for OPT.")
      .architecture();
  flags
      .add_switch("--alibi-before-scaling", c.alibi_before_scaling,
                  "Add the bias of --position-embedding-type alibi before scores are scaled, like "
                  "Falcon.")
      .architecture();
  flags
      .add("--relative-attention-num-buckets", c.relative_attention_num_buckets,
           "Buckets of --position-embedding-type relative.")
      .architecture()
      .only_for({"T5"});
  flags
      .add("--relative-attention-max-distance", c.relative_attention_max_distance,
           "Distance beyond which positions share the last bucket.")
      .architecture()
      .only_for({"T5"});
  flags
      .add_off("--no-position-embedding -> add_position_embedding",
               args.legacy.add_position_embedding,
               "No learned position table; needs another --position-embedding-type.")
      .architecture(FromCheckpoint::kAlways)
      .continued();
  flags
      .add("--make-vocab-size-divisible-by", c.make_vocab_size_divisible_by,
           "Pad the vocabulary to a multiple of this times the tensor parallel size.")
      .in_every_version();
  flags
      .add_optional("--pad-vocab-size-to,--padded-vocab-size", c.pad_vocab_size_to,
                    "Pad the vocabulary to exactly this size.")
      .not_zero()
      .becomes("padded_vocab_size")
      .continued();
  flags
      .add_choice("--normalization", c.normalization,
                  {{"LayerNorm", Normalization::kLayerNorm}, {"RMSNorm", Normalization::kRmsNorm}},
                  "Norm of the layers.")
      .architecture(FromCheckpoint::kAlways);
  flags.add("--norm-epsilon,--layernorm-epsilon", c.norm_epsilon, "Epsilon of the norms.")
      .architecture();
  flags
      .add_switch("--apply-layernorm-1p", c.apply_layernorm_1p, "Store the norms' weights minus 1.")
      .architecture(FromCheckpoint::kAlways);
  flags
      .add_off("--disable-norm-bias -> add_norm_bias", c.add_norm_bias,
               "LayerNorm without a bias, like MPT and Cohere.")
      .architecture();
  flags
      .add_choice("--norm-placement", c.norm_placement,
                  {{"before", NormPlacement::kBefore},
                   {"after", NormPlacement::kAfter},
                   {"both", NormPlacement::kBoth}},
                  "Norms before attention and MLP, after them like OLMo 2, or both like Gemma 2.")
      .architecture();
  flags
      .add_switch("--qk-layernorm", c.qk_layernorm,
                  "Normalize queries and keys of each head before rotation.")
      .architecture();
  flags
      .add_switch("--qk-layernorm-of-projection", c.qk_layernorm_of_projection,
                  "With --qk-layernorm, normalize the queries of all heads together, and the "
                  "keys, like OLMo 2.")
      .architecture();
  flags
      .add_switch("--qk-layernorm-weight-per-head", c.qk_layernorm_weight_per_head,
                  "With --qk-layernorm, give each head its own weight, like Cohere.")
      .architecture();
  flags
      .add_switch("--embed-layernorm", c.embed_layernorm,
                  "Apply LayerNorm to the word embeddings, like BLOOM.")
      .architecture();
  flags
      .add_switch("--parallel-residual", c.parallel_residual,
                  "Feed attention and MLP the same input and add their outputs, like GPT-NeoX.")
      .architecture();
  flags
      .add_switch("--parallel-residual-shares-norm", c.parallel_residual_shares_norm,
                  "With --parallel-residual, attention and MLP read one norm, like GPT-J.")
      .architecture();
  flags
      .add("--residual-multiplier", c.residual_multiplier,
           "Factor of the outputs of attention and MLP, like Granite.")
      .architecture();
  flags
      .add("--embedding-multiplier", c.embedding_multiplier,
           "Factor of the word embeddings, rounded to their precision, like Gemma.")
      .architecture();
  flags.add("--logits-multiplier", c.logits_multiplier, "Factor of the logits, like Cohere.")
      .architecture();
  flags
      .add("--final-logit-softcapping", c.final_logit_softcapping,
           "Cap c of the logits, which become c * tanh(logit / c), like Gemma 2; 0 is none.")
      .architecture();
  flags
      .add_switch("--add-output-bias", c.add_output_bias,
                  "With --untie-embeddings-and-output-weights, a bias of the logits, like GPT-J.")
      .architecture();
  flags
      .add_switch("--apply-residual-connection-post-layernorm",
                  c.apply_residual_connection_post_layernorm,
                  "Take the residual from the norm's output instead of its input.")
      .architecture();
  flags
      .add_switch("--openai-gelu", activation.openai_gelu,
                  "Use GELU in its tanh form, with or without fusion.")
      .architecture()
      .becomes("activation");
  flags.add_switch("--squared-relu", activation.squared_relu, "Use squared ReLU instead of GELU.")
      .architecture()
      .becomes("activation");
  flags.add_switch("--relu", activation.relu, "Use ReLU instead of GELU, as in T5 1.0.")
      .architecture()
      .becomes("activation");
  flags
      .add_switch("--swiglu", activation.swiglu,
                  "Use gated SiLU instead of GELU; the gate is the first half.")
      .architecture(FromCheckpoint::kAlways)
      .becomes("activation");
  flags
      .add_choice("--glu-activation", activation.glu_activation,
                  {{"geglu", GluActivation::kGeglu},
                   {"liglu", GluActivation::kLiglu},
                   {"reglu", GluActivation::kReglu},
                   {"swiglu", GluActivation::kSwiglu},
                   {"geglu_tanh", GluActivation::kGegluTanh},
                   {"geglu_tanh_first", GluActivation::kGegluTanhFirst}},
                  "Gated activation of BigScience's fork, whose gate is the second half; or "
                  "geglu_tanh_first, whose gate is the first, like Gemma.")
      .architecture()
      .becomes("activation");
  flags
      .add_switch("--quick-geglu", activation.quick_geglu,
                  "Use gated x * sigmoid(1.702 x); the gate is the first half.")
      .architecture()
      .becomes("activation");
  flags
      .add("--glu-linear-offset", activation.glu_linear_offset,
           "Added to the linear half of --quick-geglu: 1 with the clamp, like GPT-OSS.")
      .architecture()
      .becomes("activation");
  flags
      .add("--activation-func-clamp-value", activation.activation_func_clamp_value,
           "Largest value of both halves of --quick-geglu: 7, like GPT-OSS.")
      .none()
      .architecture()
      .becomes("activation");
  flags
      .add_bool("--onnx-safe", activation.onnx_safe,
                "Use GELU in its erf form with the constant 1.41421.")
      .none()
      .architecture()
      .becomes("activation");
  flags
      .add_off("--bert-no-binary-head -> bert_binary_head", c.bert_binary_head,
               "Build BERT without its next-sentence head.")
      .architecture()
      .only_for({"BERT"});
  flags
      .add_switch("--untie-embeddings-and-output-weights", c.untie_embeddings_and_output_weights,
                  "Give the output layer its own matrix.")
      .architecture(FromCheckpoint::kAlways);

  flags
      .add_off("--no-lm-head-bias -> add_lm_head_bias", c.add_lm_head_bias,
               "Omit the bias of the LM head with tied embeddings, as the published T5 models do.")
      .architecture()
      .only_for({"T5"});
  flags
      .add_switch("--scale-decoder-outputs", c.scale_decoder_outputs,
                  "Scale the decoder's output by hidden size^-0.5 before tied embeddings compute "
                  "logits, as in T5 1.0.")
      .architecture()
      .only_for({"T5"});
  flags
      .add_optional("--softmax-scale", c.softmax_scale,
                    "Scale of attention scores; 1 / sqrt(head size) if not given.")
      .architecture();

  flags
      .add_optional("--window-size", args.legacy.window_size,
                    "Tokens before and after its own that a token sees, such as 127,0.")
      .architecture()
      .becomes("attention_window");
  flags
      .add("--window-attn-skip-freq", c.window_layers,
           "Layers that attend beyond the window: each N-th, or a list with 1 for each layer that "
           "does not, as in ([1]*3+[0])*2.")
      .architecture()
      .becomes("window_layers");
  flags
      .add("--attn-logit-softcapping", c.attn_logit_softcapping,
           "Cap c of attention scores, which become c * tanh(score / c), like Gemma 2; 0 is none.")
      .architecture();
  flags
      .add_choice("--softmax-type", c.softmax_type,
                  {{"vanilla", SoftmaxType::kVanilla},
                   {"off-by-one", SoftmaxType::kOffByOne},
                   {"learnable", SoftmaxType::kLearnable}},
                  "Sinks of attention: the denominator of a softmax has one more term, exp(0), or "
                  "exp of a parameter of the head.")
      .architecture();
  flags
      .add_switch("--attention-output-gate", c.attention_output_gate,
                  "Multiply the outputs of attention heads by the sigmoid of a projection.")
      .architecture();
}

}  // namespace megatron
