#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "megatron/inference/decode_steps.h"
#include "megatron/inference/draft.h"
#include "megatron/inference/model_step.h"
#include "megatron/inference/page_pool.h"
#include "megatron/inference/request.h"

namespace megatron {

struct EngineOptions {
  int64_t max_rows = 64;  // rows of a batch; further requests wait
  int64_t max_step_tokens =
      512;  // of one forward pass; longer prompts take several (chunked prefill)
  int64_t page_tokens = 16;
  int64_t cache_tokens = 0;  // KV cache capacity; 0: 4 texts as long as the model's positions
  // Capacity of the cache of encoder outputs of a T5; 0: cache_tokens.
  int64_t encoder_tokens = 0;
  bool reuse_prefixes = true;
  // Launches a step before the previous step's tokens are known to the host, which hides the host's
  // work; a text that stops then costs one row of one step. Default: true on a GPU.
  std::optional<bool> decodes_ahead = {};
  // Speculative decoding of a GPT; null: none. Then no step is launched ahead.
  std::shared_ptr<Drafter> drafter = {};
};

// The pages of an engine's KV cache.
int64_t num_cache_pages(const TransformerConfig& config, const EngineOptions& options);

struct EngineState {
  int64_t running = 0;  // requests
  int64_t waiting = 0;
  int64_t pages = 0;
  int64_t pages_owned = 0;
  int64_t preemptions = 0;  // since the start
  int64_t prompt_tokens = 0;
  int64_t reused_tokens = 0;   // of these, found in the prefix cache
  int64_t launched_steps = 0;  // steps that went through DecodeSteps
  double waited_seconds = 0;   // time waiting for their tokens
  int64_t drafts = 0;          // texts of steps that verified drafts
  int64_t draft_tokens = 0;    // verified
  int64_t accepted_draft_tokens = 0;
};

// Continuous batching: requests join and leave between two steps. A step is one forward pass over
// the last token of every text whose prompt has been read, and over chunks of other prompts, up to
// max_step_tokens. The KV cache is paged; when pages run out, the youngest text is preempted and
// later recomputed.
//
// The encoder of a T5 reads the whole text of a request when it joins, batched with texts of
// similar length that join in the same step. The keys and values of its output stay cached until
// the request leaves; requests with the same text share them. The decoder's keys and values depend
// on that text, so requests with different texts never share pages.
//
// Embeddings of a GPT are read like prompts. A BERT has no cache: a step reads whole texts, as many
// as with their padding have at most max_step_tokens.
//
// The tokens of a request depend only on its seed, row and tokens, not on the rest of the batch. On
// a GPU the last bits of logits depend on the number of rows of a product: there, tokens may differ
// where logits nearly tie.
//
// A drafter lets a step read several drafts of a text at once: it draws at the position of each,
// and keeps what it draws up to the first token that differs from its draft. The tokens are those
// without drafts.
//
// A step whose rows all draw their next token on the device goes through DecodeSteps. These options
// need logits on the host: logit_bias, never_after, constraints, beams, stop tokens that
// min_new_tokens forbids, and more than 20 of the most probable tokens. T5 and models with several
// stages never use DecodeSteps.
//
// Every rank of the model makes the same calls and gets the same results. Each step does one gather
// over the tensor-parallel ranks of the last stage and one broadcast, or, through DecodeSteps, a
// second gather.
class Engine {
 public:
  Engine(const InferenceModel& model, const EngineOptions& options);
  ~Engine();

  // Throws ConfigError for an empty prompt or text, an id that is not in the vocabulary, or a
  // length beyond the model's positions or the cache. Safe from any thread.
  void check(const Request& request) const;
  // Throws as check(). Ids count from 1.
  RequestId submit(Request request);
  // Drops a request, which step() reports no more; does nothing if it is finished.
  void cancel(RequestId id);

