#pragma once

#include "megatron/kernels/activation.h"
#include "megatron/kernels/rotary.h"
#include "megatron/kernels/router.h"

// One token of one text through all layers of a decoder, on a GPU of compute capability 9.0.
namespace megatron::kernels {

// The parameters of a layer and its keys and values, in device memory; null: there is none.
struct DecodeTextLayer {
  const void* input_norm_weight;
  const void* input_norm_bias;
  const void* qkv_weight;  // [(heads + 2 groups) d, hidden], rows by group
  const void* qkv_bias;
  const void* q_norm_weight;  // [d]: norms of each query and key before rotation
  const void* q_norm_bias;
  const void* k_norm_weight;
  const void* k_norm_bias;
  const void* proj_weight;  // [hidden, heads d]
  const void* proj_bias;
  const void* mlp_norm_weight;
  const void* mlp_norm_bias;
  const void* router_weight;  // [experts, hidden]
  const float* expert_bias;   // [experts], added to the scores of the choice alone
  // With experts, these are those of all experts, one after the other, without biases.
  const void* fc1_weight;  // [ffn, hidden], twice the rows if the activation is gated
  const void* fc1_bias;
  const void* fc2_weight;  // [hidden, ffn]
  const void* fc2_bias;
  void* keys;  // [pages, page tokens, groups, d]
  void* values;
};

struct DecodeTextShape {
  DType dtype = DType::kBFloat16;  // fp16 | bf16, of everything but the rotary table
  int64_t layers = 0, hidden = 0, ffn = 0, heads = 0, groups = 0, d = 0, vocabulary = 0;
  // Experts of each layer, of which a router chooses topk; 0: the MLP is dense. `ffn` is the width
  // of an expert.
  int64_t experts = 0, topk = 0;
  RouterOptions router = {};
  bool rounds_router = false;  // its logits and weights, to the dtype
  bool weighs_input = false;   // the weight of an expert is a factor of its input, not its output
  Activation activation = Activation::kGeluTanh;
  bool is_rms_norm = false;
  bool one_plus_weight = false;  // every norm's weight is 1 + w
  float epsilon = 1e-5F;
  float scale = 1;  // factor of q . k
  int64_t page_tokens = 0;
};

struct DecodeText {
  DecodeTextShape shape;
  ConstView layers;  // [layers * sizeof(DecodeTextLayer)] bytes
  const void* final_norm_weight = nullptr;
  const void* final_norm_bias = nullptr;
  const void* head_weight = nullptr;  // [vocabulary, hidden]
  ConstView rotary_table = {};        // [positions, dim] fp32 (kernels/rotary.h); null: none
  RotaryPairs rotary_pairs = RotaryPairs::kHalves;
};

// The layers of a pre-norm decoder, its final norm and its logits, as one kernel:
//
//   x1 = x + attention(norm(x))    y = x1 + mlp(norm(x1))    logits = norm(y of the last) head^T
//
// mlp is dense, or the sum of the experts that route_tokens() chooses, as in expert_forward().
//
//   logits      [vocabulary]          out
//   x           [hidden]              in   the embedding of the text's last token
//   pages       [at least those of the text] int32, length [1] int32  in
//                                          as for paged_attention(); the token's key and value are
//                                          put into its page
//   max_length  length is not larger; how the sums of attention are divided depends on it
//   workspace   decode_text_workspace_bytes() bytes, zero before the first call
//
// Sums in fp32; norms, q, k, v, and the results of attention, activation and residual sums are
// rounded to the dtype. Calls with the same inputs give the same bits.
//
// Each multiprocessor has one block. A warp of it copies the block's rows of all weights, in the
// order of their use, into a ring in shared memory, as far ahead as there is room: also while
// blocks wait for each other. Two groups of warps multiply, each every second slot of the ring, and
// one more warp sums what they have and sends it to all blocks: the place of an element in the
// workspace is 0 until it has come (kernels/cuda/exchange.cuh). Its readers wait a while before
// they poll; calls search for the best wait and for the best number of weights to request at once
// (WaitSearch in kernels/cuda/decode_text_waits.h), and keep the results in the workspace.
void decode_text(TensorView logits, ConstView x, const DecodeText& text, ConstView pages,
                 ConstView length, int64_t max_length, TensorView workspace, Stream stream);
int64_t decode_text_workspace_bytes(const DecodeTextShape& shape);
// True if the device can run it: heads have 64 or 128 channels; a page has a power of two of
// tokens; hidden, ffn and heads d have a common divisor that is a multiple of 64 and not small
// beside hidden, which is at most 8192 (columns_of() in kernels/cuda/decode_text_division.h); at
// most 256 experts, of which 32 are chosen. A CPU cannot, nor a GPU whose blocks would need more
// shared memory than there is, or that has no code for compute capability 9.0.
bool has_decode_text(const DecodeTextShape& shape, Device device);

namespace cuda {
decltype(kernels::decode_text) decode_text;
decltype(kernels::decode_text_workspace_bytes) decode_text_workspace_bytes;
decltype(kernels::has_decode_text) has_decode_text;
}  // namespace cuda

}  // namespace megatron::kernels
