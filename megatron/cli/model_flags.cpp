#include "megatron/cli/model_flags.h"

#include <cstdlib>
#include <memory>
#include <utility>

#include "megatron/cli/launcher_settings.h"
#include "megatron/cli/text_flags.h"
#include "megatron/settings/tokenizer_flags.h"

namespace megatron::cli {

void add_model_type(FlagTable& table, ModelKind& kind, std::string help) {
  table.add_choice("--model-type", kind,
                   {{"GPT", ModelKind::kGpt}, {"BERT", ModelKind::kBert}, {"T5", ModelKind::kT5}},
                   std::move(help));
}

void add_inference_weights(FlagTable& table, InferenceWeights& weights) {
  table.add_choice("--inference-weights", weights,
                   {{"model", InferenceWeights::kModel},
                    {"int8", InferenceWeights::kInt8},
                    {"fp8", InferenceWeights::kFp8}},
                   "Quantization of linear layers: none (model); weights in int8 with a scale for "
                   "each row (int8, for the CPU); or weights and inputs in E4M3 with a scale for "
                   "each row (fp8, for GPUs of compute capability 9.0; slow on the CPU).");
}

void add_kv_cache_dtype(FlagTable& table, KvCacheType& type) {
  table.add_choice("--kv-cache-dtype", type,
                   {{"auto", KvCacheType::kModel}, {"fp8", KvCacheType::kFp8}},
                   "Keys and values of earlier tokens: as the model has them, or rounded to E4M3 "
                   "with a scale for each head of a token, in about half the memory.");
}

void add_model_flags(FlagTable& table, ModelFlags& flags) {
  apply_launcher_degrees(flags.parallel);
  table.group("model");
  table
      .add_optional("--load", flags.load,
                    "Checkpoint of any format, or a Hugging Face model: a directory, or, of "
                    "Megatron-LM, a file or a .zip archive.")
      .required();
  table.add_optional("--ckpt-step", flags.ckpt_step, "Iteration to load instead of the latest.");
  table.add_optional("--num-attention-heads", flags.num_attention_heads,
                     "Attention heads of a checkpoint without stored settings.");
  table.add_optional("--num-threads", flags.num_threads, "Threads of CPU kernels.")
      .not_zero()
      .at_most(kMaxThreads);
  table.add_choice(
      "--device", flags.device,
      {{"auto", DeviceChoice::kAuto}, {"cpu", DeviceChoice::kCpu}, {"cuda", DeviceChoice::kCuda}},
      "Device of the computation; auto: a GPU if there is one.");
  add_inference_weights(table, flags.weights);
  table.group("parallel");
  table.add("--tensor-model-parallel-size", flags.parallel.tensor_model_parallel_size,
            "Tensor-parallel size, under megatron launch; may differ from training. accelerate "
            "launch takes both sizes from its configuration.");
  table.add("--pipeline-model-parallel-size", flags.parallel.pipeline_model_parallel_size,
            "Number of pipeline stages; may differ from training.");
  table.add_optional("--decoder-first-pipeline-num-layers",
                     flags.parallel.decoder_first_pipeline_num_layers,
                     "Layers of the first stage.");
  table.add_optional("--decoder-last-pipeline-num-layers",
                     flags.parallel.decoder_last_pipeline_num_layers, "Layers of the last stage.");
  table.add_optional("--pipeline-model-parallel-split-rank",
                     flags.parallel.pipeline_model_parallel_split_rank,
                     "First stage of a T5's decoder; earlier stages have its encoder.");
  table.add("--expert-model-parallel-size", flags.parallel.expert_model_parallel_size,
            "Tensor-parallel ranks that have different experts of a layer.");
  table
      .add_optional("--expert-tensor-parallel-size", flags.parallel.expert_tensor_parallel_size,
                    "Tensor-parallel ranks that share each expert; the rest of them if not given.")
      .not_zero();
  table.add("--context-parallel-size", flags.parallel.context_parallel_size,
            "Must be 1: generation has no context parallelism.");
  table.add_entry("--sequence-parallel", FlagType::kSwitch, flags.without_effect, false,
                  "Not needed: sequences of any length are generated.");
  table.add_entry("--use-checkpoint-args", FlagType::kSwitch, flags.without_effect, false,
                  "Not needed: the checkpoint always defines the model.");
  table.group("tokenizer");
  add_tokenizer_flags(table, flags.tokenizer);
}

std::optional<LoadedModel> load_draft_model(DraftOptions& drafts, const ModelFlags& model,
                                            const comm::Group& world) {
  if (!has_draft_model(drafts)) return std::nullopt;
  ModelChoice choice = model;
  choice.load = drafts.speculative_model;
  choice.ckpt_step = choice.num_attention_heads = 0;
  choice.tokenizer = {};
  LoadedModel loaded = load_model(choice, world);
  drafts.draft_model = std::make_shared<const InferenceModel>(loaded.inference());
  return loaded;
}

}  // namespace megatron::cli
