#pragma once

#include <cstdint>

#include "megatron/transformer/config.h"

// Floating-point operations of one iteration: forward and backward (twice the forward) of a global
// batch, without recomputation. A multiply-add counts as two.
namespace megatron {

// The equivalent number of layers with full causal attention, by scores: a layer with a window of w
// s out of s tokens counts as w (2 - w).
double attention_layers(const TransformerConfig& config);

// Narayanan et al. 2021, arXiv:2104.04473, appendix, with query groups: attention over the full
// square, and an MLP of width 4 h, even if the config has another width. Megatron-LM core_r0.5.0
// logs this number.
//
//   60 B s L h^2 (1 + g / 5n + s / 5h + v / 10 L h)
double standard_flops(const TransformerConfig& config, int64_t batch_size);

// With the real widths of the MLP and of the heads, and half the square for causal attention.
// Megatron-LM reports this number since 0.6.
//
//   6 B s (L (h f e + h (q + 2k) + q h) + h v) + 6 B s^2 L q
//   q = n d, k = g d, e = 3 for a gated MLP, else 2
//
// The last L is attention_layers(). An output gate adds 6 B s L h q.
// Latent attention has attention_products(), and q is the mean width of its keys and values. A
// depth of multi-token prediction is one more layer, with 2 h^2 and one more head.
//
// A BERT has the whole square, and h^2 for each token in its LM head; a T5 has
// encoder_decoder_flops().
double causal_flops(const TransformerConfig& config, int64_t batch_size);

// Multiplications of a token in the linear layers of a layer's self-attention: h (q + 2k) + q h, or
// those of the projections down to latents and up again.
double attention_products(const TransformerConfig& config);

// The same in the MLPs of a mean layer, h f e, or in the experts that a token goes to.
double mlp_products(const TransformerConfig& config);

// The work of a token that selective recomputation repeats, of a mean layer.
struct RecomputedWork {
  double products = 0;    // multiplications
  double normed = 0;      // elements that norms read and write
  double activated = 0;   // elements that activations read and write
  double mlp_passes = 0;  // forward passes of MLPs, or of experts: 1 if every layer has one
};
RecomputedWork recomputed_work(const TransformerConfig& config);

// An encoder of num_layers and seq_length (s), and a decoder of decoder_num_layers (D) and
// decoder_seq_length (t) that attends to its output:
//
//   6 B s (L (h f e + 4 h q) + D 2 h q) + 6 B t (D (h f e + 6 h q) + h v)
//   + 12 B q (L s^2 + D (t^2 / 2 + t s))
double encoder_decoder_flops(const TransformerConfig& config, int64_t batch_size);

// The additional FLOPs of Retro for either number above, 0 for other models; neighbours of N = l k
// r tokens, D layers that attend to them, an encoder of L layers, chunks of m tokens:
//
//   6 B N L (h f e + 4 h q + 2 q r)
//   + 12 B q (h (N + l m) + N m) + 12 B q D (h (l m + N) + l m k r)
double neighbor_flops(const TransformerConfig& config, int64_t batch_size);

// 10^12 operations per second and device.
double tflops_per_device(double flops, double seconds, int64_t num_devices);

}  // namespace megatron
