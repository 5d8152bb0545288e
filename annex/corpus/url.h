#pragma once

#include <string>
#include <string_view>
#include <unordered_set>

namespace megatron::corpus {

// Rules of publicsuffix.org: under which names others register theirs.
class SuffixList {
 public:
  // A rule a line; "//" begins a comment, and rules behind "===BEGIN PRIVATE DOMAINS===" do not
  // count, so that the name of example.blogspot.com is "blogspot".
  explicit SuffixList(std::string_view text);

  // The label in front of the longest suffix: "example" of news.example.co.uk. Empty if there is
  // none. A host without a rule has a suffix of one label.
  std::string_view name_of(std::string_view host) const;

 private:
  std::unordered_set<std::string> rules_;
  std::unordered_set<std::string> wildcards_;   // "ck" for *.ck
  std::unordered_set<std::string> exceptions_;  // "www.ck" for !www.ck
};

// The host of a URL in lower case, without user, port and trailing dot. The scheme may be missing.
std::string host_of(std::string_view url);

// http or https, in any case; a host that is a name of two or more labels or an IPv4 address; maybe
// a port; then nothing, or a path or query without white space. Labels have 1 to 63 letters, digits
// and inner hyphens, the last one at least 2.
bool is_well_formed(std::string_view url);

}  // namespace megatron::corpus
