#include <map>
#include <string>

#include "megatron/models/gpt/gpt_model.h"
#include "megatron/models/gpt/gpt_task.h"
#include "megatron/parallel/pipeline/executor.h"
#include "tests/support/tensors.h"
#include "tests/transformer/layer_with_loss.h"

// Auxiliary losses of layers in a training step, of a whole model and of the chunks of a pipeline.
namespace megatron {
namespace {

constexpr int64_t kSampleTokens = 6;
constexpr int64_t kSamples = 2;
constexpr int64_t kVocabularyRows = 32;

class GptWithLosses final : public GptModel {
 public:
  GptWithLosses(const TransformerConfig& config, const ModelChunk& chunk, Stream stream)
      : GptModel(config, chunk, {}, stream, {}, make_layer_with_loss) {}
};

RunConfig run_with_losses() {
  RunConfig run;
  TransformerConfig& c = run.transformer;
  c.num_layers = 2;
  c.hidden_size = 8;
  c.num_attention_heads = 2;
  c.seq_length = c.max_position_embeddings = kSampleTokens;
  c.padded_vocab_size = kVocabularyRows;
  c.untie_embeddings_and_output_weights = true;
  c.init_method_std = 0.3;
  c = resolved(c);
  run.training.micro_batch_size = kSamples;
  return run;
}

// A GPT task on one rank, whose model is cut into chunks of so many layers.
class TaskWithLosses final : public GptTask {
 public:
  explicit TaskWithLosses(int64_t layers_of_chunk)
      : GptTask(run_with_losses(), nullptr), layers_of_chunk_(layers_of_chunk) {}

 protected:
  std::vector<std::unique_ptr<const Model>> make_chunks(const ModelSite& site) const override {
    const TransformerConfig& c = config().transformer;
    std::vector<std::unique_ptr<const Model>> chunks;
    for (int64_t first = 0; first < c.num_layers; first += layers_of_chunk_) {
      const ModelChunk chunk = {.first_layer = first,
                                .num_layers = layers_of_chunk_,
                                .has_embedding = first == 0,
                                .has_head = first + layers_of_chunk_ == c.num_layers};
      chunks.push_back(std::make_unique<const GptWithLosses>(c, chunk, site.stream));
    }
    return chunks;
  }

 private:
  int64_t layers_of_chunk_;
};

TextMicrobatch some_samples() {
  const Shape shape = {kSamples, kSampleTokens};
  TextMicrobatch batch;
  batch.input.tokens =
      prepared_ids(random_ids(shape, kVocabularyRows, 1), kVocabularyRows, "token id");
  batch.targets.labels = random_ids(shape, kVocabularyRows, 2);
  batch.targets.loss_mask = full(shape, 1, DType::kFloat32, Stream{});
  return batch;
}

// The losses of a microbatch by chunk, and the gradients of all parameters.
struct TrainingStep {
  std::vector<std::vector<float>> losses;
  std::map<std::string, Tensor> gradients;

  explicit TrainingStep(int64_t layers_of_chunk) {
    TaskWithLosses task(layers_of_chunk);
    const ParallelContext parallel;
    RandomState random(5);
    const std::vector<const Module*> chunks =
        task.build_model({.parallel = parallel, .stream = Stream{}, .random = random});
    for (const Module* const chunk : chunks) initialize(*chunk, 3);
    std::vector<Variable> received;  // by chunk, from the one before
    std::vector<ChunkOutput> outputs;
    for (int64_t chunk = 0; chunk < std::ssize(chunks); ++chunk) {
      Activations from_before;
      if (chunk > 0) {
        received.push_back(Variable::leaf(outputs.back().activations[0].data()));
        from_before = {received.back()};
      }
      MicrobatchOutput output =
          task.forward_step(Split::kTrain, chunk, some_samples(), from_before);
      losses.emplace_back();
      for (const Variable& loss : output.losses) {
        losses.back().push_back(static_cast<float>(element(loss.data(), 0)));
      }
      outputs.push_back({std::move(output.activations), std::move(output.losses)});
    }
    const Tensor seed = full({}, 1, DType::kFloat32, Stream{});
    for (int64_t chunk = std::ssize(chunks) - 1; chunk >= 0; --chunk) {
      const auto at = static_cast<size_t>(chunk);
      run_backward(outputs[at], at < received.size() ? Grads{received[at].grad()} : Grads{}, seed);
    }
    for (const Module* const chunk : chunks) {
      for (const Parameter& parameter : named_parameters(*chunk)) {
        gradients[parameter.name] = parameter.variable.grad();
      }
    }
  }
};

TEST(AuxiliaryLossTaskTest, ChunksOfAPipelineTrainAsTheWholeModel) {
  const TrainingStep whole(2);
  ASSERT_EQ(whole.losses.size(), 1U);
  ASSERT_EQ(whole.losses[0].size(), 3U) << "the model's, and one of each layer";
  const TrainingStep cut(1);
  ASSERT_EQ(cut.losses.size(), 2U);
  EXPECT_EQ(cut.losses[0], std::vector{whole.losses[0][1]});
  EXPECT_EQ(cut.losses[1], (std::vector{whole.losses[0][0], whole.losses[0][2]}));
  ASSERT_EQ(cut.gradients.size(), whole.gradients.size());
  for (const auto& [name, gradient] : whole.gradients) {
    ASSERT_TRUE(gradient.defined()) << name;
    expect_close(cut.gradients.at(name), gradient, Tolerance{1e-5, 1e-6}, name);
  }
  // The loss of the second layer alone reads its gate.
  EXPECT_GT(largest(whole.gradients.at("decoder.layers.1.mlp.gate")), 0);
}

}  // namespace
}  // namespace megatron
