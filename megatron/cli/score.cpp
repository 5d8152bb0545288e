#include "megatron/cli/score.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "megatron/cli/agreement.h"
#include "megatron/cli/json_lines.h"
#include "megatron/cli/model_flags.h"
#include "megatron/core/log.h"
#include "megatron/inference/bert.h"
#include "megatron/inference/generate.h"
#include "megatron/inference/t5.h"

namespace megatron::cli {
namespace {

using nlohmann::json;

struct ScoreFlags {
  ModelFlags model;
  std::string input = "-";
  bool logits = false;
};

// The logits of each position, without those of padding rows.
json logit_rows(const Tensor& logits, int64_t vocab_size) {
  json rows = json::array();
  for (int64_t i = 0; i < logits.size(0); ++i) {
    const Tensor row = logits.slice(i, 1);
    const auto values = std::as_const(row).span<float>().first(static_cast<size_t>(vocab_size));
    rows.push_back(std::vector<float>(values.begin(), values.end()));
  }
  return rows;
}

void score_with_gpt(const ScoreFlags& flags, const LoadedModel& gpt, const comm::Group& world) {
  each_request(
      flags.input, world,
      [&](const std::string& line) {
        return json{{"ids", ids_of(object_of(line), gpt)}};
      },
      [&](const json& request) {
        const auto ids = request.at("ids").get<std::vector<int32_t>>();
        const Score result = score(gpt.inference(), ids);
        nlohmann::ordered_json object;
        object["loss"] = result.loss;
        object["logprobs"] = result.log_probabilities;
        if (flags.logits) {
          object["logits"] = logit_rows(next_token_logits(gpt.inference(), ids),
                                        gpt.model->config().counted_vocab_size());
        }
        print_line(object.dump());
      });
}

// A number for one text, a list for several.
std::vector<int32_t> sentence_labels(const json& object) {
  const auto found = object.find("next_sentence_label");
  if (found == object.end() || found->is_null()) return {};
  const json listed = {{"next_sentence_label", found->is_array() ? *found : json::array({*found})}};
  return integer_rows(listed, "next_sentence_label")[0];
}

// Throws ConfigError unless the line has "ids" and "labels".
json labelled_object(const std::string& line, const char* model) {
  json object = object_of(line);
  for (const char* field : {"ids", "labels"}) {
    if (object.contains(field)) continue;
    throw ConfigError(fmt::format(
        "\"{}\" is missing; a {} scores {{\"ids\": [...], \"labels\": [...]}}", field, model));
  }
  return object;
}

void score_with_bert(const std::string& file, const LoadedModel& loaded, const comm::Group& world) {
  const auto read = [](const std::string& line) {
    const json object = labelled_object(line, "BERT");
    return json{{"ids", integer_rows(object, "ids")},
                {"token_types", integer_rows(object, "token_types")},
                {"attention_mask", integer_rows(object, "attention_mask")},
                {"labels", integer_rows(object, "labels")},
                {"next_sentence", sentence_labels(object)}};
  };
  each_request(file, world, read, [&](const json& request) {
    const BertTexts texts = {.ids = request.at("ids").get<IdRows>(),
                             .token_types = request.at("token_types").get<IdRows>(),
                             .attention_mask = request.at("attention_mask").get<IdRows>()};
    const BertLabels labels = {
        .words = request.at("labels").get<IdRows>(),
        .next_sentence = request.at("next_sentence").get<std::vector<int32_t>>()};
    print_line(json{{"loss", bert_loss(loaded.bert_inference(), texts, labels)}}.dump());
  });
}

void score_with_t5(const std::string& file, const LoadedModel& loaded, const comm::Group& world) {
  const auto read = [&](const std::string& line) {
    const json object = labelled_object(line, "T5");
    return json{{"ids", integer_rows(object, "ids")},
                {"attention_mask", integer_rows(object, "attention_mask")},
                {"labels", integer_rows(object, "labels")},
                {"start", loaded.required_decoder_start()}};
  };
  each_request(file, world, read, [&](const json& request) {
    const T5Texts texts = {.ids = request.at("ids").get<IdRows>(),
                           .attention_mask = request.at("attention_mask").get<IdRows>()};
    const double loss =
        t5_loss(loaded.inference(), texts, request.at("labels").get<IdRows>(), request.at("start"));
    print_line(json{{"loss", loss}}.dump());
  });
}

}  // namespace

int score_text(std::span<const std::string> words, const comm::Group& world) {
  const LogScope on_first(world.rank() == 0);
  ScoreFlags flags;
  FlagTable table;
  add_model_flags(table, flags.model);
  table.group("input");
  table.add("--input", flags.input,
            "JSON lines, - is standard input. For a GPT {\"ids\": [...]} or {\"text\": ...}; for a "
            "BERT {\"ids\", \"labels\"} and, optional, \"token_types\", \"attention_mask\", "
            "\"next_sentence_label\"; for a T5 {\"ids\", \"labels\"} and, optional, "
            "\"attention_mask\".");
  table.add_switch("--logits,--return_logits", flags.logits,
                   "For a GPT: also the logits of the token after each position.");
  const CommonCommand command = {.usage = "megatron score --load DIR [--input FILE] [flags]"};
  if (!parse_common_flags(table, command, words, world)) return 0;

  const LoadedModel loaded = load_model(flags.model, world, any_kind);
  if (is_encoder_only(loaded.kind)) {
    score_with_bert(flags.input, loaded, world);
  } else if (is_encoder_decoder(loaded.kind)) {
    score_with_t5(flags.input, loaded, world);
  } else {
    score_with_gpt(flags, loaded, world);
  }
  return 0;
}

}  // namespace megatron::cli
