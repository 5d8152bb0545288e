#include "annex/corpus/url.h"

#include <algorithm>

namespace megatron::corpus {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter_or_digit(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool starts_with_ignoring_case(std::string_view text, std::string_view start) {
  return text.size() >= start.size() && std::equal(start.begin(), start.end(), text.begin(),
                                                   [](char a, char b) { return a == lower(b); });
}

std::string_view trimmed(std::string_view line) {
  const size_t begin = line.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1);
}

// Calls f(label) for the labels of a host; false if f is for one of them.
template <class F>
bool all_labels(std::string_view host, const F& f) {
  while (true) {
    const size_t dot = host.find('.');
    if (!f(host.substr(0, dot))) return false;
    if (dot == std::string_view::npos) return true;
    host.remove_prefix(dot + 1);
  }
}

bool is_ipv4(std::string_view host) {
  const auto is_number = [](std::string_view label) {
    return !label.empty() && label.size() <= 3 && std::ranges::all_of(label, is_digit);
  };
  return std::ranges::count(host, '.') == 3 && all_labels(host, is_number);
}

bool is_domain(std::string_view host) {
  if (host.ends_with('.')) host.remove_suffix(1);
  const auto is_label = [](std::string_view label) {
    return !label.empty() && label.size() <= 63 && label.front() != '-' && label.back() != '-' &&
           std::ranges::all_of(label, [](char c) { return is_letter_or_digit(c) || c == '-'; });
  };
  const size_t dot = host.rfind('.');
  return dot != std::string_view::npos && host.size() - dot > 2 && all_labels(host, is_label);
}

}  // namespace

SuffixList::SuffixList(std::string_view text) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = trimmed(text.substr(begin, end - begin));
    begin = end + 1;
    if (line.find("===BEGIN PRIVATE DOMAINS===") != std::string_view::npos) return;
    if (line.empty() || line.starts_with("//")) continue;
    if (line.starts_with("*.")) {
      wildcards_.emplace(line.substr(2));
    } else if (line.starts_with('!')) {
      exceptions_.emplace(line.substr(1));
    } else {
      rules_.emplace(line);
    }
  }
}

std::string_view SuffixList::name_of(std::string_view host) const {
  if (is_ipv4(host)) return host;
  // From the longest candidate on: the first one that is a suffix is the longest suffix.
  std::string_view name;  // the label in front of the candidate
  for (std::string_view candidate = host; !candidate.empty();) {
    const std::string text(candidate);
    const size_t dot = candidate.find('.');
    const bool is_last = dot == std::string_view::npos;
    const std::string_view rest = is_last ? std::string_view() : candidate.substr(dot + 1);
    if (exceptions_.contains(text)) return candidate.substr(0, dot);
    if (is_last || rules_.contains(text) || wildcards_.contains(std::string(rest))) return name;
    name = candidate.substr(0, dot);
    candidate = rest;
  }
  return {};
}

std::string host_of(std::string_view url) {
  const size_t scheme = url.find("://");
  if (scheme != std::string_view::npos && url.find_first_of("/?#") > scheme) {
    url.remove_prefix(scheme + 3);
  }
  url = url.substr(0, url.find_first_of("/?#"));
  const size_t user = url.rfind('@');
  if (user != std::string_view::npos) url.remove_prefix(user + 1);
  url = url.substr(0, url.find(':'));
  while (url.ends_with('.')) url.remove_suffix(1);
  std::string host(url);
  std::ranges::transform(host, host.begin(), lower);
  return host;
}

bool is_well_formed(std::string_view url) {
  if (starts_with_ignoring_case(url, "http://")) {
    url.remove_prefix(7);
  } else if (starts_with_ignoring_case(url, "https://")) {
    url.remove_prefix(8);
  } else {
    return false;
  }
  const size_t end = std::min(url.find_first_of("/?"), url.size());
  std::string_view host = url.substr(0, end);
  const std::string_view path = url.substr(end);
  const size_t colon = host.find(':');
  if (colon != std::string_view::npos) {
    const std::string_view port = host.substr(colon + 1);
    if (port.empty() || !std::ranges::all_of(port, is_digit)) return false;
    host = host.substr(0, colon);
  }
  if (path == "?" || path.find_first_of(" \t\v\f\r\n") != std::string_view::npos) return false;
  return is_ipv4(host) || is_domain(host);
}

}  // namespace megatron::corpus
