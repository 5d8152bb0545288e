#pragma once

#include <cstdint>
#include <filesystem>

#include "annex/corpus/lines.h"

namespace megatron::corpus {

struct GroupCounts {
  int64_t lines = 0;
  int64_t bad_lines = 0;
  int64_t groups = 0;
  int64_t removable = 0;  // ids that are not the first of their group
};

// Joins the pairs of find_near_duplicates() whose similarity is at least `threshold` to groups, by
// union-find: a and c share a group if b is similar to both. Writes {"<number>": [ids...]} for each
// group of more than one id. Ids and groups have the order of their first appearance, and groups
// are numbered from 0. Memory: each id, and about 120 bytes more.
//
// Compat: tools/openwebtext/group_duplicate_url.py of Megatron-LM core_r0.5.0, which keeps no
// order.
GroupCounts group_duplicates(const std::filesystem::path& pairs,
                             const std::filesystem::path& output, double threshold,
                             const RunOptions& options);

struct RemovalCounts {
  LineCounts lines;
  int64_t groups = 0;
  int64_t removed = 0;  // documents
};

// Copies the documents of `data` whose "url" is the first of its group or in no group. Copies are
// written as Python's json.dumps with ensure_ascii=False writes them. Memory: the ids that
// are removed, and about 80 bytes for each.
//
// Compat: tools/openwebtext/remove_group_duplicates.py.
RemovalCounts remove_group_duplicates(const std::filesystem::path& groups,
                                      const std::filesystem::path& data,
                                      const std::filesystem::path& output,
                                      const RunOptions& options);

}  // namespace megatron::corpus
