#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace megatron {

// Rows of a batch for texts that come and go: a text keeps its row from step to step, so that what
// the device has of it stays where it is.
class StepRows {
 public:
  // A row for each of the texts, all different: a permutation of 0 .. ids.size() - 1. A text of the
  // call before keeps its row if that is among them.
  std::span<const int32_t> of(std::span<const int64_t> ids);

 private:
  std::vector<int64_t> ids_;
  std::vector<int32_t> rows_;
};

// The host's copy of a table of pages on the device. It tells what must change there.
class PageTableCopy {
 public:
  // All pages are 0.
  PageTableCopy(int64_t rows, int64_t max_pages);

  // Row `row` begins with `pages` of a text, at most max_pages; the rest of it does not matter.
  // Appends to `changes` the place in the table and the page for all that differs.
  // REQUIRES: while a text is in a row, its pages only become more.
  void put(int64_t row, int64_t text, std::span<const int32_t> pages,
           std::vector<int32_t>& changes);

  // The rows before `rows`.
  std::span<const int32_t> first_rows(int64_t rows) const {
    return std::span(pages_).first(static_cast<size_t>(rows * max_pages_));
  }

 private:
  // What a row begins with.
  struct Text {
    int64_t id = -1;
    size_t num_pages = 0;
  };

  int64_t max_pages_;
  std::vector<int32_t> pages_;
  std::vector<Text> texts_;  // by row
};

}  // namespace megatron
