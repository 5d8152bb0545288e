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

// A row of a decode step: the last token of a text, the input for drawing the next one.
struct DecodeRow {
  // Identity of the text across steps, never reused. Its list of pages only grows.
  int64_t text = 0;
  int32_t token = 0;   // an id, or drawn_by(i)
  int64_t length = 0;  // tokens of the row, this one included
  std::span<const int32_t> pages = {};
  kernels::Draw draw = {};
};
// Stands for the token that row `row` of the previous step drew.
inline int32_t drawn_by(int64_t row) { return static_cast<int32_t>(-1 - row); }

// Decode steps: every row has one new token and draws the next. Drawn tokens stay on the device as
// the next step's input, so that it can be launched before the host has read them. The page table
// stays there, too: a step uploads only its changes. On a GPU a step is one launch of a CUDA graph.
// There is a graph for each number of rows (padded with inactive rows) and each maximum length
// (rounded up), captured at its second use. A step of one text is a single kernel if the model has
// one (TextStep).
//
// Tensor-parallel ranks launch the same steps, and all get the tokens that the first rank draws.
// Graphs contain the collectives; the hosts synchronize before each launch (launch_barrier). Only
// for models with one pipeline stage.
class DecodeSteps {
 public:
  // Maximum number of launched steps whose tokens have not been read.
  static constexpr size_t kMaxStepsAhead = 2;

  // No row has more than max_pages pages. The model and the cache must outlive it.
  DecodeSteps(const InferenceModel& model, KvCache& cache, int64_t max_rows, int64_t max_pages);

  // Queues a step for 1 to max_rows rows. REQUIRES: fewer than kMaxStepsAhead steps are unread.
  void launch(std::span<const DecodeRow> rows);
  // Waits for the oldest unread step and returns its rows' tokens.
  DrawnTokens take();

 private:
  // Steps with one padded number of rows and maximum length.
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
  // Results of a step, copied to the host; probabilities if a row asks for them.
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
  // Captures the graph, on all ranks or on none.
  void record(Kind& kind);
  void compute(Kind& kind);
  // Broadcasts the first rank's drawn tokens.
  void share_drawn(int64_t rows);

  const comm::Group& ranks() const { return model_.parallel.tensor.group; }

  InferenceModel model_;
  KvCache& cache_;
  int64_t max_rows_, max_pages_;
  Stream stream_;
  std::optional<TextStep> text_step_;
  MemoryPool pool_;  // outlives the graphs

  // Inputs of a step: for each row a Draw, its token and its length; and the page-table changes.
  Tensor inputs_;                              // int32
  Tensor draws_, tokens_, lengths_, changes_;  // parts of inputs_
  Tensor pages_;                               // [max_rows, max_pages] int32
  Tensor queries_;                             // 0, 1, ..
  Tensor drawn_;                               // [max_rows] int32
  Tensor probabilities_;                       // of max_rows rows
  std::vector<int32_t> host_inputs_;
  StepRows rows_;
  std::vector<int32_t> rows_before_;  // device rows of the previous launch's rows
  PageTableCopy host_pages_;
  std::map<std::pair<int64_t, int64_t>, Kind> kinds_;  // by rows and longest length
  bool records_ = false;
  std::array<std::unique_ptr<Result>, kMaxStepsAhead> results_;
  size_t next_result_ = 0;
  std::deque<Launched> launched_;
};

}  // namespace megatron
