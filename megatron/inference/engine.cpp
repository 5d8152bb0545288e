#include "megatron/inference/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/inference/bert.h"
#include "megatron/inference/engine_parts.h"
#include "megatron/inference/t5_stages.h"

namespace megatron {

int64_t num_cache_pages(const TransformerConfig& config, const EngineOptions& options) {
  const int64_t positions = std::max(config.max_position_embeddings, config.seq_length);
  const int64_t tokens = options.cache_tokens > 0 ? options.cache_tokens : 4 * positions;
  return (tokens + options.page_tokens - 1) / options.page_tokens;
}

namespace {

bool is_finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

}  // namespace

Engine::Engine(const InferenceModel& model, const EngineOptions& options)
    : model_(model),
      options_(options),
      pool_(num_cache_pages(model.config(), options), options.page_tokens),
      cache_(model.config(), model.chunk->cached_layers(), model.parallel.tensor.size(),
             pool_.num_pages(), options.page_tokens, model.stream(), model.kv_cache) {
  // Then every running text gets its next token in every step.
  options_.max_step_tokens = std::max(options_.max_step_tokens, options_.max_rows);
  const TransformerConfig& config = model_.config();
  const int64_t cache_tokens = pool_.num_pages() * pool_.page_tokens();
  const int64_t positions = std::min(max_positions(config), cache_tokens);
  if (model_.bert != nullptr) return;
  if (model_.t5 != nullptr) {
    invariant(options_.drafter == nullptr, "drafts continue the texts of a GPT");
    options_.reuse_prefixes = false;
    if (options_.encoder_tokens == 0) options_.encoder_tokens = cache_tokens;
    // The last page of a text may be partly empty.
    text_pool_.emplace(pool_.pages_for(options_.encoder_tokens) + options_.max_rows,
                       options_.page_tokens);
    text_cache_.emplace(config, model_.chunk->cached_layers(), model_.parallel.tensor.size(),
                        text_pool_->num_pages(), options_.page_tokens, model_.stream(),
                        model_.kv_cache);
    reads_singly_ = config.position_embedding_type == PositionEmbedding::kRelative;
    distance_bias_ = model_.t5->distance_bias(positions);
    return;
  }
  if (model_.parallel.pipeline.size() > 1) return;
  steps_.emplace(model_, cache_, options_.max_rows, pool_.pages_for(positions));
}

Engine::~Engine() = default;

void Engine::check(const Request& request) const {
  const TransformerConfig& config = model_.config();
  if (request.prompt.empty()) throw ConfigError("a prompt has no tokens; give it some text");
  check_ids(request.prompt,
            request.vocab_size > 0 ? request.vocab_size : config.counted_vocab_size());
  const auto length = static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens;
  check_length(length, request.max_new_tokens, config);
  check_text(request);
  invariant(!request.pooling || request.max_new_tokens == 0, "an embedding has no new tokens");
  if (model_.bert != nullptr) {
    if (request.pooling) return;
    throw ConfigError("the model is a BERT, which has embeddings and continues no text");
  }
  const Group group(0, request);
  if (group.num_rows() > options_.max_rows) {
    throw ConfigError(
        fmt::format("{} beams are more than the {} texts that run at once; ask for "
                    "fewer beams",
                    group.num_rows(), options_.max_rows));
  }
  if (group.most_pages(pool_) > pool_.num_pages()) {
    throw ConfigError(
        fmt::format("{} tokens are more than the cache of {} holds; shorten the prompt, ask for "
                    "fewer new tokens, or make the cache larger",
                    length * group.num_rows(), pool_.num_pages() * pool_.page_tokens()));
  }
}

RequestId Engine::submit(Request request) {
  check(request);
  const int64_t known = model_.config().counted_vocab_size();
  if (request.vocab_size == 0) request.vocab_size = known;
  request.num_top = std::min(request.num_top, known);
  counts_.prompt_tokens +=
      static_cast<int64_t>((model_.t5 != nullptr ? request.text : request.prompt).size());
  waiting_.push_back(std::make_shared<Group>(++last_id_, std::move(request)));
  return last_id_;
}

void Engine::cancel(RequestId id) {
  for (Groups* groups : {&running_, &waiting_}) {
    const auto place = std::find_if(groups->begin(), groups->end(),
                                    [&](const auto& group) { return group->id == id; });
    if (place == groups->end()) continue;
    for (Row& row : (*place)->rows) release_pages(row);
    (*place)->is_running = false;
    for (const auto& step : launched_) step->gone.push_back(*place);
    groups->erase(place);
    return;
  }
}

EngineState Engine::state() const {
  EngineState state = counts_;
  state.running = static_cast<int64_t>(running_.size());
  state.waiting = static_cast<int64_t>(waiting_.size());
  state.pages = pool_.num_pages();
  state.pages_owned = pool_.num_owned();
  return state;
}

std::vector<RequestProgress> Engine::step() {
  invariant(has_work(), "a step has a request to work for");
  std::vector<RequestProgress> all;
  if (!launched_.empty()) {
    finish_launched(all);
    return all;
  }
  if (model_.bert != nullptr) {
    embed_texts(all);
    return all;
  }
  while (!waiting_.empty() && waiting_.front()->num_inputs() <= 0) {  // nothing to compute
    all.push_back({.id = waiting_.front()->id, .finish = Finish::kLength});
    waiting_.pop_front();
  }
  const std::vector<Part> parts = planned_parts();
  if (parts.empty()) return all;
  if (may_decode(parts)) {
    launch(parts);
    finish_launched(all);
    return all;
  }
  const Tensor hidden = run(parts);
  std::vector<double> values = selected(parts, hidden);
  share(model_, values);
  for (const Part& part : parts) part.row->cached += part.count - part.num_drafts;
  std::span<const double> rest = values;
  std::vector<DraftText> texts;
  std::vector<Row*> rows;
  for (const Part& part : parts) {
    const auto count = static_cast<size_t>(num_values(part));
    if (part.is_first) apply_all(part, rest.first(count), all);
    rest = rest.subspan(count);
    if (options_.drafter == nullptr || part.group->beams) continue;
    if (all.back().finish != Finish::kNone) continue;
    texts.push_back(draft_text(*part.group, part.row->cached - part.begin, part.first_token));
    rows.push_back(part.row);
  }
  propose(texts, rows, hidden);
  settle(all);
  return all;
}

void Engine::forget_finished(std::span<const RequestProgress> all) {
  for (const RequestProgress& progress : all) {
    if (progress.finish != Finish::kNone) cancel(progress.id);
  }
}

// Removes finished requests, and publishes full pages.
void Engine::settle(std::span<const RequestProgress> all) {
  forget_finished(all);
  if (!options_.reuse_prefixes) return;
  const bool reads_hidden = options_.drafter && options_.drafter->reads_hidden_states();
  for (const auto& group : running_) {
    if (group->beams && reads_hidden) continue;  // the drafter has nothing in their pages
    for (Row& row : group->rows) publish(row);
  }
}

// The embeddings of the next waiting texts of a BERT.
void Engine::embed_texts(std::vector<RequestProgress>& all) {
  const Pooling pooling = *waiting_.front()->request.pooling;
  BertTexts texts;
  size_t longest = 0;
  for (const auto& group : waiting_) {
    const Request& request = group->request;
    longest = std::max(longest, request.prompt.size());
    const auto count = std::ssize(texts.ids) + 1;
    const bool fits =
        count == 1 || (count <= options_.max_rows &&
                       count * static_cast<int64_t>(longest) <= options_.max_step_tokens);
    if (!fits || request.pooling != pooling) break;
    texts.ids.push_back(request.prompt);
    all.push_back({.id = group->id, .finish = Finish::kLength});
  }
  longest = 0;
  for (const auto& ids : texts.ids) longest = std::max(longest, ids.size());
  for (auto& ids : texts.ids) {
    texts.attention_mask.emplace_back(ids.size(), 1).resize(longest);
    ids.resize(longest);
  }
  const std::vector<float> pooled = pooled_states({*model_.bert, model_.parallel}, texts, pooling);
  const auto width = static_cast<size_t>(model_.config().hidden_size);
  for (size_t i = 0; i < all.size(); ++i) {
    const auto own = std::span(pooled).subspan(i * width, width);
    all[i].embedding.assign(own.begin(), own.end());
    if (!is_finite(own)) all[i].finish = Finish::kFailed;
  }
  forget_finished(all);
}

// --- Synchronous steps ---

// Writes the parts' tokens to the pages that penalties read.
void Engine::put_ids(std::span<const Part> parts) {
  std::vector<int32_t> ids, slots;
  for (const Part& part : parts) {
    for (int64_t i = part.begin; i < part.begin + part.count; ++i) {
      const int64_t page = part.row->pages[static_cast<size_t>(i / pool_.page_tokens())];
      ids.push_back(part.token(i));
      slots.push_back(static_cast<int32_t>(page * pool_.page_tokens() + i % pool_.page_tokens()));
    }
  }
  const Shape shape = {std::ssize(ids)};
  kernels::put_ids(cache_.ids().view(), tensor_of(ids, shape).to(model_.stream()).view(),
                   tensor_of(slots, shape).to(model_.stream()).view(), model_.stream());
}

Tensor Engine::run(std::span<const Part> parts) {
  const NoGrad no_grad;
  if (draws(model_) || steps_) put_ids(parts);
  std::vector<int64_t> tokens;
  std::vector<int64_t> positions;
  std::vector<PagedRow> rows;
  for (const Part& part : parts) {
    for (int64_t i = part.begin; i < part.begin + part.count; ++i) {
      tokens.push_back(part.token(i));
      positions.push_back(i);
    }
    rows.push_back({part.first_token, part.count, part.begin, part.row->pages});
  }
  CachedBatch cached{cache_, cache_.batch_of(rows)};
  const Shape shape = {1, static_cast<int64_t>(tokens.size())};
  const RowIds ids = tensor_of(tokens, shape);
  const RowIds position_ids = tensor_of(positions, shape);
  if (model_.t5 == nullptr) {
    return run_stages(model_, {.tokens = ids, .position_ids = position_ids}, &cached).data();
  }
  read_texts(parts);
  std::vector<PagedRow> text_rows;
  for (const Part& part : parts) {
    const auto length = static_cast<int64_t>(part.group->request.text.size());
    for (int64_t i = 0; i < part.count; ++i) {
      text_rows.push_back({part.first_token + i, 1, length - 1, part.group->text->pages});
    }
  }
  cached.encoder_cache = &*text_cache_;
  cached.encoder_rows = text_cache_->batch_of(text_rows);
  const Variable hidden = run_cached_decoder(model_, ids, position_ids, distance_bias_, cached);
  return hidden.defined() ? hidden.data() : Tensor();
}

// --- Results of a step ---

// Applies the values of every draw up to the first that differs from its draft.
void Engine::apply_all(const Part& part, std::span<const double> values,
                       std::vector<RequestProgress>& all) {
  Row& row = *part.row;
  const std::vector<int32_t> drafts = std::exchange(row.drafts, {});
  const Request& request = part.group->request;
  const size_t width =
      1 + (request.return_log_probabilities ? 1 : 0) + 2 * static_cast<size_t>(request.num_top);
  const auto first = values.size() - drafts.size() * width;
  all.push_back(apply(part, values.first(first)));
  if (drafts.empty()) return;
  ++counts_.drafts;
  counts_.draft_tokens += std::ssize(drafts);
  for (size_t i = 0; i < drafts.size(); ++i) {
    if (all.back().finish != Finish::kNone || all.back().token != drafts[i]) return;
    ++row.cached;
    ++counts_.accepted_draft_tokens;
    const auto drawn = values.subspan(first + i * width, width);
    RequestProgress progress;
    progress.id = part.group->id;
    if (drawn.front() == kNotDrawn) {
      progress.finish = Finish::kFailed;
    } else {
      apply_token(part, drawn, progress);
    }
    all.push_back(std::move(progress));
  }
}

// A text whose last pass read `count` of the tokens that are now in the cache.
DraftText Engine::draft_text(const Group& group, int64_t count, int64_t first_row) const {
  const Row& row = group.rows.front();
  const int64_t left = group.request.max_new_tokens - group.num_drawn(row) - 1;
  const bool is_read = group.num_inputs() - row.cached == 1;
  return {.text = group.admission,
          .tokens = row.tokens,
          .pages = row.pages,
          .begin = row.cached - count,
          .count = count,
          .first_row = first_row,
          .max_drafts = is_read ? std::clamp<int64_t>(left, 0, options_.drafter->max_drafts()) : 0};
}

void Engine::propose(std::span<const DraftText> texts, std::span<Row* const> rows,
                     const Tensor& hidden) {
  if (texts.empty()) return;
  std::vector<std::vector<int32_t>> drafts =
      options_.drafter->propose(texts, options_.drafter->reads_hidden_states() ? hidden : Tensor());
  for (size_t i = 0; i < rows.size(); ++i) rows[i]->drafts = std::move(drafts[i]);
}

RequestProgress Engine::apply(const Part& part, std::span<const double> values) {
  Group& group = *part.group;
  RequestProgress progress;
  progress.id = group.id;
  if (group.request.pooling) {
    apply_pooled(part, values, progress);
    return progress;
  }
  const auto forced = values.first(static_cast<size_t>(part.num_forced));
  progress.prompt_log_probabilities.assign(forced.begin(), forced.end());
  const auto num_top = static_cast<size_t>(group.request.num_top);
  for (size_t i = 0; i < forced.size() * num_top; ++i) {
    const auto pair = values.subspan(forced.size() + 2 * i, 2);
    progress.prompt_top.push_back({static_cast<int32_t>(pair[0]), pair[1]});
  }
  const std::span<const double> drawn = values.subspan(forced.size() * (1 + 2 * num_top));
  const bool has_nan =
      std::any_of(forced.begin(), forced.end(), [](double value) { return std::isnan(value); });
  if (has_nan || (!drawn.empty() && drawn.front() == kNotDrawn)) {
    progress.finish = Finish::kFailed;
  } else if (group.beams && !drawn.empty()) {
    apply_beams(group, drawn, progress);
  } else if (!drawn.empty()) {
    apply_token(part, drawn, progress);
  } else if (part.row->cached == group.num_inputs(*part.row) && group.request.max_new_tokens == 0) {
    progress.finish = Finish::kLength;
  }
  return progress;
}

void Engine::apply_token(const Part& part, std::span<const double> values,
                         RequestProgress& progress) {
  const Request& request = part.group->request;
  std::vector<int32_t>& tokens = part.row->tokens;
  progress.token = static_cast<int32_t>(values[0]);
  tokens.push_back(*progress.token);
  if (request.return_log_probabilities) progress.log_probability = values[1];
  const size_t first_top = request.return_log_probabilities ? 2 : 1;
  for (size_t i = first_top; i < values.size(); i += 2) {
    progress.top.push_back({static_cast<int32_t>(values[i]), values[i + 1]});
  }
  const auto drawn = static_cast<int64_t>(tokens.size() - request.prompt.size());
  if (stops(request, tokens)) {
    progress.finish = Finish::kStop;
  } else if (drawn >= request.max_new_tokens) {
    progress.finish = Finish::kLength;
  }
}

void Engine::apply_beams(Group& group, std::span<const double> values, RequestProgress& progress) {
  std::vector<BeamCandidate> candidates;
  for (size_t i = 0; i + 2 < values.size() && values[i] >= 0; i += 3) {
    candidates.push_back(
        {static_cast<int64_t>(values[i]), static_cast<int32_t>(values[i + 1]), values[i + 2]});
  }
  const std::vector<int64_t> parents = group.beams->advance(candidates);
  if (!group.beams->is_done()) return follow(group, parents);
  progress.hypotheses = group.beams->take_result();
  const bool stopped = !progress.hypotheses.empty() && progress.hypotheses.front().is_stopped;
  progress.finish = stopped ? Finish::kStop : Finish::kLength;
}

// Adds the sum of a part's hidden states; after the last part the embedding is their mean.
void Engine::apply_pooled(const Part& part, std::span<const double> values,
                          RequestProgress& progress) {
  Group& group = *part.group;
  group.pooled.resize(std::max(group.pooled.size(), values.size()));
  for (size_t i = 0; i < values.size(); ++i) group.pooled[i] += values[i];
  if (part.row->cached < group.num_inputs(*part.row)) return;
  const bool is_mean = group.request.pooling == Pooling::kMean;
  const auto count = is_mean ? static_cast<double>(group.request.prompt.size()) : 1;
  for (const double sum : group.pooled)
    progress.embedding.push_back(static_cast<float>(sum / count));
  progress.finish = is_finite(progress.embedding) ? Finish::kLength : Finish::kFailed;
}

// Replaces a group's rows by its new beams: full pages are shared; a partly filled page is copied
// for all children but the first.
void Engine::follow(Group& group, std::span<const int64_t> parents) {
  std::vector<Row> next;
  std::vector<bool> is_taken(group.rows.size(), false);
  for (size_t i = 0; i < parents.size(); ++i) {
    const auto parent = static_cast<size_t>(parents[i]);
    Row row = group.rows[parent];
    if (is_taken[parent]) {
      const auto full = static_cast<size_t>(row.cached / pool_.page_tokens());
      for (size_t page = 0; page < full; ++page) pool_.retain(row.pages[page]);
      const std::vector<int32_t> others(row.pages.begin() + static_cast<std::ptrdiff_t>(full),
                                        row.pages.end());
      row.pages.resize(full);
      for (const int32_t page : others) {
        row.pages.push_back(pool_.allocate());
        cache_.copy_page(row.pages.back(), page);
      }
    }
    is_taken[parent] = true;
    row.tokens.push_back(group.beams->last_token(static_cast<int64_t>(i)));
    next.push_back(std::move(row));
  }
  for (size_t i = 0; i < group.rows.size(); ++i) {
    if (!is_taken[i]) release_pages(group.rows[i]);
  }
  group.rows = std::move(next);
}

void Engine::publish(Row& row) {
  const auto width = static_cast<size_t>(pool_.page_tokens());
  for (size_t page = row.serials.size(); (page + 1) * width <= static_cast<size_t>(row.cached);
       ++page) {
    const PagePool::Serial before = page == 0 ? 0 : row.serials.back();
    row.serials.push_back(
        pool_.publish(row.pages[page], before, std::span(row.tokens).subspan(page * width, width)));
  }
}

}  // namespace megatron
