#include "megatron/inference/step_rows.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "megatron/core/error.h"

namespace megatron {

std::span<const int32_t> StepRows::of(std::span<const int64_t> ids) {
  if (std::equal(ids.begin(), ids.end(), ids_.begin(), ids_.end())) return rows_;
  std::unordered_map<int64_t, int32_t> before;
  for (size_t i = 0; i < ids_.size(); ++i) before[ids_[i]] = rows_[i];

  constexpr int32_t kNone = -1;
  ids_.assign(ids.begin(), ids.end());
  rows_.assign(ids.size(), kNone);
  std::vector<bool> is_taken(ids.size(), false);
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto place = before.find(ids[i]);
    if (place == before.end() || static_cast<size_t>(place->second) >= ids.size()) continue;
    rows_[i] = place->second;
    is_taken[static_cast<size_t>(place->second)] = true;
  }
  size_t free = 0;
  for (int32_t& row : rows_) {
    if (row != kNone) continue;
    while (is_taken[free]) ++free;
    row = static_cast<int32_t>(free++);
  }
  return rows_;
}

PageTableCopy::PageTableCopy(int64_t rows, int64_t max_pages)
    : max_pages_(max_pages),
      pages_(static_cast<size_t>(rows * max_pages), 0),
      texts_(static_cast<size_t>(rows)) {}

void PageTableCopy::put(int64_t row, int64_t text, std::span<const int32_t> pages,
                        std::vector<int32_t>& changes) {
  invariant(static_cast<int64_t>(pages.size()) <= max_pages_, "a row's pages fit into the table");
  const auto begin = static_cast<size_t>(row * max_pages_);
  Text& known = texts_[static_cast<size_t>(row)];
  if (known.id != text) known = {text, 0};
  for (size_t i = std::exchange(known.num_pages, pages.size()); i < pages.size(); ++i) {
    if (pages_[begin + i] == pages[i]) continue;
    pages_[begin + i] = pages[i];
    changes.push_back(static_cast<int32_t>(begin + i));
    changes.push_back(pages[i]);
  }
}

}  // namespace megatron
