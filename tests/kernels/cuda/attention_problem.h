#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/device/philox.h"
#include "megatron/kernels/attention.h"
#include "tests/kernels/cuda/twin.h"

// Attention on a GPU against attention on the CPU: through the entry point, which chooses between
// cuDNN and own kernels, and through the own kernels alone.
namespace megatron::attention_tests {

struct Problem {
  std::string name;
  int64_t sq = 0, sk = 0, b = 0, heads = 0, groups = 0, d = 0;
  float scale = 0;  // 0: 1 / sqrt(d)
  bool is_causal = false;
  int64_t query_offset = 0;
  int64_t key_offset = 0;
  bool is_fused = true;  // queries, keys and values in one projection, where sq == sk
  DType dtype = DType::kFloat32;
  DropoutKey dropout{};
  int64_t dropout_length = 0;
  int64_t first_head = 0;
  bool is_deterministic = false;
  Tensor document_starts{}, prefix_ends{}, key_padding_mask{};  // on the CPU
  Tensor alibi_slopes{}, relative_bias{}, sinks{};              // on the CPU
  int64_t window = 0;
  float logit_cap = 0;
  Tensor more_samples{};     // [1] int64 on the CPU, of dropout
  bool shares_keys = false;  // groups' sequences of queries lie one after the other, not fused
  int64_t nan_key = -1;      // whose channels are NaN, where keys are not fused with queries
};
std::string text_of(const Problem& p);

// Tensor cores read probabilities rounded to 16 bits, and backward the rounded output: the errors
// enter every sum at the size of its terms.
Tolerance on_tensor_cores(DType dtype);

// Inputs and outputs of attention, on one stream. For a fused projection q holds q, k and v.
struct Buffers {
  Tensor q, k, v, dout, out, lse, dq, dk, dv, dbias, dsinks;
};

Buffers buffers_of(const Problem& p, Stream stream);

// The heads of queries and of outputs.
template <class View, class Whole>
View queries_of(const Problem& p, Whole& x) {
  View view = kernels::heads_of(x.view(), p.heads);
  if (!p.shares_keys) return view;
  view.heads_per_group = p.heads / p.groups;
  view.stride_head = p.groups * p.d;
  return view;
}

template <class View, class Whole>
kernels::Qkv<View> qkv_of(const Problem& p, Whole& q, Whole& k, Whole& v) {
  if (p.is_fused) return kernels::split_qkv(q.view(), p.heads, p.groups);
  return {queries_of<View>(p, q), kernels::heads_of(k.view(), p.groups),
          kernels::heads_of(v.view(), p.groups)};
}

// Settings on a device, and what they borrow.
struct OnDevice {
  OnDevice(const Problem& p, Stream stream);
  Tensor starts, ends, mask, slopes, relative_bias, more_samples, sinks;
  kernels::AttentionSettings settings;
};

enum class Path { kChosen, kMath };

// Runs both passes and returns the results on the CPU.
Buffers run(const Problem& p, Stream stream, Path path);

// rounded: how many of the two read rounded probabilities and outputs.
void expect_results(const Problem& p, const Buffers& got, const Buffers& want,
                    const std::string& path, int rounded = 1);

class AttentionCudaTest : public CudaTest {
 protected:
  // Both paths against the CPU.
  void check(const Problem& p) const;

  bool is_served_by_cudnn(const Problem& p) const;

  // As check, and cuDNN must serve it: what training runs on.
  void check_cudnn(Problem p) const;
};

Problem self_attention(const std::string& name, int64_t s, int64_t b, int64_t heads, int64_t groups,
                       int64_t d, bool is_causal = true);

// Every sample has a prefix of its own, which may end anywhere in a tile, at the end, or beyond.
Tensor prefixes(const std::vector<int32_t>& of_samples, int64_t s);

}  // namespace megatron::attention_tests
