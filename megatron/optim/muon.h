#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "megatron/optim/config.h"
#include "megatron/optim/flat_parameters.h"

// Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon): a matrix moves along the
// orthogonal matrix that is nearest to its running mean of gradients, so that all singular values
// of the step are about equal.
//
// Compat: names, formulas and defaults are Megatron Core's. It orthogonalizes each rank's part:
// tensor-parallel ranks do not join their parts (there --muon-tp-mode blockwise). Data-parallel
// ranks that divide the optimizer's state (ZeRO) work on whole matrices (optim/shared_matrices.h).
namespace megatron {

// Approximates U V^T of x = U S V^T: each step maps a singular value s to a s + b s^3 + c s^5, with
// five sets of coefficients in turn that bring all of [0.001, 1] near 1.
//   x  [rows, cols]  fp32 or bf16, of a Frobenius norm up to 1
Tensor newton_schulz(Tensor x, int64_t steps);

// FLOPs of the products of newton_schulz().
double newton_schulz_flops(int64_t rows, int64_t cols, int64_t steps);

// The factor of an orthogonal [rows, cols].
double muon_scale(MuonScaleMode mode, int64_t rows, int64_t cols);

// A matrix of a flat buffer. Queries, keys and values are orthogonalized separately, and so are the
// experts of a layer.
struct MuonMatrix {
  struct Part {
    int64_t begin = 0;  // the first row in each group of rows
    int64_t rows = 0;   // of each group
    RangeTables whole;  // one range of all elements
  };
  size_t parameter = 0;  // position in FlatParameters::parameters()
  FlatSpan span;         // of the buffer
  int64_t groups = 1;
  int64_t group_rows = 0;
  int64_t cols = 0;
  std::vector<Part> parts;

  double flops(int64_t steps) const;
};
// The parameters of a buffer of matrices; tables are on `stream`.
std::vector<MuonMatrix> muon_matrices(const FlatBuffer& buffer,
                                      const std::vector<OptimizedParameter>& parameters,
                                      bool splits_qkv, Stream stream);

// Replaces a direction, the elements of a matrix in fp32, by the step along it: what is orthogonal,
// part by part, times its factor.
void make_orthogonal(const MuonMatrix& matrix, const Tensor& direction,
                     const OptimizerConfig& config);

}  // namespace megatron
