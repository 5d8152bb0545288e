#include "megatron/model.h"

#include "megatron/api/handles.h"
#include "megatron/inference/generate.h"
#include "megatron/run/loaded_model.h"

namespace megatron::api {

struct Model::State {
  LoadedModel loaded;
};

Model::Model(const std::string& directory, const World& world) {
  ModelChoice choice;
  choice.load = directory;
  state_ = std::make_unique<State>(State{load_model(choice, world.group())});
}
Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

std::vector<NamedTensor> Model::parameters() const {
  return parameters_of({state_->loaded.model.get()});
}

Tensor Model::logits(std::span<const int32_t> ids) const {
  return handle_of(next_token_logits(state_->loaded.inference(), ids));
}

std::vector<std::vector<int32_t>> Model::generate(std::span<const std::vector<int32_t>> prompts,
                                                  const GenerateOptions& options) const {
  megatron::GenerateOptions inner;
  inner.max_new_tokens = options.max_new_tokens;
  inner.sampling.temperature = options.temperature;
  inner.sampling.top_k = options.top_k;
  inner.sampling.top_p = options.top_p;
  inner.seed = options.seed;
  inner.vocab_size = state_->loaded.vocab_size;
  inner.stop_tokens = options.stop_tokens;
  std::vector<std::vector<int32_t>> texts;
  for (Generation& text : megatron::generate(state_->loaded.inference(), prompts, inner)) {
    texts.push_back(std::move(text.tokens));
  }
  return texts;
}

std::vector<int32_t> Model::encode(std::string_view text) const {
  return state_->loaded.required_tokenizer().encode(text);
}
std::string Model::decode(std::span<const int32_t> ids) const {
  return state_->loaded.required_tokenizer().decode(ids);
}

}  // namespace megatron::api
