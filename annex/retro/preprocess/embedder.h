#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace megatron::retro {

// Turns texts into vectors; similar texts have near vectors.
class Embedder {
 public:
  virtual ~Embedder() = default;

  virtual int64_t dimension() const = 0;
  // The vectors [n, dimension()] of n texts. Throws Error.
  virtual std::vector<float> embed(std::span<const std::string> texts) const = 0;
};

// Signed feature hashing (Weinberger et al. 2009, arXiv:0902.2206) of the words of a text and of
// the pairs of words beside each other, normalised to length 1: no trained model is needed. Words
// are runs of letters and digits, without regard to case; other bytes than ASCII are letters. A
// text without words is the zero vector.
std::unique_ptr<Embedder> make_hashed_embedder(int64_t dimension);

}  // namespace megatron::retro
