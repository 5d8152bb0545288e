// Scheduling of the engine's steps, and allocation of pages.
#include <algorithm>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/inference/engine_parts.h"

namespace megatron {

// Decoding texts go first, by age: they may need pages, and preempt only younger texts that are not
// planned yet. Texts in prefill have all their pages.
std::vector<Engine::Part> Engine::planned_parts() {
  std::vector<Part> parts;
  int64_t budget = options_.max_step_tokens;
  int64_t rows = 0;  // decoding and not planned yet
  for (const auto& group : running_) rows += group->is_read() ? std::ssize(group->rows) : 0;
  for (size_t i = 0; i < running_.size(); ++i) {
    Group& group = *running_[i];
    if (!group.is_read()) continue;
    bool has_pages = true;
    for (Row& row : group.rows) {
      has_pages = has_pages && grow(group, row, static_cast<int64_t>(row.tokens.size()));
    }
    if (has_pages) {
      rows -= std::ssize(group.rows);
      limit_drafts(group.rows.front(), budget - rows - 1);
      plan(group, budget, parts);
    } else {
      --i;  // the group itself waits again
    }
  }
  for (const auto& group : running_) {
    if (!group->is_read() && budget > 0) plan(*group, budget, parts);
  }
  while (admit_next(budget, parts)) {
  }
  int64_t token = 0;
  for (Part& part : parts) {
    part.first_token = token;
    token += part.count;
  }
  return parts;
}

// Drops drafts beyond a number of tokens, or that would take pages other texts may need.
void Engine::limit_drafts(Row& row, int64_t budget) {
  const auto length = std::ssize(row.tokens);
  while (std::ssize(row.pages) < pool_.pages_for(length + std::ssize(row.drafts)) &&
         pool_.num_available() - reserved_pages() > std::ssize(running_)) {
    row.pages.push_back(pool_.allocate());
  }
  const int64_t room = std::ssize(row.pages) * pool_.page_tokens() - length;
  const int64_t most = std::max<int64_t>(0, std::min(room, budget));
  row.drafts.resize(std::min(row.drafts.size(), static_cast<size_t>(most)));
}

void Engine::plan(Group& group, int64_t& budget, std::vector<Part>& parts) {
  for (size_t i = 0; i < group.rows.size() && budget > 0; ++i) {
    Row& row = group.rows[i];
    Part part;
    part.group = &group;
    part.row = &row;
    part.is_first = i == 0;
    part.begin = row.cached;
    part.count = std::min(reads_singly_ ? 1 : budget, group.num_inputs(row) - row.cached);
    const int64_t end = part.begin + part.count;
    part.draws = end == static_cast<int64_t>(row.tokens.size()) && group.request.max_new_tokens > 0;
    part.num_drafts = std::ssize(row.drafts);
    part.count += part.num_drafts;
    if (group.request.wants_prompt()) {
      const auto last = static_cast<int64_t>(group.request.prompt.size()) - 1;
      part.first_forced = std::max(part.begin, group.num_forced);
      part.num_forced = std::max<int64_t>(0, std::min(end, last) - part.first_forced);
      group.num_forced += part.num_forced;
    }
    budget -= part.count;
    parts.push_back(part);
  }
}

bool Engine::admit_next(int64_t& budget, std::vector<Part>& parts) {
  if (waiting_.empty() || budget <= 0) return false;
  Group& group = *waiting_.front();
  if (group.num_inputs() <= 0) return false;  // answered by the next step
  int64_t rows = group.num_rows();
  for (const auto& other : running_) rows += other->num_rows();
  if (rows > options_.max_rows) return false;
  std::shared_ptr<Text> text;
  int64_t new_text = 0;
  if (model_.t5 != nullptr) {
    text = text_of(group.request);
    if (text.use_count() == 1) new_text = static_cast<int64_t>(group.request.text.size());
    if (!has_room_for_text(new_text)) return false;
  }

  Row& row = group.rows.front();
  PagePool::Match known;
  // Pages of tokens whose hidden states no result needs.
  const bool reads_all = group.request.pooling && *group.request.pooling != Pooling::kLast;
  const size_t most_reused =
      group.wants_forced() ? static_cast<size_t>(group.num_forced) : row.tokens.size() - 1;
  if (options_.reuse_prefixes && !reads_all) {
    known = pool_.match(std::span(row.tokens).first(most_reused));
  }
  const auto reused = static_cast<int64_t>(known.pages.size());
  const int64_t needed = pool_.pages_for(static_cast<int64_t>(row.tokens.size())) - reused;
  const int64_t most = group.beams ? group.most_pages(pool_) - reused : needed;
  if (pool_.num_available() - reserved_pages() < most) {
    for (const int32_t page : known.pages) pool_.release(page);
    return false;
  }
  row.pages = std::move(known.pages);
  row.serials = std::move(known.serials);
  row.cached = reused * pool_.page_tokens();
  counts_.reused_tokens += row.cached;
  for (int64_t i = 0; i < needed; ++i) row.pages.push_back(pool_.allocate());
  group.text = std::move(text);
  group.is_running = true;
  group.admission = ++last_admission_;
  running_.push_back(std::move(waiting_.front()));
  waiting_.pop_front();
  plan(*running_.back(), budget, parts);
  budget -= new_text;
  return true;
}

// Pages that running beam searches may still need: they are never preempted.
int64_t Engine::reserved_pages() const {
  int64_t reserved = 0;
  for (const auto& group : running_) {
    if (!group->beams) continue;
    reserved += group->most_pages(pool_);
    for (const Row& row : group->rows) reserved -= static_cast<int64_t>(row.pages.size());
  }
  return std::max<int64_t>(0, reserved);
}

// Allocates a row's pages for `tokens` tokens. False: none are left, and its group was preempted.
bool Engine::grow(Group& group, Row& row, int64_t tokens) {
  while (static_cast<int64_t>(row.pages.size()) < pool_.pages_for(tokens)) {
    if (group.beams || pool_.num_available() > reserved_pages()) {
      row.pages.push_back(pool_.allocate());
    } else if (!preempt_youngest(group)) {
      return false;
    }
  }
  return true;
}

// Preempts the youngest group. False: that is this one.
bool Engine::preempt_youngest(const Group& but) {
  const auto place = std::find_if(running_.rbegin(), running_.rend(),
                                  [](const auto& group) { return !group->beams; });
  invariant(place != running_.rend(), "a text that needs a page is one of those that run");
  const bool is_other = place->get() != &but;
  std::shared_ptr<Group> group = std::move(*place);
  group->is_running = false;
  running_.erase(std::next(place).base());
  for (Row& row : group->rows) release_pages(row);
  group->text.reset();
  group->pooled.clear();
  waiting_.push_front(std::move(group));
  ++counts_.preemptions;
  return is_other;
}

void Engine::release_pages(Row& row) {
  // Last pages first: they are then also the first to be evicted, and prefixes stay longer.
  for (auto page = row.pages.rbegin(); page != row.pages.rend(); ++page) pool_.release(*page);
  row.pages.clear();
  row.serials.clear();
  row.drafts.clear();
  row.cached = 0;
}

}  // namespace megatron
