#include "megatron/cli/model_flags.h"

#include <utility>

#include <cstdlib>

#include "megatron/cli/launcher_settings.h"
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
                   "Weights of linear layers: as the model has them, or rounded to 8 bits with a "
                   "scale for each row: to whole numbers (int8, for the CPU), or, with the layers' "
                   "inputs, to E4M3 (fp8, for GPUs of compute capability 9.0; slow on the CPU).");
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
  table.add_optional(
      "--load", flags.load,
      "Checkpoint of any format or a Hugging Face model: a directory; of Megatron-LM also a "
      "file or a .zip archive.");
  table.add_optional("--ckpt-step", flags.ckpt_step, "Iteration to load instead of the latest.");
  table.add_optional("--num-attention-heads", flags.num_attention_heads,
                     "Of a checkpoint that stores no settings: its tensors do not show them.");
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
            "Ranks that share each layer, under megatron launch; may differ from training. Under "
            "accelerate launch its configuration says both sizes.");
  table.add("--pipeline-model-parallel-size", flags.parallel.pipeline_model_parallel_size,
            "Stages that the layers are divided into; may differ from training.");
  table.add_optional("--decoder-first-pipeline-num-layers",
                     flags.parallel.decoder_first_pipeline_num_layers,
                     "Layers of the first stage.");
  table.add_optional("--decoder-last-pipeline-num-layers",
                     flags.parallel.decoder_last_pipeline_num_layers, "Layers of the last stage.");
  table.add_optional("--pipeline-model-parallel-split-rank",
                     flags.parallel.pipeline_model_parallel_split_rank,
                     "The first stage of a T5's decoder; the stages before it have its encoder.");
  table.add("--context-parallel-size", flags.parallel.context_parallel_size,
            "Only 1: generation does not divide sequences.");
  table.add_entry("--sequence-parallel", FlagType::kSwitch, flags.without_effect, false,
                  "Not needed: sequences of any length are generated.");
  table.add_entry("--use-checkpoint-args", FlagType::kSwitch, flags.without_effect, false,
                  "Not needed: the checkpoint always defines the model.");
  table.group("tokenizer");
  add_tokenizer_flags(table, flags.tokenizer);
}

}  // namespace megatron::cli
