#include "megatron/kernels/cpu/onednn_matmul.h"

#include <fmt/format.h>

#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/kernels/cpu/workspace.h"

namespace megatron::kernels::cpu {
namespace {

using Desc = dnnl::memory::desc;
using Dims = dnnl::memory::dims;

dnnl::memory::data_type onednn_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return dnnl::memory::data_type::f32;
    case DType::kBFloat16:
      return dnnl::memory::data_type::bf16;
    default:
      break;
  }
  throw InternalError(fmt::format("onednn_matmul: dtype {}", name_of(dtype)));
}

struct Problem {
  int64_t m, n, k;
  Transpose transpose_a, transpose_b;
  DType in, out;
  bool has_bias;
  float beta;

  auto key() const {
    return std::tuple(m, n, k, transpose_a, transpose_b, in, out, has_bias, beta);
  }
  bool operator<(const Problem& other) const { return key() < other.key(); }
};

// A primitive and the descriptions of its operands.
struct Product {
  Desc a, b, c, bias, scratch;
  dnnl::matmul primitive;
};

Desc matrix(int64_t rows, int64_t cols, DType dtype, Transpose transpose) {
  const bool plain = transpose == Transpose::kNo;
  return {{rows, cols}, onednn_type(dtype), plain ? Dims{cols, 1} : Dims{1, rows}};
}

Product made(const Problem& p, const dnnl::engine& engine) {
  Product product{.a = matrix(p.m, p.k, p.in, p.transpose_a),
                  .b = matrix(p.k, p.n, p.in, p.transpose_b),
                  .c = matrix(p.m, p.n, p.out, Transpose::kNo),
                  .bias = p.has_bias ? matrix(1, p.n, p.in, Transpose::kNo) : Desc(),
                  .scratch = {},
                  .primitive = {}};
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (p.beta != 0) {
    dnnl::post_ops accumulate;
    accumulate.append_sum(p.beta);
    attributes.set_post_ops(accumulate);
  }
  const auto wanted = p.has_bias ? dnnl::matmul::desc(product.a, product.b, product.bias, product.c)
                                 : dnnl::matmul::desc(product.a, product.b, product.c);
  const dnnl::matmul::primitive_desc chosen(wanted, attributes, engine);
  product.scratch = chosen.scratchpad_desc();
  product.primitive = dnnl::matmul(chosen);
  return product;
}

// The engine and primitives of one thread. Training uses a few dozen shapes; generation with a
// growing cache could use any number, so a full table is cleared.
struct Handles {
  static constexpr size_t kMaxProducts = 512;

  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<Problem, Product> products;

  const Product& product(const Problem& problem) {
    const auto found = products.find(problem);
    if (found != products.end()) return found->second;
    if (products.size() >= kMaxProducts) products.clear();
    return products.emplace(problem, made(problem, engine)).first->second;
  }
};

Handles& handles_of_thread() {
  thread_local Handles handles;
  return handles;
}

dnnl::memory borrowed(const Desc& desc, const void* data, const dnnl::engine& engine) {
  return {desc, engine, const_cast<void*>(data)};
}

}  // namespace

void onednn_matmul(TensorView c, ConstView a, Transpose transpose_a, ConstView b,
                   Transpose transpose_b, ConstView bias, float beta, Stream stream) {
  const Problem problem{.m = c.size(0),
                        .n = c.size(1),
                        .k = a.size(transpose_a == Transpose::kNo ? 1 : 0),
                        .transpose_a = transpose_a,
                        .transpose_b = transpose_b,
                        .in = a.dtype,
                        .out = c.dtype,
                        .has_bias = bias.data != nullptr,
                        .beta = beta};
  try {
    Handles& handles = handles_of_thread();
    const Product& product = handles.product(problem);
    const Scratch scratch(static_cast<int64_t>(product.scratch.get_size()), stream);
    std::unordered_map<int, dnnl::memory> arguments{
        {DNNL_ARG_SRC, borrowed(product.a, a.data, handles.engine)},
        {DNNL_ARG_WEIGHTS, borrowed(product.b, b.data, handles.engine)},
        {DNNL_ARG_DST, borrowed(product.c, c.data, handles.engine)},
        {DNNL_ARG_SCRATCHPAD, borrowed(product.scratch, scratch.data(), handles.engine)}};
    if (problem.has_bias) {
      arguments.emplace(DNNL_ARG_BIAS, borrowed(product.bias, bias.data, handles.engine));
    }
    product.primitive.execute(handles.stream, arguments);
    handles.stream.wait();
  } catch (const dnnl::error& error) {
    throw DeviceError(fmt::format("oneDNN: matmul of [{}, {}] and [{}, {}] failed: {} (status {})",
                                  problem.m, problem.k, problem.k, problem.n, error.what(),
                                  static_cast<int>(error.status)));
  }
}

bool has_fast_bf16_products() {
#if defined(__x86_64__)
  const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
  const bool has_amx = isa == dnnl::cpu_isa::avx512_core_amx;
  return has_amx || (isa == dnnl::cpu_isa::avx512_core_bf16 && __builtin_cpu_is("amd") != 0);
#else
  return true;
#endif
}

}  // namespace megatron::kernels::cpu
