#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "megatron/kernels/choice_file.h"

// The choice among the algorithms that a library offers for one call.
namespace megatron::kernels {

// This process's file of choices: matmul.txt in cache_directory(), or the file that
// MEGATRON_MATMUL_CACHE names. Null if that is "off" or there is no directory. It lives as long as
// the process.
ChoiceFile* choices_of_process();

// The index of the fastest algorithm: 0 unless another beats the first by more than measurement
// noise.
size_t fastest(std::span<const double> ms);

// The index of the algorithm name that `file` has for the key `question`; otherwise of the fastest
// by measure(), which returns a time for each name, and `file` remembers it. A stored name that is
// no longer among `names` counts as the first.
size_t measured_choice(ChoiceFile& file, const std::string& question,
                       std::span<const std::string> names,
                       const std::function<std::vector<double>()>& measure);

}  // namespace megatron::kernels
