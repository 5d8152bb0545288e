#pragma once

#include <cstddef>
#include <string_view>

namespace megatron {

// Decoder-only, encoder-only (masked tokens), or encoder-decoder.
enum class ModelKind { kGpt, kBert, kT5 };

// Properties that differ between kinds of models.
struct ModelFamily {
  ModelKind kind;
  std::string_view name;
  bool has_encoder;
  bool has_decoder;
  const char* training_command;
  const char* tokenizer_type;  // default of training
};
// In the order of ModelKind.
inline constexpr ModelFamily kModelFamilies[] = {
    {ModelKind::kGpt, "GPT", false, true, "pretrain-gpt", "GPT2BPETokenizer"},
    {ModelKind::kBert, "BERT", true, false, "pretrain-bert", "BertWordPieceLowerCase"},
    {ModelKind::kT5, "T5", true, true, "pretrain-t5", "BertWordPieceLowerCase"},
};

constexpr const ModelFamily& family_of(ModelKind kind) {
  return kModelFamilies[static_cast<size_t>(kind)];
}
constexpr std::string_view name_of(ModelKind kind) { return family_of(kind).name; }
constexpr bool has_encoder(ModelKind kind) { return family_of(kind).has_encoder; }
constexpr bool has_decoder(ModelKind kind) { return family_of(kind).has_decoder; }
constexpr bool is_encoder_decoder(ModelKind kind) { return has_encoder(kind) && has_decoder(kind); }
constexpr bool is_decoder_only(ModelKind kind) { return !has_encoder(kind); }
constexpr bool is_encoder_only(ModelKind kind) { return !has_decoder(kind); }

// The kind with these stacks; decoder-only if there is none.
constexpr ModelKind kind_with(bool has_encoder, bool has_decoder) {
  for (const ModelFamily& family : kModelFamilies) {
    if (family.has_encoder == has_encoder && family.has_decoder == (has_decoder || !has_encoder)) {
      return family.kind;
    }
  }
  return {};
}

}  // namespace megatron
