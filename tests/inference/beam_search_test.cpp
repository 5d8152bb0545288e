#include "megatron/inference/beam_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>

namespace megatron {
namespace {

constexpr int32_t kVocabulary = 7;
constexpr int32_t kStop = 3;
using Tokens = std::vector<int32_t>;

// A made-up language: log-probabilities of the next token behind any tokens.
std::vector<double> next_log_probabilities(const Tokens& tokens, uint32_t seed) {
  uint32_t state = seed;
  for (const int32_t token : tokens) state = state * 2654435761u + static_cast<uint32_t>(token) + 1;
  std::mt19937 random(state);
  std::vector<double> logits(kVocabulary);
  double sum = 0;
  for (double& logit : logits) {
    logit = static_cast<double>(random() % 4000) / 1000;
    sum += std::exp(logit);
  }
  for (double& logit : logits) logit -= std::log(sum);
  return logits;
}

// Runs the class on the made-up language.
std::vector<Hypothesis> searched(const BeamOptions& options, int64_t max_new, uint32_t seed) {
  BeamSearch search(options, {kStop}, max_new);
  std::vector<Tokens> beams = {{}};
  while (!search.is_done()) {
    std::vector<BeamCandidate> all;
    for (size_t beam = 0; beam < beams.size(); ++beam) {
      const auto next = next_log_probabilities(beams[beam], seed);
      for (int32_t token = 0; token < kVocabulary; ++token) {
        const auto index = static_cast<int64_t>(beam);
        all.push_back(
            {index, token, search.log_probability(index) + next[static_cast<size_t>(token)]});
      }
    }
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
      return a.log_probability > b.log_probability;
    });
    all.resize(std::min(all.size(), static_cast<size_t>(search.num_candidates())));
    std::vector<Tokens> next;
    const std::vector<int64_t> parents = search.advance(all);
    for (size_t i = 0; i < parents.size(); ++i) {
      next.push_back(beams[static_cast<size_t>(parents[i])]);
      next.back().push_back(search.last_token(static_cast<int64_t>(i)));
    }
    beams = next;
  }
  return search.take_result();
}

// The same search in the plainest way: every beam with all its tokens, nothing shared.
std::vector<Hypothesis> plain_search(const BeamOptions& options, int64_t max_new, uint32_t seed) {
  struct Open {
    Tokens tokens;
    double sum;
  };
  const auto width = static_cast<size_t>(options.width);
  const auto score = [&](double sum, size_t length) {
    return sum / std::pow(static_cast<double>(length), options.length_penalty);
  };
  std::vector<Hypothesis> found;
  const auto add = [&](const Tokens& tokens, double value, bool stopped) {
    const auto worst = std::min_element(found.begin(), found.end(),
                                        [](auto& a, auto& b) { return a.score < b.score; });
    if (found.size() >= width) {
      if (value <= worst->score) return;
      found.erase(worst);
    }
    found.push_back({tokens, value, stopped});
  };
  std::vector<Open> open = {{{}, 0}};
  bool done = false;
  for (size_t length = 1; length <= static_cast<size_t>(max_new) && !done; ++length) {
    std::vector<std::pair<Open, int32_t>> all;
    for (const Open& beam : open) {
      const auto next = next_log_probabilities(beam.tokens, seed);
      for (int32_t token = 0; token < kVocabulary; ++token) {
        all.push_back({{beam.tokens, beam.sum + next[static_cast<size_t>(token)]}, token});
      }
    }
    std::stable_sort(all.begin(), all.end(),
                     [](auto& a, auto& b) { return a.first.sum > b.first.sum; });
    std::vector<Open> next;
    for (size_t rank = 0; rank < std::min(all.size(), 2 * width) && next.size() < width; ++rank) {
      auto [beam, token] = all[rank];
      if (token == kStop) {
        if (rank < width) add(beam.tokens, score(beam.sum, length), true);
        continue;
      }
      beam.tokens.push_back(token);
      next.push_back(beam);
    }
    if (found.size() >= width) {
      double worst = found.front().score;
      for (const Hypothesis& hypothesis : found) worst = std::min(worst, hypothesis.score);
      done = worst >= score(all.front().first.sum, length);
    }
    open = next;
  }
  if (!done) {
    for (const Open& beam : open) add(beam.tokens, score(beam.sum, beam.tokens.size()), false);
  }
  std::stable_sort(found.begin(), found.end(), [](auto& a, auto& b) { return a.score > b.score; });
  return found;
}

TEST(BeamSearchTest, EqualsThePlainSearch) {
  int stopped = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    for (const int64_t width : {1, 2, 4}) {
      for (const double penalty : {0.0, 1.0, 2.5}) {
        const BeamOptions options{width, penalty};
        const auto got = searched(options, 6, seed);
        const auto want = plain_search(options, 6, seed);
        ASSERT_EQ(got.size(), want.size()) << seed << " " << width << " " << penalty;
        for (size_t i = 0; i < want.size(); ++i) {
          EXPECT_EQ(got[i].tokens, want[i].tokens) << seed << " " << width << " " << penalty;
          EXPECT_NEAR(got[i].score, want[i].score, 1e-12);
          EXPECT_EQ(got[i].is_stopped, want[i].is_stopped);
          stopped += want[i].is_stopped ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(stopped, 100);
}

// With as many beams as there are texts, the best of all texts is found.
TEST(BeamSearchTest, WideBeamsFindTheBestOfAll) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    constexpr size_t kLength = 3;
    double best = -1e9;
    const std::function<void(Tokens, double)> visit = [&](const Tokens& tokens, double sum) {
      const auto next = next_log_probabilities(tokens, seed);
      const auto length = static_cast<double>(tokens.size() + 1);
      for (int32_t token = 0; token < kVocabulary; ++token) {
        const double total = sum + next[static_cast<size_t>(token)];
        if (token == kStop || tokens.size() + 1 == kLength) best = std::max(best, total / length);
        if (token == kStop || tokens.size() + 1 == kLength) continue;
        Tokens longer = tokens;
        longer.push_back(token);
        visit(longer, total);
      }
    };
    visit({}, 0);
    const auto got = searched({500, 1.0}, kLength, seed);
    EXPECT_NEAR(got.front().score, best, 1e-12);
  }
}

TEST(BeamSearchTest, OneBeamIsGreedy) {
  const auto got = searched({1, 1.0}, 5, 11);
  ASSERT_EQ(got.size(), 1u);
  Tokens greedy;
  for (int i = 0; i < 5; ++i) {
    const auto next = next_log_probabilities(greedy, 11);
    const auto token =
        static_cast<int32_t>(std::max_element(next.begin(), next.end()) - next.begin());
    if (token == kStop) break;
    greedy.push_back(token);
  }
  EXPECT_EQ(got.front().tokens, greedy);
}

}  // namespace
}  // namespace megatron