  bool has_work() const { return !running_.empty() || !waiting_.empty(); }
  // A request has several entries, in the order of its tokens, where drafts were accepted.
  // REQUIRES: has_work().
  std::vector<RequestProgress> step();

  EngineState state() const;

 private:
  struct Text;       // a text read by the encoder
  struct Row;        // a text with its pages
  struct Group;      // the rows of a request
  struct Part;       // a step's work on a row
  struct Selection;  // results of a part from the rank that draws
  struct StepTexts;  // the texts of a step that went through DecodeSteps
  using Groups = std::deque<std::shared_ptr<Group>>;

  void check_text(const Request& request) const;
  void embed_texts(std::vector<RequestProgress>& all);
  void append_pooled(const Part& part, const Tensor& hidden, std::vector<double>& values) const;
  std::shared_ptr<Text> text_of(const Request& request);
  bool has_room_for_text(int64_t length) const;
  void read_texts(std::span<const Part> parts);
  void read_together(std::span<const Group* const> groups);

  std::vector<Part> planned_parts();
  void plan(Group& group, int64_t& budget, std::vector<Part>& parts);
  void limit_drafts(Row& row, int64_t budget);
  bool admit_next(int64_t& budget, std::vector<Part>& parts);
  bool grow(Group& group, Row& row, int64_t tokens);
  bool preempt_youngest(const Group& but);
  void release_pages(Row& row);
  int64_t reserved_pages() const;

  bool may_decode(std::span<const Part> parts) const;
  void launch(std::span<const Part> parts);
  std::shared_ptr<StepTexts> continuing_texts() const;
  bool launch_ahead();
  void finish_launched(std::vector<RequestProgress>& all);
  void forget_finished(std::span<const RequestProgress> all);
  void settle(std::span<const RequestProgress> all);

  Tensor run(std::span<const Part> parts);
  std::vector<double> selected(std::span<const Part> parts, const Tensor& hidden);
  void select_token(const Part& part, int64_t ahead, std::span<float> logits,
                    std::vector<double>& values) const;
  void select_beams(std::span<const Part> parts, const Tensor& logits, int64_t first_row,
                    std::vector<double>& values) const;
  int64_t num_values(const Part& part) const;
  static bool all_draw_on_device(std::span<const Part> parts);
  DrawnTokens drawn_by_device(std::span<const Part> parts, const Tensor& logits);
  void put_ids(std::span<const Part> parts);

  RequestProgress apply(const Part& part, std::span<const double> values);
  void apply_all(const Part& part, std::span<const double> values,
                 std::vector<RequestProgress>& all);
  void propose(std::span<const DraftText> texts, std::span<Row* const> rows, const Tensor& hidden);
  DraftText draft_text(const Group& group, int64_t count, int64_t first_row) const;
  void apply_token(const Part& part, std::span<const double> values, RequestProgress& progress);
  static void apply_pooled(const Part& part, std::span<const double> values,
                           RequestProgress& progress);
  void apply_beams(Group& group, std::span<const double> values, RequestProgress& progress);
  void follow(Group& group, std::span<const int64_t> parents);
  void publish(Row& row);
  void remove(const Group& group);

  InferenceModel model_;
  EngineOptions options_;
  PagePool pool_;
  KvCache cache_;
  // The same for the encoder outputs of a T5.
  std::optional<PagePool> text_pool_;
  std::optional<KvCache> text_cache_;
  bool reads_singly_ = false;  // one token of a text per pass, because of a distance bias
  Tensor distance_bias_;       // of a T5 with relative positions
  Groups running_;             // in the order they came
  Groups waiting_;
  RequestId last_id_ = 0;
  int64_t last_admission_ = 0;
  EngineState counts_;
  std::optional<DecodeSteps> steps_;  // for a GPT in one stage
  // One per launched, unread step; two steps share one while no text joins or leaves.
  std::deque<std::shared_ptr<StepTexts>> launched_;
};

}  // namespace megatron
