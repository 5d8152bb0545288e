#include "megatron/model.h"

#include <fmt/format.h>

#include <optional>

#include "megatron/api/handles.h"
#include "megatron/checkpoint/chunks.h"
#include "megatron/core/error.h"
#include "megatron/inference/generate.h"
#include "megatron/interchange/checkpoint_source.h"
#include "megatron/interchange/hf/adapters.h"
#include "megatron/interchange/hf/folder.h"
#include "megatron/interchange/save_contents.h"
#include "megatron/interchange/source_settings.h"
#include "megatron/kernels/elementwise.h"
#include "megatron/run/loaded_model.h"

namespace megatron::api {
namespace {

ModelChoice choice_of(const std::string& directory, const ModelOptions& options) {
  ModelChoice choice;
  choice.load = directory;
  while (choice.load.size() > 1 && choice.load.ends_with('/')) choice.load.pop_back();
  choice.ckpt_step = options.iteration;
  choice.num_threads = options.num_threads;
  choice.parallel.tensor_model_parallel_size = options.tensor_parallel_size;
  choice.parallel.pipeline_model_parallel_size = options.pipeline_parallel_size;
  const auto refuse = [](const char* name, const std::string& value, const char* known) {
    throw ConfigError(fmt::format("{} {} is not known; use {}", name, value, known));
  };
  if (options.device == "cpu") {
    choice.device = DeviceChoice::kCpu;
  } else if (options.device == "cuda") {
    choice.device = DeviceChoice::kCuda;
  } else if (options.device != "auto") {
    refuse("device", options.device, "auto, cpu or cuda");
  }
  if (options.weights == "fp8") {
    choice.weights = InferenceWeights::kFp8;
  } else if (options.weights == "int8") {
    choice.weights = InferenceWeights::kInt8;
  } else if (options.weights != "model") {
    refuse("weights", options.weights, "model, fp8 or int8");
  }
  return choice;
}

}  // namespace

struct Model::State {
  // Throws Unsupported for another kind of model.
  InferenceModel gpt(const char* what) const {
    if (is_decoder_only(loaded.kind)) return loaded.inference();
    throw Unsupported(
        fmt::format("{}: is for a GPT, and this is a {}", what, name_of(loaded.kind)));
  }
  void expect_whole(const char* what) const {
    if (loaded.parallel.model.size() == 1) return;
    throw Unsupported(
        fmt::format("{}: this rank has a part of the model; load it on one rank, or "
                    "use a Trainer",
                    what));
  }

