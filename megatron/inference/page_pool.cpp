#include "megatron/inference/page_pool.h"

#include "megatron/core/error.h"

namespace megatron {

PagePool::PagePool(int64_t num_pages, int64_t page_tokens)
    : page_tokens_(page_tokens), owners_(static_cast<size_t>(num_pages), 0) {
  // The stack yields pages in ascending order, so that pages of one text are adjacent.
  for (int64_t page = num_pages; page > 0; --page) free_.push_back(static_cast<int32_t>(page - 1));
}

int32_t PagePool::allocate() {
  if (free_.empty()) {
    invariant(!unowned_.empty(), "a page is taken only where one is available");
    const int32_t oldest = unowned_.front();
    unowned_.pop_front();
    place_of_.erase(oldest);
    forget(oldest);
    free_.push_back(oldest);
  }
  const int32_t page = free_.back();
  free_.pop_back();
  owners_[static_cast<size_t>(page)] = 1;
  return page;
}

void PagePool::retain(int32_t page) {
  if (owners_[static_cast<size_t>(page)]++ > 0) return;
  const auto place = place_of_.find(page);
  invariant(place != place_of_.end(), "a page without owner that is taken over is known");
  unowned_.erase(place->second);
  place_of_.erase(place);
}

void PagePool::release(int32_t page) {
  int32_t& owners = owners_[static_cast<size_t>(page)];
  invariant(owners > 0, "a page is released once by each owner");
  if (--owners > 0) return;
  if (content_of_.contains(page)) {
    place_of_[page] = unowned_.insert(unowned_.end(), page);
  } else {
    free_.push_back(page);
  }
}

void PagePool::forget(int32_t page) {
  const auto content = content_of_.find(page);
  known_.erase(content->second);
  content_of_.erase(content);
}

PagePool::Serial PagePool::publish(int32_t page, Serial before, std::span<const int32_t> tokens) {
  const auto [place, is_new] =
      known_.try_emplace({before, {tokens.begin(), tokens.end()}}, Known{page, last_serial_ + 1});
  if (is_new) {
    ++last_serial_;
    content_of_[page] = place;
  }
  return place->second.serial;
}

PagePool::Match PagePool::match(std::span<const int32_t> tokens) {
  Match found;
  const auto width = static_cast<size_t>(page_tokens_);
  for (; tokens.size() >= width; tokens = tokens.subspan(width)) {
    const auto page_tokens = tokens.first(width);
    const Serial before = found.serials.empty() ? 0 : found.serials.back();
    const auto place = known_.find({before, {page_tokens.begin(), page_tokens.end()}});
    if (place == known_.end()) break;
    retain(place->second.page);
    found.pages.push_back(place->second.page);
    found.serials.push_back(place->second.serial);
  }
  return found;
}

}  // namespace megatron
