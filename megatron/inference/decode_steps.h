#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "megatron/device/allocator.h"
#include "megatron/device/readback.h"
#include "megatron/device/work_graph.h"
#include "megatron/inference/model_step.h"
#include "megatron/inference/step_rows.h"
#include "megatron/inference/text_step.h"
#include "megatron/kernels/draw.h"

namespace megatron {

// A row of a decode step: its last token, which the model reads to draw the next one.
struct DecodeRow {
  // Its number, from step to step; no other text has had it. Its pages only become more.
  int64_t text = 0;
  int32_t token = 0;   // an id, or drawn_by(i)
  int64_t length = 0;  // tokens of the row, this one included
  std::span<const int32_t> pages = {};
  kernels::Draw draw = {};
};
// The token that row `row` of the step before drew.
inline int32_t drawn_by(int64_t row) { return static_cast<int32_t>(-1 - row); }

// Steps of generation in which every row has one new token and draws the next. The drawn tokens
// stay on the device, where the next step finds them, so that it can be launched before the host
// has read them. So does the table of pages: a step uploads what has changed since the one before.
// On a GPU a step is the launch of a CUDA graph, one for each number of rows (padded
// with rows that do nothing) and each longest length (rounded up); a graph is recorded the second
// time it is needed. A step of one text is one kernel where there is one for the model (TextStep).
//
// Tensor-parallel ranks launch the same steps, and all of them get the tokens that the first one
// draws. Their GPUs pass sums to each other within a graph; their hosts meet before each launch.
// For a model in one stage.
class DecodeSteps {
 public:
  // Steps that may be launched and not yet read.
  static constexpr size_t kMostAhead = 2;

  // No row has more than max_pages pages. The model and the cache must outlive it.
  DecodeSteps(const InferenceModel& model, KvCache& cache, int64_t max_rows, int64_t max_pages);

  // Queues a step for 1 to max_rows rows. REQUIRES: fewer than kMostAhead steps are not read.
  void launch(std::span<const DecodeRow> rows);
  // Waits for the first step that is not read: what its rows drew.
  DrawnTokens take();

 private:
  // Steps of one padded number of rows and longest length.
  struct Kind {
    Tensor ids, positions;  // [1, rows] int64
    PagedBatch batch;
    bool is_warm = false;  // it has run once
    std::optional<WorkGraph> graph = {};
  };
  struct Launched {
    std::vector<int32_t> rows;  // on the device, of the rows of launch()
    size_t result = 0;
    bool has_probabilities = false;
  };
  // What the host reads of a step; probabilities where a row asks for some.
  struct Result {
    Result(const Tensor& drawn, const Tensor& found)
        : tokens(drawn.bytes(), drawn.stream().device),
          probabilities(found.bytes(), found.stream().device) {}
    Readback tokens, probabilities;
  };

  int64_t padded(int64_t rows) const;
  Kind& kind_of(int64_t rows, int64_t max_length);
  void upload(std::span<const DecodeRow> rows, std::span<const int32_t> places,
              int64_t padded_rows);
  void run(Kind& kind);
  // On all ranks or on none.
  void record(Kind& kind);
  void compute(Kind& kind);
  // Gives all ranks the tokens that the first one drew.
  void share_drawn(int64_t rows);

  const comm::Group& ranks() const { return model_.parallel.tensor.group; }

  InferenceModel model_;
  KvCache& cache_;
  int64_t max_rows_, max_pages_;
  Stream stream_;
  std::optional<TextStep> text_step_;
  MemoryPool pool_;  // outlives the graphs

  // What a step reads: for each row a Draw, its token and its length; and the changes of pages.
  Tensor inputs_;                              // int32
  Tensor draws_, tokens_, lengths_, changes_;  // parts of inputs_
  Tensor pages_;                               // [max_rows, max_pages] int32
  Tensor queries_;                             // 0, 1, ..
  Tensor drawn_;                               // [max_rows] int32
  Tensor probabilities_;                       // of max_rows rows
  std::vector<int32_t> host_inputs_;
  StepRows rows_;
  std::vector<int32_t> rows_before_;  // of the rows of the launch before
  PageTableCopy host_pages_;
  std::map<std::pair<int64_t, int64_t>, Kind> kinds_;  // by rows and longest length
  bool records_ = false;
  std::array<std::unique_ptr<Result>, kMostAhead> results_;
  size_t next_result_ = 0;
  std::deque<Launched> launched_;
};

}  // namespace megatron
