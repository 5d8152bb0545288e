#include "megatron/serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace megatron::serve {
namespace {

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\' || c == '"') result += '\\';
    result += c == '\n' ? ' ' : c;
  }
  return result;
}

std::string head(const std::string& name, const std::string& type, const std::string& help) {
  return fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), counts_(bounds_.size() + 1, 0) {}

void Histogram::add(double value) {
  const auto place = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  ++counts_[static_cast<size_t>(place)];
  sum_ += value;
}

std::string Histogram::text(const std::string& name, const std::string& label) const {
  std::string result;
  int64_t count = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    count += counts_[i];
    const std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    result += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, label, bound, count);
  }
  result += fmt::format("{0}_sum{{{1}}} {2}\n{0}_count{{{1}}} {3}\n", name, label, sum_, count);
  return result;
}

void Metrics::count_token() {
  const std::lock_guard lock(mutex_);
  ++tokens_;
}
void Metrics::count_finished(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  ++finished_[reason];
}
void Metrics::count_refused() {
  const std::lock_guard lock(mutex_);
  ++refused_;
}
void Metrics::add_queue_time(double seconds) {
  const std::lock_guard lock(mutex_);
  queue_time_.add(seconds);
}
void Metrics::add_time_to_first_token(double seconds) {
  const std::lock_guard lock(mutex_);
  time_to_first_token_.add(seconds);
}
void Metrics::add_time_between_tokens(double seconds) {
  const std::lock_guard lock(mutex_);
  time_between_tokens_.add(seconds);
}
void Metrics::add_request_time(double seconds) {
  const std::lock_guard lock(mutex_);
  request_time_.add(seconds);
}

std::string Metrics::text(const EngineState& state, const std::string& model_name) const {
  const std::lock_guard lock(mutex_);
  const std::string label = fmt::format("model_name=\"{}\"", escaped(model_name));
  std::string result;
  const auto add = [&](const std::string& name, const std::string& type, const std::string& help,
                       double value) {
    result += head(name, type, help) + fmt::format("{}{{{}}} {}\n", name, label, value);
  };
  const auto number = [](int64_t count) { return static_cast<double>(count); };
  add("vllm:num_requests_running", "gauge", "Requests whose texts are continued now.",
      number(state.running));
  add("vllm:num_requests_waiting", "gauge", "Requests that wait to be continued.",
      number(state.waiting));
  const double used = state.pages == 0 ? 0 : number(state.pages_owned) / number(state.pages);
  add("vllm:kv_cache_usage_perc", "gauge", "Share of the cache's pages in use, from 0 to 1.", used);
  add("vllm:gpu_cache_usage_perc", "gauge", "The same under its older name.", used);
  add("vllm:num_preemptions_total", "counter", "Requests that had to give their pages back.",
      number(state.preemptions));
  add("vllm:prompt_tokens_total", "counter", "Tokens of prompts.", number(state.prompt_tokens));
  add("vllm:generation_tokens_total", "counter", "Tokens drawn.", number(tokens_));
  add("vllm:prefix_cache_queries_total", "counter", "Tokens of prompts that were looked up.",
      number(state.prompt_tokens));
  add("vllm:prefix_cache_hits_total", "counter", "Of these, tokens that the cache had.",
      number(state.reused_tokens));
  add("vllm:spec_decode_num_drafts_total", "counter", "Times that drafts of a text were verified.",
      number(state.drafts));
  add("vllm:spec_decode_num_draft_tokens_total", "counter", "Draft tokens verified.",
      number(state.draft_tokens));
  add("vllm:spec_decode_num_accepted_tokens_total", "counter", "Of these, draft tokens accepted.",
      number(state.accepted_draft_tokens));
  add("megatron:requests_refused_total", "counter", "Requests answered with 429.",
      number(refused_));
  result += head("vllm:request_success_total", "counter", "Requests that are finished, by reason.");
  for (const auto& [reason, count] : finished_) {
    result += fmt::format("vllm:request_success_total{{{},finished_reason=\"{}\"}} {}\n", label,
                          reason, count);
  }
  const auto add_times = [&](const std::string& name, const std::string& help,
                             const Histogram& histogram) {
    result += head(name, "histogram", help) + histogram.text(name, label);
  };
  add_times("vllm:request_queue_time_seconds", "Until a request's first pass.", queue_time_);
  add_times("vllm:time_to_first_token_seconds", "Until the first token.", time_to_first_token_);
  add_times("vllm:time_per_output_token_seconds", "From a token to the next.",
            time_between_tokens_);
  add_times("vllm:inter_token_latency_seconds", "The same under its newer name.",
            time_between_tokens_);
  add_times("vllm:e2e_request_latency_seconds", "Until the last token.", request_time_);
  return result;
}

}  // namespace megatron::serve
