#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace megatron {

// Reference-counted pages of a KvCache, with prefix caching. Texts with a common prefix share
// pages. A full, published page is kept after its last owner is gone until its memory is needed, so
// that a later text with the same prefix can reuse it. Every rank of a model makes the same calls
// and gets the same pages.
class PagePool {
 public:
  // A published page: its number is never used again. 0 stands before the first page of a text.
  using Serial = uint64_t;

  PagePool(int64_t num_pages, int64_t page_tokens);

  int64_t num_pages() const { return static_cast<int64_t>(owners_.size()); }
  int64_t page_tokens() const { return page_tokens_; }
  // Pages for `tokens` tokens.
  int64_t pages_for(int64_t tokens) const { return (tokens + page_tokens_ - 1) / page_tokens_; }
  // Pages that allocate() can still return: free or evictable ones.
  int64_t num_available() const { return static_cast<int64_t>(free_.size() + unowned_.size()); }
  // Pages with an owner.
  int64_t num_owned() const { return num_pages() - num_available(); }

  // A page with reference count 1. REQUIRES: num_available() > 0.
  int32_t allocate();
  // Increments the reference count.
  void retain(int32_t page);
  // Decrements it.
  void release(int32_t page);

  // Registers a full page that holds `tokens` after the page `before`. Returns its serial, or that
  // of a page already registered with the same contents, which stays the registered one.
  Serial publish(int32_t page, Serial before, std::span<const int32_t> tokens);

  struct Match {
    std::vector<int32_t> pages;  // each retained
    std::vector<Serial> serials;
  };
  // The longest prefix of `tokens` in registered pages.
  Match match(std::span<const int32_t> tokens);

 private:
  using Content = std::pair<Serial, std::vector<int32_t>>;  // serial of the previous page, tokens

  struct Known {
    int32_t page = 0;
    Serial serial = 0;
  };
  void forget(int32_t page);

  int64_t page_tokens_;
  std::vector<int32_t> owners_;  // reference counts by page
  std::vector<int32_t> free_;    // a stack: pages without contents
  std::list<int32_t> unowned_;   // registered pages without owner, least recently used first
  std::map<Content, Known> known_;
  std::unordered_map<int32_t, std::map<Content, Known>::iterator> content_of_;  // by page
  std::unordered_map<int32_t, std::list<int32_t>::iterator> place_of_;          // in unowned_
  Serial last_serial_ = 0;
};

}  // namespace megatron
