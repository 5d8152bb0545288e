#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace megatron {

// Assigns batch rows to texts that join and leave. A text keeps its row from step to step, so that
// its state on the device stays in place.
class StepRows {
 public:
  // The rows of the texts, a permutation of 0 .. ids.size() - 1. A text of the previous call keeps
  // its row if that is below ids.size().
  std::span<const int32_t> of(std::span<const int64_t> ids);

 private:
  std::vector<int64_t> ids_;
  std::vector<int32_t> rows_;
};

// The host's copy of the page table on the device; computes the changes to upload.
class PageTableCopy {
 public:
  // All pages are 0.
  PageTableCopy(int64_t rows, int64_t max_pages);

  // Row `row` begins with `pages` of a text, at most max_pages; its other entries are ignored.
  // Appends index and page of each changed entry to `changes`. REQUIRES: while a text is in a row,
  // its list of pages only grows.
  void put(int64_t row, int64_t text, std::span<const int32_t> pages,
           std::vector<int32_t>& changes);

  // The first `rows` rows.
  std::span<const int32_t> first_rows(int64_t rows) const {
    return std::span(pages_).first(static_cast<size_t>(rows * max_pages_));
  }

 private:
  // The text at the beginning of a row.
  struct Text {
    int64_t id = -1;
    size_t num_pages = 0;
  };

  int64_t max_pages_;
  std::vector<int32_t> pages_;
  std::vector<Text> texts_;  // by row
};

}  // namespace megatron
