#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/program/program.h"

namespace megatron::program {

// The layout of a model on ranks.
struct Layout {
  int tp = 1;
  int pp = 1;
  int layers_a_chunk = 0;  // of an interleaved pipeline; 0: not interleaved
  int dp = 1;
  bool sequence_parallel = false;
  bool distributed_optimizer = false;
  bool overlap = false;
  int cp = 1;
  int zero_stage = 0;                  // 2 or 3; distributed_optimizer is stage 1
  const char* cp_comm_type = nullptr;  // null: not given
  int cp_heads = 0;                    // ranks that exchange heads, of a2a+p2p
  int instances = 1;                   // of the distributed optimizer

  int ranks() const { return tp * pp * cp * dp; }
};

inline std::string name_of(const Layout& layout) {
  return "tp" + std::to_string(layout.tp) + "pp" + std::to_string(layout.pp) +
         (layout.layers_a_chunk > 0 ? "i" : "") + "dp" + std::to_string(layout.dp) +
         (layout.sequence_parallel ? "_sp" : "") +
         (layout.distributed_optimizer ? "_distributed" : "") + (layout.overlap ? "_overlap" : "") +
         (layout.cp > 1 ? "_cp" + std::to_string(layout.cp) : "") +
         (layout.cp_comm_type != nullptr ? "_" + std::string(layout.cp_comm_type) : "") +
         (layout.cp_heads > 0 ? std::to_string(layout.cp_heads) : "") +
         (layout.zero_stage > 0 ? "_zero" + std::to_string(layout.zero_stage) : "") +
         (layout.instances > 1 ? "_in" + std::to_string(layout.instances) : "");
}

inline Flags laid_out(Flags flags, const Layout& layout) {
  flags = flags.with("--tensor-model-parallel-size", std::to_string(layout.tp))
              .with("--pipeline-model-parallel-size", std::to_string(layout.pp));
  if (layout.layers_a_chunk > 0) {
    flags = flags.with("--num-layers-per-virtual-pipeline-stage",
                       std::to_string(layout.layers_a_chunk));
  }
  if (layout.cp > 1) flags = flags.with("--context-parallel-size", std::to_string(layout.cp));
  if (layout.cp_comm_type != nullptr) flags = flags.with("--cp-comm-type", layout.cp_comm_type);
  if (layout.cp_heads > 0) {
    flags = flags.with("--hierarchical-context-parallel-sizes", std::to_string(layout.cp_heads),
                       std::to_string(layout.cp / layout.cp_heads));
  }
  if (layout.sequence_parallel) flags = flags.with("--sequence-parallel");
  if (layout.distributed_optimizer) flags = flags.with("--use-distributed-optimizer");
  if (layout.zero_stage > 0) flags = flags.with("--zero-stage", std::to_string(layout.zero_stage));
  if (layout.instances > 1) {
    flags = flags.with("--num-distributed-optimizer-instances", std::to_string(layout.instances));
  }
  if (layout.overlap) flags = flags.with("--overlap-grad-reduce");
  if (layout.overlap || layout.zero_stage > 1) flags = flags.with("--ddp-bucket-size", "20000");
  return flags;
}

// 20 iterations of a model of 8 layers, with dropout.
inline Flags layout_model(const Flags& golden, bool is_llama_style) {
  const Flags gpt = golden.with("--num-layers", "8")
                        .with("--micro-batch-size", "1")
                        .with("--attention-dropout", "0.1")
                        .with("--hidden-dropout", "0.1");
  return is_llama_style ? llama_style(gpt).with("--num-query-groups", "4") : gpt;
}

// Tests try all layouts in place of a few.
inline bool wants_all_layouts() { return std::getenv("MG_ALL_LAYOUTS") != nullptr; }

// All layouts of up to eight ranks without context parallelism.
inline std::vector<Layout> all_layouts() {
  std::vector<Layout> all;
  for (const int tp : {1, 2, 4}) {
    for (const int pp : {1, 2, 4}) {
      for (const int layers_a_chunk : {0, 1}) {
        for (const int dp : {1, 2}) {
          for (const bool sp : {false, true}) {
            for (const bool distributed : {false, true}) {
              const Layout layout{tp, pp, layers_a_chunk, dp, sp, distributed, distributed};
              const bool is_sensible =
                  layout.ranks() <= 8 && (tp > 1 || !sp) && (pp > 1 || layers_a_chunk == 0);
              if (is_sensible) all.push_back(layout);
            }
          }
        }
      }
    }
  }
  return all;
}

// A few very different layouts, or all.
inline std::vector<Layout> layouts() {
  if (wants_all_layouts()) return all_layouts();
  return {{.tp = 2},
          {.tp = 4, .sequence_parallel = true},
          {.pp = 2},
          {.pp = 2, .layers_a_chunk = 1},
          {.pp = 4, .layers_a_chunk = 1},
          {.dp = 2, .distributed_optimizer = true, .overlap = true},
          {.tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true, .distributed_optimizer = true}};
}

}  // namespace megatron::program
