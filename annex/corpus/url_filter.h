#pragma once

#include <cstdint>
#include <filesystem>

#include "annex/corpus/lines.h"

namespace megatron::corpus {

// Empty paths mean the lists of megatron/corpus/lists.
struct UrlFilterConfig {
  std::filesystem::path input = {};           // a folder; its files *.txt have a URL a line
  std::filesystem::path output = {};          // the good URLs, in the order of the files' names
  std::filesystem::path domain_list = {};     // names of sites; lines with # are comments
  std::filesystem::path extension_list = {};  // ends of paths; lines with # are comments
  std::filesystem::path suffix_list = {};     // the file of publicsuffix.org
};

// Each rejected URL counts once, for the first of these reasons.
struct UrlCounts {
  int64_t urls = 0;
  int64_t bad_domains = 0;     // the name of the site is on the list
  int64_t bad_extensions = 0;  // the URL before its query ends, in lower case, like one on the list
  int64_t short_urls = 0;      // 8 bytes or less
  int64_t malformed = 0;       // not is_well_formed()
  int64_t duplicates = 0;      // equal to an earlier one
  int64_t written = 0;
};

// Selects the URLs of pages that are worth downloading. Memory: each good URL, and about 60 bytes
// more. Throws ConfigError if the folder has no files *.txt, and IoError.
//
// Compat: tools/openwebtext/blacklist_urls.py of Megatron-LM core_r0.5.0; lists and their order in
// the output are our own.
UrlCounts filter_urls(const UrlFilterConfig& config, const RunOptions& options);

}  // namespace megatron::corpus
