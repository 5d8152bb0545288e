#include "megatron/interchange/hf/rope.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

namespace megatron {
namespace {

using nlohmann::json;

// The constants of Llama 3's frequency scaling that Megatron-LM fixes.
constexpr double kRopeLowFactor = 1.0;
constexpr double kRopeHighFactor = 4.0;
constexpr int64_t kRopeOriginalLength = 8192;

struct TypeName {
  const char* name;
  RopeScalingType type;
};
constexpr TypeName kTypes[] = {
    {"default", RopeScalingType::kNone},    {"linear", RopeScalingType::kLinear},
    {"llama3", RopeScalingType::kLlama3},   {"yarn", RopeScalingType::kYarn},
    {"dynamic", RopeScalingType::kDynamic}, {"longrope", RopeScalingType::kLongRope},
    {"su", RopeScalingType::kLongRope},
};

void read_linear(TransformerConfig& config) {
  const double factor = config.rope_scaling.factor;
  if (factor != std::floor(factor) || factor < 1 || factor > static_cast<double>(kMaxHfSize)) {
    return;
  }
  config.rope_scaling = {};  // Megatron's factor is a whole number
  config.rotary_seq_len_interpolation_factor = static_cast<int64_t>(factor);
}

void read_llama3(HfBinding& rope, TransformerConfig& config) {
  RopeScaling& scaling = config.rope_scaling;
  scaling.low_freq_factor = rope.number_of("low_freq_factor", kRopeLowFactor);
  scaling.high_freq_factor = rope.number_of("high_freq_factor", kRopeHighFactor);
  // Compat: as transformers 5.24, whose default is the model's own length.
  scaling.original_max_position_embeddings =
      rope.size_of("original_max_position_embeddings", config.max_position_embeddings);
  if (scaling.low_freq_factor != kRopeLowFactor || scaling.high_freq_factor != kRopeHighFactor ||
      scaling.original_max_position_embeddings != kRopeOriginalLength) {
    return;
  }
  config.use_rope_scaling = true;
  config.rope_scaling_factor = scaling.factor;
  scaling = {};
}

void read_yarn(HfBinding& rope, RopeScaling& scaling) {
  scaling.beta_fast = rope.number_of("beta_fast", scaling.beta_fast);
  scaling.beta_slow = rope.number_of("beta_slow", scaling.beta_slow);
  scaling.attention_factor = rope.number_of("attention_factor", 0.0);
  rope.flag("truncate", scaling.truncate, true);
  const double mscale = rope.number_of("mscale", 0.0);
  const double of_all = rope.number_of("mscale_all_dim", 0.0);
  if (mscale == 0.0 || of_all == 0.0) return;  // Compat: as transformers 5.24, one alone is unused
  scaling.mscale = mscale;
  scaling.mscale_all_dim = of_all;
}

// The object of rotary positions; `name` is that of its field.
void read_rope(HfBinding& rope, HfBinding& fields, const char* name, TransformerConfig& config) {
  config.rotary_base = rope.positive_of("rope_theta", config.rotary_base);
  config.rotary_percent = rope.number_of("partial_rotary_factor", config.rotary_percent);
  const std::string older = rope.text_of("type", "default");
  const std::string type = rope.text_of("rope_type", older.c_str());
  RopeScaling& scaling = config.rope_scaling;
  std::string known;
  bool is_known = false;
  for (const TypeName& row : kTypes) {
    known += (known.empty() ? "" : ", ") + std::string(row.name);
    if (type != row.name) continue;
    scaling.type = row.type;
    is_known = true;
  }
  if (!is_known) return fields.unsupported(name, "rope types that can be read are " + known);
  if (scaling.type == RopeScalingType::kNone) return;
  const int64_t original =
      fields.size_of("original_max_position_embeddings", config.max_position_embeddings);
  scaling.original_max_position_embeddings =
      rope.size_of("original_max_position_embeddings", original);
  const double ratio = static_cast<double>(config.max_position_embeddings) /
                       static_cast<double>(scaling.original_max_position_embeddings);
  const bool is_long = scaling.type == RopeScalingType::kLongRope;
  scaling.factor = is_long ? rope.number_of("factor", ratio) : rope.required_number("factor");
  if (scaling.factor <= 0.0) {
    return fields.unsupported(name, "the factor of rope scaling must be above 0");
  }
  switch (scaling.type) {
    case RopeScalingType::kLinear:
      return read_linear(config);
    case RopeScalingType::kLlama3:
      return read_llama3(rope, config);
    case RopeScalingType::kYarn:
      return read_yarn(rope, scaling);
    case RopeScalingType::kLongRope:
      scaling.attention_factor = rope.number_of("attention_factor", 0.0);
      scaling.short_factor = rope.numbers("short_factor");
      scaling.long_factor = rope.numbers("long_factor");
      return;
    case RopeScalingType::kDynamic:
    case RopeScalingType::kNone:
      return;
  }
}

json rope_object(const TransformerConfig& config) {
  json rope = {{"rope_type", "default"}, {"rope_theta", config.rotary_base}};
  if (config.rotary_percent != 1.0) rope["partial_rotary_factor"] = config.rotary_percent;
  RopeScaling scaling = config.rope_scaling;
  if (config.use_rope_scaling) {
    scaling = {.type = RopeScalingType::kLlama3,
               .factor = config.rope_scaling_factor,
               .original_max_position_embeddings = kRopeOriginalLength,
               .low_freq_factor = kRopeLowFactor,
               .high_freq_factor = kRopeHighFactor,
               .short_factor = {},
               .long_factor = {}};
  } else if (config.rotary_seq_len_interpolation_factor != 1) {
    rope["rope_type"] = "linear";
    rope["factor"] = config.rotary_seq_len_interpolation_factor;
  }
  if (scaling.type == RopeScalingType::kNone) return rope;
  for (const TypeName& row : kTypes) {
    if (row.type != scaling.type) continue;
    rope["rope_type"] = row.name;
    break;
  }
  rope["factor"] = scaling.factor;
  if (scaling.type == RopeScalingType::kLinear) return rope;
  rope["original_max_position_embeddings"] = scaling.original_max_position_embeddings;
  if (scaling.attention_factor != 0.0) rope["attention_factor"] = scaling.attention_factor;
  if (scaling.type == RopeScalingType::kLlama3) {
    rope["low_freq_factor"] = scaling.low_freq_factor;
    rope["high_freq_factor"] = scaling.high_freq_factor;
  } else if (scaling.type == RopeScalingType::kYarn) {
    rope["beta_fast"] = scaling.beta_fast;
    rope["beta_slow"] = scaling.beta_slow;
    rope["truncate"] = scaling.truncate;
    if (scaling.mscale_all_dim != 0.0) {
      rope["mscale"] = scaling.mscale;
      rope["mscale_all_dim"] = scaling.mscale_all_dim;
    }
  } else if (scaling.type == RopeScalingType::kLongRope) {
    rope["short_factor"] = scaling.short_factor;
    rope["long_factor"] = scaling.long_factor;
  }
  return rope;
}

}  // namespace

namespace {

constexpr const char* kRopeScaling = "rope_scaling";
constexpr const char* kRopeParameters = "rope_parameters";
constexpr const char* kFullLayers = "full_attention";
constexpr const char* kWindowLayers = "sliding_attention";

void write_rope(HfBinding& fields, const TransformerConfig& config, const HfRope& rope) {
  fields.expect(rope.turns_parts || config.rotary_percent == 1.0,
                "rotary positions of a part of each head (--rotary-percent)");
  fields.expect(!config.use_rope_scaling || config.rotary_seq_len_interpolation_factor == 1,
                "rope scaling beside interpolated positions");
  fields.write(rope.theta, config.rotary_base);
  if (rope.turns_parts) fields.write(rope.part, config.rotary_percent);
  const json object = rope_object(config);
  // transformers 5 reads rope_parameters, earlier versions rope_scaling.
  fields.write(kRopeParameters, object);
  fields.write(kRopeScaling, object["rope_type"] == "default" ? json() : object);
}

void bind_rope_settings(HfBinding& fields, TransformerConfig& config, const HfRope& rope) {
  static constexpr const char* kObjects[] = {kRopeScaling, kRopeParameters};
  fields.ignore(kObjects);
  fields.fixed(config.position_embedding_type, PositionEmbedding::kRope,
               "the kind of position embedding");
  fields.fixed(config.rotary_interleaved, rope.is_interleaved, "--rotary-interleaved");
  fields.bind(config.rotary_base);
  fields.bind(config.rotary_percent);
  fields.bind(config.rotary_seq_len_interpolation_factor);
  fields.bind(config.use_rope_scaling);
  fields.bind(config.rope_scaling);
}

}  // namespace

void bind_hf_rope(HfBinding& fields, TransformerConfig& config, const HfRope& rope) {
  bind_rope_settings(fields, config, rope);
  if (!fields.reads()) return write_rope(fields, config, rope);
  config.rotary_base = fields.positive_of(rope.theta, rope.default_theta);
  config.rotary_percent = fields.number_of(rope.part, rope.default_part);
  HfBinding* older = fields.object(kRopeScaling);
  const char* name = older != nullptr && !older->is_empty() ? kRopeScaling : kRopeParameters;
  HfBinding* object = name == kRopeScaling ? older : fields.object(name);
  if (object != nullptr && object->has(kFullLayers)) object = object->object(kFullLayers);
  if (object != nullptr) read_rope(*object, fields, name, config);
  if (rope.turns_parts || config.rotary_percent == 1.0) return;
  // Compat: as transformers 5.24, whose families of whole heads ignore this field.
  fields.unsupported(
      fields.has(rope.part) ? rope.part : name,
      fmt::format("rotary positions turn {} of a head, but transformers turns whole heads of this "
                  "family; remove partial_rotary_factor to compute as transformers does",
                  config.rotary_percent));
}

void bind_hf_local_rope(HfBinding& fields, TransformerConfig& config, const HfRope& rope) {
  constexpr double kLocalBase = 10000.0;
  bind_hf_rope(fields, config, rope);
  if (!fields.reads()) {
    if (config.rotary_base_local == 0.0) config.rotary_base_local = config.rotary_base;
    json scaled = rope_object(config);
    const json local = {{"rope_type", "default"}, {"rope_theta", config.rotary_base_local}};
    fields.write(kRopeParameters, {{kFullLayers, scaled}, {kWindowLayers, local}});
  }
  fields.positive("rope_local_base_freq", config.rotary_base_local, kLocalBase);
  if (!fields.reads()) return;
  HfBinding* types = fields.object(kRopeParameters);
  HfBinding* local = types != nullptr ? types->object(kWindowLayers) : nullptr;
  if (local == nullptr) return;
  TransformerConfig of_window = config;
  of_window.rope_scaling = {};
  of_window.use_rope_scaling = false;
  of_window.rotary_seq_len_interpolation_factor = 1;
  of_window.rotary_percent = 1.0;
  of_window.rotary_base = config.rotary_base_local;
  read_rope(*local, fields, kRopeParameters, of_window);
  config.rotary_base_local = of_window.rotary_base;
  if (of_window.rope_scaling.type == RopeScalingType::kNone && !of_window.use_rope_scaling &&
      of_window.rotary_seq_len_interpolation_factor == 1 && of_window.rotary_percent == 1.0) {
    return;
  }
  fields.unsupported(kRopeParameters,
                     "positions of sliding_attention layers are not scaled here; "
                     "their rope_type must be default");
}

}  // namespace megatron
