#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/nn/fp8_layer.h"

namespace megatron {

// Alignment of a rank's share of a bucket, in elements. Weights of products in FP8 are multiples of
// 256 on a GPU, so parts of them are matrices that kernels take, with rows of 128.
inline constexpr int64_t kFp8ShareUnit = 2048;

// Weights of FP8 layers that lie side by side, [0, size). Each of `ranks` updates an equal share of
// them, in rank order.
struct Fp8Bucket {
  struct Weight {
    const Fp8Layer* layer;
    int64_t begin;  // in the bucket
  };
  // A part of a weight that lies in this rank's share.
  struct Part {
    size_t weight;    // position in `weights`
    int64_t begin;    // in the bucket
    Tensor elements;  // [n] in the model's dtype, which updates change
  };
  int64_t size = 0;
  comm::Group ranks;
  std::vector<Weight> weights;
  std::vector<Part> parts;
};

// --fp8-param-gather: the weights of FP8 layers exist in FP8 alone, but for the share of each
// data-parallel rank, which it also has in the model's dtype. A rank rounds its share with the
// scales of whole weights, or of squares of them, which derive from the amax of all ranks, and
// all-gathers the weights with one byte per element. The bits equal those of weights that are
// gathered in the model's dtype and then rounded.
class Fp8Gather {
 public:
  // `buckets` hold the weights in reverse order of their use in the forward pass. With `overlaps`
  // gathers run beside the passes, and the first use of a weight waits for its bucket. The layers
  // must outlive it.
  Fp8Gather(std::vector<Fp8Bucket> buckets, bool overlaps, Stream stream);
  ~Fp8Gather();
  Fp8Gather(const Fp8Gather&) = delete;
  Fp8Gather& operator=(const Fp8Gather&) = delete;

  // To be called between an update of the shares and the next use of a weight. Every rank calls it.
  void start();

 private:
  struct Bucket {
    Fp8Bucket of;
    std::vector<int64_t> amax;  // positions of the weights' amax among those of all
    int64_t end_amax = 0;
    Tensor rows;  // [size] FP8: those of all weights; padding is zero
    bool is_complete = true;
    comm::Pending gathering;
  };

  void scale_weights();
  void reduce_amax(const Tensor& all) const;
  void complete(Bucket& bucket);

  const bool overlaps_;
  const Stream stream_;
  std::vector<Bucket> buckets_;
  int64_t num_amax_ = 0;  // of all weights
};

}  // namespace megatron
