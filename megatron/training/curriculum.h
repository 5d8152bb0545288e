#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megatron {

enum class CurriculumSchedule { kOff, kRoot, kDiscrete };

// Short training sequences first, then longer ones (Li, Zhang and He 2022, arXiv:2108.06084,
// sec. 4). Lengths are in tokens, iterations count from 1. The schedules are those of
// DeepSpeed's curriculum_learning.
//
//   kRoot      iteration t: f - f mod length_step, at most max_length, with
//              f = floor((t / num_iterations)^(1 / degree) (max_length - min_length) + min_length)
//   kDiscrete  the first of `lengths` whose last iteration is not over, else the last one
struct CurriculumConfig {
  CurriculumSchedule schedule = CurriculumSchedule::kOff;
  int64_t min_length = 0;
  int64_t max_length = 0;
  int64_t num_iterations = 0;            // kRoot: until max_length
  int64_t length_step = 0;               // kRoot
  double degree = 1;                     // kRoot; 1: linear
  std::vector<int64_t> lengths;          // kDiscrete, rising
  std::vector<int64_t> last_iterations;  // kDiscrete, rising: of every length but the last

  bool is_on() const { return schedule != CurriculumSchedule::kOff; }
};

// Everything wrong with a curriculum for sequences of seq_length tokens, one sentence each. Ranks
// divide a sequence into `parts` equal ones, so that every length must be a multiple.
std::vector<std::string> problems(const CurriculumConfig& config, int64_t seq_length,
                                  int64_t parts);

// The lengths of a curriculum by iteration.
class Curriculum {
 public:
  // REQUIRES: the curriculum is on and has no problems().
  explicit Curriculum(const CurriculumConfig& config);

  int64_t length_at(int64_t iteration) const;
  // Tokens of one sequence from each of the first iterations.
  int64_t tokens_after(int64_t iterations) const;
  // The minimum number of iterations whose sequences, one from each, have `tokens` tokens.
  int64_t iterations_of(int64_t tokens) const;

 private:
  // Iterations of one length.
  struct Stage {
    int64_t first_iteration;
    int64_t length;
    int64_t tokens_before;
  };

  void add(int64_t first_iteration, int64_t length);

  std::vector<Stage> stages_;
};

}  // namespace megatron
