#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "megatron/inference/decode_steps.h"
#include "megatron/inference/model_step.h"
#include "megatron/inference/page_pool.h"
#include "megatron/inference/request.h"

namespace megatron {

struct EngineOptions {
  int64_t max_rows = 64;          // texts that are continued at once; others wait
  int64_t max_step_tokens = 512;  // of one forward pass; longer prompts are read in several
  int64_t page_tokens = 16;
  int64_t cache_tokens = 0;  // of all texts together; 0: 4 texts as long as the model's positions
  // Of the texts whose outputs of a T5's encoder are kept; 0: as many as the cache has.
  int64_t encoder_tokens = 0;
  bool reuse_prefixes = true;
  // Whether a step is launched before the tokens of the one before are known: the host's work is
  // then hidden, and a text that stops costs one row of one step. Undefined: on a GPU.
  std::optional<bool> decodes_ahead = {};
};

struct EngineState {
  int64_t running = 0;  // requests
  int64_t waiting = 0;
  int64_t pages = 0;
  int64_t pages_owned = 0;
  int64_t preemptions = 0;  // since the start
  int64_t prompt_tokens = 0;
  int64_t reused_tokens = 0;   // of these, those that the cache had
  int64_t launched_steps = 0;  // those that went through DecodeSteps
  double waited_seconds = 0;   // for their tokens
};

// Continues many texts at once. Requests join and leave between two steps. A step is one forward
// pass: the next token of every text that has been read, and a part of the prompts of others, as
// far as max_step_tokens goes. Keys and values lie in pages; a text that needs a page when there is
// none makes the youngest text wait again, which later reads its tokens anew.
//
// The encoder of a T5 reads the whole text of a request when it joins, with the texts of about its
// length that join in the same step. The decoder's layers keep the keys and values of its output
// until the request leaves, and requests with the same text share them. What the decoder writes
// depends on that text, so pages of other texts are never taken over.
//
// What a request draws depends on its seed, its row and its tokens alone, whatever else runs. On a
// GPU the last bits of logits depend on the number of rows of a product: there, tokens differ only
// where logits nearly tie.
//
// A step whose rows all draw their next token on the device goes through DecodeSteps. Requests that
// need the logits on the host do not: logit_bias, never_after, beams, stop tokens that
// min_new_tokens forbids, and more than 20 of the most probable tokens. A T5 never goes through
// DecodeSteps, nor does a model in several stages.
//
// Every rank of the model makes the same calls and gets the same results. Each step has one gather
// over the tensor-parallel ranks of the last stage and one broadcast, or, through DecodeSteps, a
// second gather.
class Engine {
 public:
  Engine(const InferenceModel& model, const EngineOptions& options);
  ~Engine();

  // Throws ConfigError for an empty prompt or text, an id that is not in the vocabulary, or a
  // length beyond the model's positions or the cache. Safe from any thread.
  void check(const Request& request) const;
  // Throws as check(). The first request gets the number 1, the next one 2, and so on.
  RequestId submit(Request request);
  // Forgets a request; does nothing if it is finished. step() says no more about it.
  void cancel(RequestId id);

  bool has_work() const { return !running_.empty() || !waiting_.empty(); }
  // REQUIRES: has_work().
  std::vector<RequestProgress> step();

  EngineState state() const;

 private:
  struct Text;       // what an encoder has read
  struct Row;        // a text with its pages
  struct Group;      // the rows of a request
  struct Part;       // what a step does for a row
  struct Selection;  // what the rank that draws found for a part
  struct StepTexts;  // the texts of a step that went through DecodeSteps
  using Groups = std::deque<std::shared_ptr<Group>>;

  void check_text(const Request& request) const;
  std::shared_ptr<Text> text_of(const Request& request);
  bool has_room_for_text(int64_t length) const;
  void read_texts(std::span<const Part> parts);
  void read_together(std::span<const Group* const> groups);

  std::vector<Part> planned_parts();
  void plan(Group& group, int64_t& budget, std::vector<Part>& parts);
  bool admit_next(int64_t& budget, std::vector<Part>& parts);
  bool grow(Group& group, Row& row, int64_t tokens);
  bool preempt_youngest(const Group& but);
  void release_pages(Row& row);
  int64_t reserved_pages() const;

  bool may_decode(std::span<const Part> parts) const;
  void launch(std::span<const Part> parts);
  std::shared_ptr<StepTexts> texts_that_go_on() const;
  bool launch_ahead();
  void finish_launched(std::vector<RequestProgress>& all);
  void forget_finished(std::span<const RequestProgress> all);
  void settle(std::span<const RequestProgress> all);

  Tensor run(std::span<const Part> parts);
  std::vector<double> selected(std::span<const Part> parts, const Tensor& hidden);
  void select_token(const Part& part, std::span<float> logits, std::vector<double>& values) const;
  void select_beams(std::span<const Part> parts, const Tensor& logits, int64_t first_row,
                    std::vector<double>& values) const;
  int64_t num_values(const Part& part) const;
  static bool all_draw_on_device(std::span<const Part> parts);
  DrawnTokens drawn_by_device(std::span<const Part> parts, const Tensor& logits);
  void put_ids(std::span<const Part> parts);

  RequestProgress apply(const Part& part, std::span<const double> values);
  void apply_token(const Part& part, std::span<const double> values, RequestProgress& progress);
  void apply_beams(Group& group, std::span<const double> values, RequestProgress& progress);
  void follow(Group& group, std::span<const int64_t> parents);
  void publish(Row& row);
  void remove(const Group& group);

  InferenceModel model_;
  EngineOptions options_;
  PagePool pool_;
  KvCache cache_;
  // The same for the texts that a T5's encoder has read.
  std::optional<PagePool> text_pool_;
  std::optional<KvCache> text_cache_;
  bool reads_singly_ = false;  // a pass reads one token of a text: a distance bias needs it
  Tensor distance_bias_;       // of a T5 with relative positions
  Groups running_;             // in the order they came
  Groups waiting_;
  RequestId last_id_ = 0;
  int64_t last_admission_ = 0;
  EngineState counts_;
  std::optional<DecodeSteps> steps_;  // for a GPT in one stage
  // Of the steps that were launched and not read; two share them while no text comes or goes.
  std::deque<std::shared_ptr<StepTexts>> launched_;
};

}  // namespace megatron
