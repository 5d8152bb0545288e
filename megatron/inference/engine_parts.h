#pragma once

#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "megatron/inference/engine.h"

// What the engine's files share.
namespace megatron {

// In place of a token or beam: the logits are not numbers.
inline constexpr double kNotDrawn = -1;

// What the encoder of a T5 has read for the requests that have this text: pages with the keys and
// values of the decoder's layers.
struct Engine::Text {
  explicit Text(PagePool& the_pool) : pool(the_pool) {}
  ~Text() {
    for (const int32_t page : pages) pool.release(page);
  }
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;

  PagePool& pool;
  std::vector<int32_t> pages = {};
  bool is_read = false;
};

struct Engine::Row {
  std::vector<int32_t> tokens = {};
  std::vector<int32_t> pages = {};
  std::vector<PagePool::Serial> serials = {};  // of the first pages, as far as they are known
  int64_t cached = 0;                          // tokens whose keys and values are in the pages
};

struct Engine::Group : std::enable_shared_from_this<Group> {
  Group(RequestId the_id, Request the_request)
      : id(the_id), request(std::move(the_request)), rows(1) {
    rows.front().tokens = request.prompt;
    if (request.beams && request.max_new_tokens > 0) {
      beams.emplace(*request.beams, request.stop_tokens, request.max_new_tokens);
    }
  }

  // The most rows it will ever have.
  int64_t num_rows() const { return beams ? request.beams->width : 1; }
  // The most pages it will ever have. A beam search needs one more a beam while it copies.
  int64_t most_pages(const PagePool& pool) const {
    const int64_t pages =
        pool.pages_for(static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens);
    return beams ? num_rows() * (pages + 1) : pages;
  }
  // Tokens of a row that the model reads before the next draw.
  int64_t num_inputs(const Row& row) const {
    const auto count = static_cast<int64_t>(row.tokens.size());
    if (request.max_new_tokens > 0) return count;
    return request.wants_prompt() ? count - 1 : 0;
  }
  int64_t num_inputs() const { return num_inputs(rows.front()); }
  // All tokens but the last one are in the cache.
  bool is_read() const { return num_inputs() - rows.front().cached == 1; }
  // Log-probabilities of the prompt are still to be found.
  bool wants_forced() const {
    return request.wants_prompt() && num_forced + 1 < static_cast<int64_t>(request.prompt.size());
  }

  // Tokens drawn so far.
  int64_t num_drawn(const Row& row) const {
    return static_cast<int64_t>(row.tokens.size() - request.prompt.size());
  }

  RequestId id;
  Request request;
  bool is_running = false;
  int64_t admission = 0;            // its number among all, while the group runs
  std::shared_ptr<Text> text = {};  // of a T5, while the group runs
  std::vector<Row> rows;
  std::optional<BeamSearch> beams = {};
  int64_t num_forced = 0;  // log-probabilities of the prompt that are known
};

struct Engine::Part {
  Group* group = nullptr;
  Row* row = nullptr;
  bool is_first = false;  // row of its group
  int64_t begin = 0;      // the tokens [begin, begin + count) of the row ...
  int64_t count = 0;
  int64_t first_token = 0;  // ... are those of the pass from here on
  bool draws = false;       // the row's next token comes from the last one
  // The positions that tell the log-probabilities of tokens of the prompt.
  int64_t first_forced = 0;
  int64_t num_forced = 0;
};

// The texts of a step that was launched before the host knew the tokens of the one before. What the
// host needs in each step lies together, by row of the step: a text has its memory elsewhere, and
// the caches have lost it when the step is done.
struct Engine::StepTexts {
  struct Text {
    explicit Text(Group& the_group);
    // Appends the token that a plain text drew.
    RequestProgress append(int32_t token) const;

    Group* group;  // it runs, or is in `gone`
    RequestId id;
    Row* row;
    static constexpr size_t kMostStops = 4;

    int64_t end;  // tokens that the row has at last
    // Those of is_plain, then kNoToken.
    std::array<int32_t, kMostStops> stop_tokens;
    bool is_plain;   // its request asks for tokens alone, with at most kMostStops that stop it
    bool is_random;  // its Draw changes from step to step
  };

  std::vector<Text> texts = {};
  std::vector<DecodeRow> rows = {};               // as they were launched last
  std::vector<std::shared_ptr<Group>> gone = {};  // run no more
};

// Rows `ids` of hidden [t, 1, h]: [ids, 1, h].
Tensor rows_of(const Tensor& hidden, const std::vector<int64_t>& ids);

// Whether the device can draw token `step` of a request.
bool draws_on_device(const Request& request, int64_t step);
// How it draws the token. Ids from known_size on have no probability.
kernels::Draw draw_of(const Request& request, int64_t step, int64_t known_size);
// Appends what a request asked for: the token that was drawn, then log-probabilities.
void append_drawn(const Request& request, int32_t token,
                  std::span<const kernels::TokenLogProbability> found, std::vector<double>& values);

// Whether the last of a request's tokens ends it.
bool stops(const Request& request, std::span<const int32_t> tokens);

}  // namespace megatron
