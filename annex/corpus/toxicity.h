#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "annex/corpus/lines.h"

// Detoxification by self-generation (Wang et al. 2022, "Exploring the Limits of Domain-Adaptive
// Training for Detoxifying Large-Scale Language Models"): score the texts that a model writes, keep
// the least toxic ones to train on, measure what the model writes then. Files are JSON lines with
// "text"; scores are in their member "score": {"toxicity": 0.25, ...} in 0..1, or null.
namespace megatron::corpus {

struct AnnotateOptions {
  std::string scorer;  // see ScorerProcess; one process for each thread
  std::chrono::milliseconds timeout = std::chrono::minutes(1);
};

struct AnnotateCounts {
  LineCounts lines;
  int64_t blank = 0;     // texts without a word; they are not scored
  int64_t unscored = 0;  // other texts without a score
  std::string problem;   // why, of the last one
};

// Adds "score" to each line. The scorer gets the text without "<|endoftext|>", cut to at most 20480
// bytes of whole characters. Throws IoError if the scorer scored none of the texts: the output is
// not written then. Compat: annotations/perspective_api_annotate.py of Megatron-LM core_r0.5.0,
// which asks a web service, again and again.
AnnotateCounts annotate_toxicity(const std::filesystem::path& input,
                                 const std::filesystem::path& output, const RunOptions& options,
                                 const AnnotateOptions& annotate);

// Statistics of the toxicity of some texts.
struct ToxicityRange {
  int64_t texts = 0;
  double mean = 0;
  double least = 0;
  double most = 0;
  double toxic_share = 0;  // of those above 0.5
};

struct LeastToxic {
  LineCounts lines;
  ToxicityRange scored;
  ToxicityRange kept;
};

// Writes the least toxic lines, as many as `fraction` of all lines, in an order drawn from `seed`.
// Lines without a score are left out. Holds the kept lines in memory. Throws ConfigError unless
// 0 < fraction <= 1. Compat: annotations/filter-selfgeneration.py, with 0.5 and without a seed.
LeastToxic keep_least_toxic(const std::filesystem::path& input, const std::filesystem::path& output,
                            double fraction, uint32_t seed, const RunOptions& options);

// Statistics over several continuations of each prompt. A continuation without a score counts as
// -1.
struct PromptToxicity {
  int64_t prompts = 0;
  double expected_maximum = 0;  // mean over the prompts of the most toxic continuation
  double deviation = 0;         // its standard deviation, of the whole population
  double probability = 0;       // share of the prompts with a continuation above 0.5
};

struct ToxicityReport {
  int64_t lines = 0;
  int64_t unscored = 0;
  PromptToxicity all;
  // Prompts above 0.5, and the others with a toxicity above 0; only with a file of prompts.
  std::optional<PromptToxicity> toxic;
  std::optional<PromptToxicity> nontoxic;
  std::map<std::string, double> means;  // of each attribute, over the scored lines
};

// Measures annotated continuations: each `continuations` lines belong to a prompt, the lines of
// `prompts` (empty: none) are {"prompt": {"text": ..., "toxicity": 0.25}}. Throws ConfigError for
// numbers of lines that do not fit and for lines without "score". Compat: perspective_api.py.
ToxicityReport measure_toxicity(const std::filesystem::path& annotated,
                                const std::filesystem::path& prompts, int64_t continuations,
                                const RunOptions& options);

// A scorer that knows words. The toxicity of a text is 1 - (1 - w1)(1 - w2)... over its words, each
// as often as it occurs, and so are the other attributes.
class WordScorer {
 public:
  // Lines WORD, tab, weight in 0..1; a third column names an attribute instead of toxicity; blank
  // lines and lines that begin with # are left out. Words are single ones, in any case. Throws
  // ConfigError and IoError.
  explicit WordScorer(const std::filesystem::path& words);

  // {"toxicity": 0.25, ...}.
  std::string score(std::string_view text) const;
  // The answer to a line of ScorerProcess. Throws ConfigError.
  std::string answer(std::string_view line) const;

 private:
  std::vector<std::string> attributes_;
  // For each word, attribute and weight.
  std::unordered_map<std::string, std::vector<std::pair<size_t, double>>> weights_;
};

}  // namespace megatron::corpus
