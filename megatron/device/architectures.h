#pragma once

#include <string>
#include <string_view>

// The GPUs that a build has code for, as the text of CMake's CMAKE_CUDA_ARCHITECTURES with commas:
// "80-real,90a-real,120". "-real" stands for machine code, "-virtual" for PTX, which the driver
// translates when the program first uses it; a number alone stands for both.
namespace megatron {

// True if there is code for a GPU of compute capability major.minor. Machine code runs on GPUs with
// the same major number and no smaller minor one, PTX on all later GPUs too; code with the letter
// "a" runs on exactly one capability, with "f" on its major number.
bool has_code_for(std::string_view architectures, int major, int minor);

// "8.0, 9.0a, 12.0 and later", for messages.
std::string gpus_of(std::string_view architectures);

}  // namespace megatron
