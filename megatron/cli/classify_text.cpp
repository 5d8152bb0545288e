#include "megatron/cli/classify_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "megatron/cli/agreement.h"
#include "megatron/cli/json_lines.h"
#include "megatron/cli/model_flags.h"
#include "megatron/cli/text_flags.h"
#include "megatron/core/log.h"
#include "megatron/inference/bert.h"
#include "megatron/run/collectively.h"
#include "megatron/tasks/classification_data.h"

namespace megatron::cli {
namespace {

using nlohmann::json;

struct ClassifyTextFlags {
  ModelFlags model;
  PromptFlags texts;
  bool are_marks = false;
};

FlagTable flags_of(ClassifyTextFlags& flags) {
  FlagTable table;
  add_model_flags(table, flags.model);
  table.group("texts");
  add_prompt_flags(
      table, flags.texts, "Texts to classify.",
      "{\"text\": ..., \"text_pair\": ..., \"id\": ...}, whose id stands in the answer");
  table.group("output");
  table.add_switch("--marks", flags.are_marks,
                   "Independent labels: the scores do not add up to 1. Default for a model whose "
                   "config.json has multi_label_classification.");
  return table;
}

std::vector<std::string> problems(const ClassifyTextFlags& flags) {
  if (flags.texts.are_given()) return {};
  return {"there is nothing to classify; give --prompt TEXT or --prompt-file FILE"};
}

// The request of a text or of two, for all ranks. Longer ones are cut, as in training.
json request_of(const json& object, const LoadedModel& loaded) {
  const Tokenizer& tokenizer = loaded.required_tokenizer();
  const auto ids_of_member = [&](const char* name) {
    const auto text = object.find(name);
    if (text == object.end() || !text->is_string()) {
      throw ConfigError(fmt::format("\"{}\" must be a text", name));
    }
    return inner_ids(text->get<std::string>(), tokenizer);
  };
  const PairIds special = pair_ids_of(tokenizer);
  const int64_t most = loaded.model->config().max_position_embeddings;
  const std::vector<int32_t> first = ids_of_member("text");
  EncodedPair pair = object.contains("text_pair")
                         ? encoded_pair(first, ids_of_member("text_pair"), most, special)
                         : encoded_text(first, most, special);
  pair.tokens.resize(static_cast<size_t>(pair.length));
  pair.types.resize(static_cast<size_t>(pair.length));
  return {{"ids", pair.tokens}, {"types", pair.types}, {"id", object.value("id", json())}};
}

void print_classes(const json& request, const LoadedModel& loaded,
                   const std::vector<double>& probabilities) {
  nlohmann::ordered_json answer;
  if (!request.at("id").is_null()) answer["id"] = request.at("id");
  const auto best = std::ranges::max_element(probabilities) - probabilities.begin();
  answer["label"] = loaded.class_names[static_cast<size_t>(best)];
  for (size_t i = 0; i < probabilities.size(); ++i) {
    answer["score"][loaded.class_names[i]] = probabilities[i];
  }
  print_line(answer.dump());
  std::fflush(stdout);  // another program may wait for the answer
}

}  // namespace

int classify_text(std::span<const std::string> words, const comm::Group& world) {
  const LogScope on_first(world.rank() == 0);
  ClassifyTextFlags flags;
  FlagTable table = flags_of(flags);
  const CommonCommand command = {.usage = "megatron classify --load DIR --prompt TEXT ... [flags]",
                                 .problems = [&] { return problems(flags); }};
  if (!parse_common_flags(table, command, words, world)) return 0;

  const LoadedModel loaded = load_model(flags.model, world, is_encoder_only);
  if (loaded.class_names.empty()) {
    throw CommonConfigError(fmt::format(
        "--load {}: the BERT has no classification head; give a model of transformers with one, "
        "such as finetune with labels writes",
        flags.model.load));
  }
  const bool are_marks = flags.are_marks || loaded.has_marks;
  const auto classify = [&](const json& request) {
    const BertTexts texts = {.ids = {request.at("ids").get<std::vector<int32_t>>()},
                             .token_types = {request.at("types").get<std::vector<int32_t>>()}};
    const auto probabilities =
        class_probabilities(loaded.bert_inference(), texts,
                            are_marks ? ClassKind::kIndependent : ClassKind::kExclusive);
    if (world.rank() == 0) print_classes(request, loaded, probabilities.front());
  };
  for (const std::string& text : flags.texts.prompts) {
    json request;
    if (world.rank() == 0) request = request_of({{"text", text}}, loaded);
    classify(shared(request, world));
  }
  if (flags.texts.prompt_file.empty()) return 0;
  const auto read = [&](const std::string& line) {
    return request_of(line.starts_with("{") ? object_of(line) : json{{"text", line}}, loaded);
  };
  each_request(flags.texts.prompt_file, world, read, classify);
  return 0;
}

}  // namespace megatron::cli
