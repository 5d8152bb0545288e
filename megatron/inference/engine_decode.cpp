// Asynchronous decode steps of the engine: each is launched before the previous one's tokens are
// known.
#include <algorithm>
#include <chrono>
#include <utility>

#include "megatron/inference/engine_parts.h"

namespace megatron {
namespace {

// Prefetches memory into the caches. always_inline, because GCC drops calls to a function without
// visible effects.
[[gnu::always_inline]] inline void prefetch(const void* memory, size_t bytes) {
  constexpr size_t kLine = 64;
  for (size_t at = 0; at < bytes; at += kLine) {
    __builtin_prefetch(static_cast<const std::byte*>(memory) + at);
  }
}

}  // namespace

Engine::StepTexts::Text::Text(Group& the_group)
    : group(&the_group), id(group->id), row(&group->rows.front()) {
  const Request& request = group->request;
  end = static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens;
  stop_tokens.fill(kernels::kNoToken);
  const std::vector<int32_t>& stops = request.stop_tokens;
  std::copy_n(stops.begin(), std::min(stops.size(), kMaxStopTokens), stop_tokens.begin());
  is_plain = !request.return_log_probabilities && request.num_top == 0 &&
             stops.size() <= kMaxStopTokens && request.stop_sequences.empty();
  is_random = request.sampling.top_k != 1;
}

RequestProgress Engine::StepTexts::Text::append(int32_t token) const {
  RequestProgress progress;
  progress.id = id;
  if (token == kernels::kNoToken) {
    progress.finish = Finish::kFailed;
    return progress;
  }
  row->tokens.push_back(token);
  progress.token = token;
  if (std::ranges::find(stop_tokens, token) != stop_tokens.end()) {
    progress.finish = Finish::kStop;
  } else if (std::ssize(row->tokens) >= end) {
    progress.finish = Finish::kLength;
  }
  return progress;
}

// True if all parts have one token and draw the next on the device.
bool Engine::may_decode(std::span<const Part> parts) const {
  const bool reads_hidden = options_.drafter && options_.drafter->reads_hidden_states();
  return steps_ && !reads_hidden && all_draw_on_device(parts) &&
         std::all_of(parts.begin(), parts.end(),
                     [](const Part& part) { return part.draws && part.count == 1; });
}

void Engine::launch(std::span<const Part> parts) {
  auto step = std::make_shared<StepTexts>();
  for (const Part& part : parts) {
    const Row& row = *part.row;
    step->texts.emplace_back(*part.group);
    step->rows.push_back({part.group->admission, row.tokens.back(),
                          static_cast<int64_t>(row.tokens.size()), row.pages,
                          draw_of(part.group->request, part.group->num_drawn(row),
                                  model_.config().counted_vocab_size())});
  }
  steps_->launch(step->rows);
  launched_.push_back(std::move(step));
}

// The texts of the last launched step that will need another token.
std::shared_ptr<Engine::StepTexts> Engine::continuing_texts() const {
  const std::shared_ptr<StepTexts>& before = launched_.back();
  const auto goes_on = [&](size_t i) {
    const StepTexts::Text& text = before->texts[i];
    // The token in flight may be the last one.
    return before->rows[i].length + 1 < text.end &&
           (before->gone.empty() || text.group->is_running);
  };
  const size_t count = before->texts.size();
  size_t same = 0;
  while (same < count && goes_on(same)) ++same;
  if (same == count) {
    for (size_t i = 0; i < count; ++i) before->rows[i].token = drawn_by(static_cast<int64_t>(i));
    return before;
  }
  auto rest = std::make_shared<StepTexts>();
  rest->texts.reserve(count);
  rest->rows.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    if (!goes_on(i)) continue;
    rest->texts.push_back(before->texts[i]);
    rest->rows.push_back(before->rows[i]);
    rest->rows.back().token = drawn_by(static_cast<int64_t>(i));
  }
  return rest;
}

// Launches the next step before the last launched one has finished, unless requests may join or a
// text would need a page of another one. Returns true if it did.
bool Engine::launch_ahead() {
  if (options_.drafter != nullptr) return false;
  if (!options_.decodes_ahead.value_or(!model_.stream().is_cpu())) return false;
  if (running_.size() > launched_.back()->texts.size()) return false;  // some are still being read
  if (!waiting_.empty() && static_cast<int64_t>(running_.size()) < options_.max_rows) return false;
  const std::shared_ptr<StepTexts> step = continuing_texts();
  if (step->rows.empty()) return false;
  for (size_t i = 0; i < step->rows.size(); ++i) {
    const StepTexts::Text& text = step->texts[i];
    DecodeRow& row = step->rows[i];
    ++row.length;
    if (std::ssize(row.pages) * pool_.page_tokens() < row.length) {
      if (pool_.num_available() == 0) return false;  // no running text has beams, which reserve
      text.row->pages.push_back(pool_.allocate());
      row.pages = text.row->pages;
    }
    if (!text.is_random) continue;
    const Request& request = text.group->request;
    row.draw = draw_of(request, row.length - static_cast<int64_t>(request.prompt.size()),
                       model_.config().counted_vocab_size());
  }
  steps_->launch(step->rows);
  launched_.push_back(step);
  return true;
}

// Reads the oldest launched step. Drops tokens of cancelled or finished requests.
void Engine::finish_launched(std::vector<RequestProgress>& all) {
  launch_ahead();
  const std::shared_ptr<StepTexts> step = std::move(launched_.front());
  launched_.pop_front();
  const auto begin = std::chrono::steady_clock::now();
  const DrawnTokens drawn = steps_->take();
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
  counts_.waited_seconds += waited.count();
  ++counts_.launched_steps;

  const std::vector<StepTexts::Text>& texts = step->texts;
  const size_t count = texts.size();
  all.reserve(count);
  std::vector<Row*> with_full_pages;
  std::vector<double> values;
  std::vector<DraftText> draft_texts;
  std::vector<Row*> draft_rows;
  for (size_t i = 0; i < count; ++i) {
    constexpr size_t kRowsAhead = 12, kTokensAhead = 6;
    if (i + kRowsAhead < count) {
      const StepTexts::Text& later = texts[i + kRowsAhead];
      prefetch(later.row, sizeof(Row));
      if (!later.is_plain) prefetch(later.group, sizeof(Group));
    }
    if (i + kTokensAhead < count) prefetch(&texts[i + kTokensAhead].row->tokens.back(), 1);
    const StepTexts::Text& text = texts[i];
    if (!step->gone.empty() && !text.group->is_running) continue;
    ++text.row->cached;
    if (text.is_plain) {
      all.push_back(text.append(drawn.tokens[i]));
    } else {
      Part part;
      part.group = text.group;
      part.row = text.row;
      part.draws = true;
      values.clear();
      append_drawn(part.group->request, drawn.tokens[i], drawn.probabilities_of(i), values);
      all.push_back(apply(part, values));
    }
    const bool goes_on = all.back().finish == Finish::kNone;
    if (goes_on && options_.drafter != nullptr) {
      draft_texts.push_back(draft_text(*text.group, 1, static_cast<int64_t>(i)));
      draft_rows.push_back(text.row);
    }
    if (goes_on && text.row->cached % pool_.page_tokens() == 0) with_full_pages.push_back(text.row);
  }
  propose(draft_texts, draft_rows, {});
  forget_finished(all);
  if (!options_.reuse_prefixes) return;
  for (Row* row : with_full_pages) publish(*row);
}

}  // namespace megatron