  ModelChoice choice;
  LoadedModel loaded;
  Variable logits = {};  // of the last forward()
};

Model::Model(const std::string& directory, const World& world)
    : Model(directory, ModelOptions(), world) {}
Model::Model(const std::string& directory, const ModelOptions& options, const World& world) {
  const ModelChoice choice = choice_of(directory, options);
  state_ = std::make_unique<State>(State{choice, load_model(choice, world.group(), any_kind)});
}
Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

const std::string& Model::directory() const { return state_->choice.load; }
ModelKind Model::kind() const { return state_->loaded.kind; }
int64_t Model::vocab_size() const { return state_->loaded.vocab_size; }
int64_t Model::max_positions() const {
  return state_->loaded.model->config().max_position_embeddings;
}
const LoadedModel& Model::loaded() const { return state_->loaded; }
std::vector<int32_t> Model::end_tokens() const { return state_->loaded.end_tokens; }

std::vector<NamedTensor> Model::parameters() const {
  return parameters_of({state_->loaded.model.get()});
}

void Model::save(const std::string& directory, ModelFormat format) const {
  state_->expect_whole("save");
  const CheckpointSource source = find_source(state_->choice.load, state_->choice.ckpt_step, true,
                                              LoadFormat::kAuto, Parts::kWeights);
  CheckpointContents contents = source.contents();
  const bool is_adapted = has_adapters(contents);
  CheckpointState state;
  state.model = chunks_of(*state_->loaded.model);
  contents.sections = contents_of(state).sections;
  contents.hashes = {};
  join_pieces(contents);
  if (is_adapted) {
    merge_adapters(contents, described_run(source.format(), contents).transformer);
    contents.args["lora_rank"] = int64_t{0};
  }
  const TrainingArgs run = described_run(source.format(), contents);
  if (format == ModelFormat::kHuggingFace) {
    return write_hf_folder(
        directory, contents, run.transformer,
        {.vocab_size = true_vocab_size(contents.args), .tokenizer = tokenizer_folder_of(source)});
  }
  const DType dtype = state_->loaded.model->config().params_dtype;
  contents.args = native_args(run, contents.args, dtype);
  save_contents(directory, contents, SaveFormat::kNative, {}, run.transformer);
}

Tensor Model::forward(std::span<const int64_t> ids, int64_t b) {
  const GptModel& gpt = *state_->gpt("forward").gpt;
  state_->expect_whole("forward");
  const auto count = std::ssize(ids);
  if (b < 1 || count < b || count % b != 0) {
    throw ShapeError(fmt::format("forward: {} ids are not {} texts of one length", count, b));
  }
  if (count / b > max_positions()) {
    throw ShapeError(
        fmt::format("forward: a text of {} ids is longer than the model's {} positions", count / b,
                    max_positions()));
  }
  state_->logits = {};
  ModelInput input;
  input.tokens =
      prepared_ids(tensor_of(ids, {b, count / b}), gpt.config().padded_vocab_size, "token id")
          .to(gpt.stream());
  RandomState random(0);
  random.set_training(false);
  state_->logits = gpt.logits(gpt.hidden_states(input, random));
  return handle_of(state_->logits.data());
}

void Model::backward(const Tensor& gradient) {
  if (!state_->logits.defined()) throw Error("backward: there was no forward() before it");
  const Variable logits = std::exchange(state_->logits, {});
  const megatron::Tensor& values = logits.data();
  if (!std::ranges::equal(gradient.shape, values.shape().dims())) {
    throw ShapeError("backward: the gradient has another shape than the logits");
  }
  if (gradient.dtype != DType::kFloat32 && gradient.dtype != values.dtype()) {
    throw DtypeError(fmt::format("backward: the gradient is {}: make it float32 or {}",
                                 name_of(gradient.dtype), name_of(values.dtype())));
  }
  if ((gradient.device < 0) != values.stream().is_cpu()) {
    throw DeviceError("backward: the gradient is on another device than the model");
  }
  megatron::Tensor dy = empty_like(values);
  kernels::cast(dy.view(), {gradient.data, values.shape(), gradient.dtype}, dy.stream());
  megatron::backward(logits, dy);
  synchronize(dy.stream());
}

std::vector<NamedTensor> Model::gradients() const {
  std::vector<NamedTensor> gradients;
  for (const Parameter& parameter : named_parameters(*state_->loaded.model)) {
    const megatron::Tensor& gradient = parameter.variable.grad();
    if (gradient.defined()) gradients.push_back({parameter.name, handle_of(gradient)});
  }
  return gradients;
}

void Model::clear_gradients() {
  for (Parameter& parameter : named_parameters(*state_->loaded.model)) {
    parameter.variable.clear_grad();
  }
}

Tensor Model::logits(std::span<const int32_t> ids) const {
  return handle_of(next_token_logits(state_->gpt("logits"), ids));
}

std::vector<double> Model::log_probabilities(std::span<const int32_t> ids) const {
  return score(state_->gpt("log_probabilities"), ids).log_probabilities;
}

std::vector<std::vector<int32_t>> continued(const InferenceModel& model,
                                            std::span<const std::vector<int32_t>> prompts,
                                            const GenerateOptions& options, int64_t vocab_size) {
  megatron::GenerateOptions inner;
  inner.max_new_tokens = options.max_new_tokens;
  inner.sampling.temperature = options.temperature;
  inner.sampling.top_k = options.top_k;
  inner.sampling.top_p = options.top_p;
  inner.seed = options.seed;
  inner.vocab_size = vocab_size;
  inner.stop_tokens = options.stop_tokens;
  std::vector<std::vector<int32_t>> texts;
  for (Generation& text : megatron::generate(model, prompts, inner)) {
    texts.push_back(std::move(text.tokens));
  }
  return texts;
}

std::vector<std::vector<int32_t>> Model::generate(std::span<const std::vector<int32_t>> prompts,
                                                  const GenerateOptions& options) const {
  return continued(state_->gpt("generate"), prompts, options, state_->loaded.vocab_size);
}

std::vector<int32_t> Model::encode(std::string_view text) const {
  return state_->loaded.required_tokenizer().encode(text);
}
std::string Model::decode(std::span<const int32_t> ids) const {
  return state_->loaded.required_tokenizer().decode(ids);
}

}  // namespace megatron::api
