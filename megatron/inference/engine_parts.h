#pragma once

#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "megatron/inference/engine.h"

// Internal types of Engine, for its source files.
namespace megatron {

// Stands for a token or beam: the logits are NaN.
inline constexpr double kNotDrawn = -1;

// The cached encoder output of a T5, shared by requests with this text: pages with the
// cross-attention keys and values of the decoder's layers.
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
  std::vector<PagePool::Serial> serials = {};  // of the leading published pages
  int64_t cached = 0;                          // tokens in the KV cache
  std::vector<int32_t> drafts = {};            // of the tokens that follow
};

struct Engine::Group : std::enable_shared_from_this<Group> {
  Group(RequestId the_id, Request the_request)
      : id(the_id), request(std::move(the_request)), rows(1) {
    rows.front().tokens = request.prompt;
    num_forced = request.first_scored - 1;
    if (request.beams && request.max_new_tokens > 0) {
      beams.emplace(*request.beams, request.stop_tokens, request.max_new_tokens);
    }
  }

  // Maximum number of rows.
  int64_t num_rows() const { return beams ? request.beams->width : 1; }
  // Maximum number of pages. A beam search needs one more per beam while it copies.
  int64_t most_pages(const PagePool& pool) const {
    const int64_t pages =
        pool.pages_for(static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens);
    return beams ? num_rows() * (pages + 1) : pages;
  }
  // Tokens of a row that must be in the cache before the next draw.
  int64_t num_inputs(const Row& row) const {
    const auto count = static_cast<int64_t>(row.tokens.size());
    if (request.max_new_tokens > 0 || request.pooling) return count;
    return request.wants_prompt() ? count - 1 : 0;
  }
  int64_t num_inputs() const { return num_inputs(rows.front()); }
  // All tokens but the last one are in the cache.
  bool is_read() const { return num_inputs() - rows.front().cached == 1; }
  // Log-probabilities of the prompt are still missing.
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
  int64_t admission = 0;            // sequence number of its last admission, while it runs
  std::shared_ptr<Text> text = {};  // of a T5, while the group runs
  std::vector<Row> rows;
  std::optional<BeamSearch> beams = {};
  int64_t num_forced = 0;           // log-probabilities of the prompt that are known or not wanted
  std::vector<double> pooled = {};  // sum of the hidden states of an embedding
};

struct Engine::Part {
  Group* group = nullptr;
  Row* row = nullptr;
  bool is_first = false;  // row of its group
  int64_t begin = 0;      // reads the tokens [begin, begin + count) of the row
  int64_t count = 0;
  int64_t first_token = 0;  // index of its first token in the pass
  bool draws = false;       // draws the row's next token
  int64_t num_drafts = 0;   // the last tokens that it reads are drafts; it draws after each
  // Positions whose logits give log-probabilities of prompt tokens.
  int64_t first_forced = 0;
  int64_t num_forced = 0;

  // Hidden states of the part go into the embedding that the request asks for.
  bool is_pooled() const {
    if (!group->request.pooling) return false;
    switch (*group->request.pooling) {
      case Pooling::kFirst:
        return begin == 0;
      case Pooling::kLast:
        return begin + count == std::ssize(row->tokens);
      default:
        return true;
    }
  }
  int64_t num_draws() const { return draws ? 1 + num_drafts : 0; }
  // Token i of the row and its drafts.
  int32_t token(int64_t i) const {
    const auto size = std::ssize(row->tokens);
    return i < size ? row->tokens[static_cast<size_t>(i)]
                    : row->drafts[static_cast<size_t>(i - size)];
  }
  // The step of the request's draw after `ahead` drafts.
  int64_t step(int64_t ahead) const { return group->num_drawn(*row) + ahead; }
};

// The texts of a step launched before the host knew the previous tokens. Per-step data of the host
// is stored contiguously by row of the step: reaching it through Group would miss the caches.
struct Engine::StepTexts {
  struct Text {
    explicit Text(Group& the_group);
    // Appends the token that a plain text drew.
    RequestProgress append(int32_t token) const;

    Group* group;  // running, or in `gone`
    RequestId id;
    Row* row;
    static constexpr size_t kMaxStopTokens = 4;

    int64_t end;  // maximum number of tokens of the row
    // Stop tokens if is_plain, padded with kNoToken.
    std::array<int32_t, kMaxStopTokens> stop_tokens;
    bool is_plain;   // wants no probabilities, and has at most kMaxStopTokens and no stop sequences
    bool is_random;  // its Draw changes from step to step
  };

  std::vector<Text> texts = {};
  std::vector<DecodeRow> rows = {};               // of the last launch
  std::vector<std::shared_ptr<Group>> gone = {};  // finished or cancelled
};

// Rows `ids`, in ascending order, of hidden [t, 1, h]: [ids, 1, h].
Tensor rows_of(const Tensor& hidden, const std::vector<int64_t>& ids);

// True if the device can draw token `step` of a request.
bool draws_on_device(const Request& request, int64_t step);
// Its parameters. Ids >= known_size have no probability.
kernels::Draw draw_of(const Request& request, int64_t step, int64_t known_size);
// Appends a request's results: the drawn token, then the log-probabilities it asked for.
void append_drawn(const Request& request, int32_t token,
                  std::span<const kernels::TokenLogProbability> found, std::vector<double>& values);

// True if the last token ends the request.
bool stops(const Request& request, std::span<const int32_t> tokens);

}  // namespace megatron
