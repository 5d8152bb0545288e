#include "megatron/interchange/hf/families/list.h"
#include "megatron/interchange/hf/families/shared.h"
#include "megatron/interchange/hf/rope.h"

namespace megatron {
namespace {

// The k of a model whose every k-th layer is without rotary positions; 4 for others.
int64_t interval_of(const std::vector<int>& layers) {
  for (int64_t k = 1; k <= std::ssize(layers); ++k) {
    bool is_each = true;
    for (int64_t i = 0; i < std::ssize(layers); ++i) {
      is_each &= (layers[static_cast<size_t>(i)] != 0) == ((i + 1) % k == 0);
    }
    if (is_each) return k;
  }
  return 4;
}

// Fields have 1 for each layer with rotary positions, the setting 1 for each without.
void bind_no_rope_layers(HfBinding& f, TransformerConfig& c) {
  constexpr const char* kLayers = "no_rope_layers";
  f.bind(c.no_rope_layers);
  int64_t interval = f.reads() ? 4 : interval_of(c.no_rope_layers);
  f.size("no_rope_layer_interval", interval, interval);
  const auto count = static_cast<size_t>(c.num_layers);
  std::vector<int> rotates(count, 1);
  if (!f.reads()) {
    for (size_t i = 0; i < c.no_rope_layers.size() && i < count; ++i) {
      rotates[i] = 1 - c.no_rope_layers[i];
    }
    return f.write_sizes(kLayers, rotates);
  }
  const std::vector<double> stated = f.numbers(kLayers);
  if (!stated.empty() && stated.size() != count) {
    return f.unsupported(kLayers, "it must have a number for each layer");
  }
  for (size_t i = 0; i < count; ++i) {
    const bool is_last = (static_cast<int64_t>(i) + 1) % interval == 0;
    const bool has_rope = stated.empty() ? !is_last : stated[i] != 0.0;
    c.no_rope_layers.push_back(has_rope ? 0 : 1);
  }
}

void bind_smollm3(HfBinding& f, TransformerConfig& c) {
  bind_hf_llama_sizes(f, c, true);
  bind_hf_rope(f, c, {.default_theta = 2e6});
  bind_hf_llama_biases(f, c);
  bind_no_rope_layers(f, c);
  bind_hf_upper_windows(f, c);
}

NameTable smollm3_names(const TransformerConfig& /*config*/) { return hf_llama_names(); }

}  // namespace

const HfFamily kHfSmolLm3 = {.model_type = "smollm3",
                             .architecture = "SmolLM3ForCausalLM",
                             .bind = bind_smollm3,
                             .names = smollm3_names};

}  // namespace megatron
