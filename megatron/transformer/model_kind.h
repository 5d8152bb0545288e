#pragma once

#include <cstddef>
#include <string_view>

namespace megatron {

// A decoder that continues texts, an encoder that fills gaps in them, or both, which map one text
// to another.
enum class ModelKind { kGpt, kBert, kT5 };

// The facts of a kind of model that differ.
struct ModelFamily {
  ModelKind kind;
  std::string_view name;
  bool has_encoder;
  bool has_decoder;
  const char* training_command;
  const char* tokenizer_type;  // of training, unless the flags name another
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

// The kind with these stacks; a model without any is a decoder.
constexpr ModelKind kind_with(bool has_encoder, bool has_decoder) {
  for (const ModelFamily& family : kModelFamilies) {
    if (family.has_encoder == has_encoder && family.has_decoder == (has_decoder || !has_encoder)) {
      return family.kind;
    }
  }
  return {};
}

}  // namespace megatron
