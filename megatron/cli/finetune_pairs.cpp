#include <memory>
#include <utility>
#include <vector>

#include "megatron/cli/finetune_run.h"
#include "megatron/comm/broadcast_object.h"
#include "megatron/comm/working.h"
#include "megatron/core/error.h"
#include "megatron/data/table_rows.h"
#include "megatron/interchange/source_settings.h"
#include "megatron/models/t5/text_pairs_task.h"
#include "megatron/run/collectively.h"

namespace megatron::cli {
namespace {

constexpr const char* kSummary = "summary";

// Pairs [begin, end) of the files' texts.
std::shared_ptr<const TextPairs> part_of(const TextPairs& all, int64_t begin, int64_t end) {
  auto part = std::make_shared<TextPairs>();
  for (int64_t pair = begin; pair < end; ++pair) {
    for (const auto& [from, to] :
         {std::pair(&all.sources, &part->sources), std::pair(&all.targets, &part->targets)}) {
      const std::span<const int32_t> ids = from->text(pair);
      to->ids.insert(to->ids.end(), ids.begin(), ids.end());
      to->ends.push_back(std::ssize(to->ids));
    }
  }
  return part;
}

TextPairs read_files(const FinetuneFlags& flags, const std::vector<std::filesystem::path>& files,
                     const Tokenizer& tokenizer) {
  const std::string target = flags.summary_column.empty() ? kSummary : flags.summary_column;
  const std::unique_ptr<Encoder> encoder = tokenizer.make_encoder();
  TextPairs pairs;
  const auto append = [&](const std::string& text, TokenizedTexts& texts) {
    encoder->append(text, texts.ids);
    texts.ends.push_back(std::ssize(texts.ids));
  };
  for (const std::filesystem::path& file : files) {
    read_table(file, {flags.text_column, target}, [&](const TableRow& row) {
      append(flags.source_prefix + row.fields[0], pairs.sources);
      append(row.fields[1], pairs.targets);
    });
  }
  return pairs;
}

// Reads the pairs of texts. Threads of one process share them.
std::shared_ptr<const TextPairsTask::Data> read_text_pairs(const Finetuning& tuning) {
  const comm::Working working(tuning.world, "reading the texts");
  return comm::broadcast_object(tuning.world, [&] {
    const DatasetFiles files = files_of(tuning.flags);
    const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(tuning.args.tokenizer);
    const TextPairs all = read_files(tuning.flags, files.train, *tokenizer);
    auto data = std::make_shared<TextPairsTask::Data>();
    int64_t begin = 0;
    if (files.validation.empty()) {
      begin = num_validation_texts(tuning.flags, all.num_pairs());
      data->valid = part_of(all, 0, begin);
    } else {
      data->valid =
          std::make_shared<const TextPairs>(read_files(tuning.flags, files.validation, *tokenizer));
    }
    data->train = part_of(all, begin, all.num_pairs());
    if (data->train->num_pairs() == 0) {
      throw ConfigError("--train_file: there is no text to train on");
    }
    if (data->valid->num_pairs() == 0) data->valid = nullptr;
    return std::shared_ptr<const TextPairsTask::Data>(std::move(data));
  });
}

// The special ids that config.json states, or else those of the tokenizer.
TextPairsTask::Ids special_ids_of(const Tokenizer& tokenizer, const ArgMap& stated) {
  const auto setting = [&](const char* name) -> std::optional<int64_t> {
    const auto found = stated.find(name);
    if (found == stated.end()) return std::nullopt;
    const auto* id = std::get_if<int64_t>(&found->second);
    return id != nullptr ? std::optional(*id) : std::nullopt;
  };
  const auto id_of = [&](SpecialToken token, const char* name) {
    const std::optional<int64_t> id = setting(name);
    return id ? *id : tokenizer.required_id(token);
  };
  const int64_t pad = id_of(SpecialToken::kPad, "pad_token_id");
  const std::vector<int64_t> ends = end_tokens_of(stated);
  return {.pad = pad,
          .eos = ends.empty() ? tokenizer.required_id(SpecialToken::kEos) : ends.front(),
          .start = setting("decoder_start_token_id").value_or(pad)};
}

}  // namespace

void finetune_pairs(Finetuning& tuning) {
  const auto data = collectively([&] { return read_text_pairs(tuning); });
  const int64_t num_train = data->train->num_pairs();
  const int64_t num_valid = data->valid == nullptr ? 0 : data->valid->num_pairs();
  const Lengths lengths =
      apply_samples(tuning.flags, num_train, num_valid, tuning.replicas, tuning.args);
  const PreparedRun begun = tuning.begin();
  TextPairsTask task(begun.args, begun.tokenizer, *data,
                     special_ids_of(*begun.tokenizer, tuning.origin.special_ids));
  train(tuning, begun, task,
        {.before_training = [&] { print_summary(begun.args, num_train, lengths); }});
  if (task.perplexity()) write_results(tuning, {{"perplexity", *task.perplexity()}});
}

}  // namespace megatron::cli
