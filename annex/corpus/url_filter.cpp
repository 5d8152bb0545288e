#include "annex/corpus/url_filter.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <vector>

#include "annex/corpus/lists.h"
#include "annex/corpus/url.h"

namespace megatron::corpus {
namespace {

constexpr size_t kShortUrl = 8;  // bytes

enum class Verdict { kGood, kBadDomain, kBadExtension, kShort, kMalformed };

struct CheckedUrl {
  Verdict verdict = Verdict::kGood;
  std::string url;
};

std::string text_or(const std::filesystem::path& path, const char* other) {
  return path.empty() ? other : read_text(path);
}

std::string in_lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::string_view without_blanks(std::string_view line) {
  const size_t begin = line.find_first_not_of(" \t\v\f\r");
  if (begin == std::string_view::npos) return {};
  return line.substr(begin, line.find_last_not_of(" \t\v\f\r") - begin + 1);
}

std::vector<std::string> entries_of(std::string_view list) {
  std::vector<std::string> entries;
  while (!list.empty()) {
    const size_t end = std::min(list.find('\n'), list.size());
    const std::string_view entry = without_blanks(list.substr(0, end));
    if (!entry.empty() && !entry.starts_with('#')) entries.push_back(in_lower_case(entry));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return entries;
}

// The rules that look at a URL by itself. Immutable, so thread safe.
class UrlRules {
 public:
  explicit UrlRules(const UrlFilterConfig& config)
      : suffixes_(text_or(config.suffix_list, kSuffixList)),
        extensions_(entries_of(text_or(config.extension_list, kExtensionList))) {
    const auto domains = entries_of(text_or(config.domain_list, kDomainList));
    domains_.insert(domains.begin(), domains.end());
  }

  Verdict check(std::string_view url) const {
    const std::string host = host_of(url);
    if (domains_.contains(std::string(suffixes_.name_of(host)))) return Verdict::kBadDomain;
    const std::string path = in_lower_case(url.substr(0, url.find('?')));
    const auto is_end = [&](const std::string& extension) { return path.ends_with(extension); };
    if (std::ranges::any_of(extensions_, is_end)) return Verdict::kBadExtension;
    if (url.size() <= kShortUrl) return Verdict::kShort;
    return is_well_formed(url) ? Verdict::kGood : Verdict::kMalformed;
  }

 private:
  SuffixList suffixes_;
  std::unordered_set<std::string> domains_;
  std::vector<std::string> extensions_;
};

}  // namespace

UrlCounts filter_urls(const UrlFilterConfig& config, const RunOptions& options) {
  const std::vector<std::filesystem::path> files =
      files_with_extension(config.input, ".txt", config.output);
  expect_other_files(files, {&config.output, 1});
  const UrlRules rules(config);
  FileWriter writer(config.output);
  std::unordered_set<std::string> known;
  UrlCounts counts;
  const auto make_work = [&] {
    return [&](const Line& line) {
      const std::string_view url = without_blanks(line.text);
      return CheckedUrl{rules.check(url), std::string(url)};
    };
  };
  const auto take = [&](const Line&, CheckedUrl& checked) {
    if (checked.verdict == Verdict::kBadDomain) ++counts.bad_domains;
    if (checked.verdict == Verdict::kBadExtension) ++counts.bad_extensions;
    if (checked.verdict == Verdict::kShort) ++counts.short_urls;
    if (checked.verdict == Verdict::kMalformed) ++counts.malformed;
    if (checked.verdict != Verdict::kGood) return;
    if (!known.insert(checked.url).second) {
      ++counts.duplicates;
      return;
    }
    writer.write(checked.url);
    writer.write("\n");
    ++counts.written;
  };
  counts.urls = each_line<CheckedUrl>(files, options, make_work, take);
  writer.commit();
  return counts;
}

}  // namespace megatron::corpus
