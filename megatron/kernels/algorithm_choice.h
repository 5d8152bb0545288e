#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "megatron/kernels/choice_file.h"

// The choice among the algorithms that a library offers for one call.
namespace megatron::kernels {

// The file of this process: matmul.txt in cache_directory(), or the file that MEGATRON_MATMUL_CACHE
// names. Null if that is "off" or there is no directory. It lives as long as the process.
ChoiceFile* choices_of_process();

// The index of the fastest: the first unless another beats it by more than measurement noise.
size_t fastest(std::span<const double> ms);

// The index of the name that `file` has for `question`; otherwise the fastest by measure(), which
// gives a time for each name and is remembered. An answer that is not among the names, of another
// time, counts as the first.
size_t measured_choice(ChoiceFile& file, const std::string& question,
                       std::span<const std::string> names,
                       const std::function<std::vector<double>()>& measure);

}  // namespace megatron::kernels
