#include "megatron/training/gpu_roof.h"

#include <algorithm>
#include <cctype>
#include <iterator>

namespace megatron {
namespace {

constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;
constexpr double kPcie4 = 32 * kGiga;
constexpr double kPcie5 = 64 * kGiga;

// NVIDIA's data sheets (A100 80GB SXM, RTX A6000, L40S, H100 SXM, H200 SXM, HGX B200) and white
// papers (GA102 for 3090, Ada for 4090, RTX Blackwell for 5090). Sheets that print rates with
// sparsity are halved. Links: NVLink's sum of both directions halved, else PCI Express x16. Memory:
// about what drivers report (L40S with ECC).
constexpr GpuRoof kRoofs[] = {
    {"A100", 312 * kTera, 2039 * kGiga, 300 * kGiga, 80},
    {"A6000", 154.8 * kTera, 768 * kGiga, kPcie4, 48},
    {"3090", 71 * kTera, 936 * kGiga, kPcie4, 24},
    {"L40S", 362 * kTera, 864 * kGiga, kPcie4, 45},
    {"4090", 165.2 * kTera, 1008 * kGiga, kPcie4, 24},
    {"H100", 989.4 * kTera, 3350 * kGiga, 450 * kGiga, 79.6},
    {"H200", 989.4 * kTera, 4800 * kGiga, 450 * kGiga, 140.4},
    {"B200", 2250 * kTera, 8000 * kGiga, 900 * kGiga, 179},
    {"5090", 209.5 * kTera, 1792 * kGiga, kPcie5, 31.8},
};

std::string in_capitals(std::string_view text) {
  std::string capitals(text);
  std::transform(capitals.begin(), capitals.end(), capitals.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::toupper(letter)); });
  return capitals;
}

}  // namespace

const GpuRoof* gpu_roof(std::string_view name) {
  const std::string capitals = in_capitals(name);
  const auto* const found = std::find_if(std::begin(kRoofs), std::end(kRoofs),
                                         [&](const GpuRoof& gpu) { return gpu.name == capitals; });
  return found == std::end(kRoofs) ? nullptr : found;
}

const GpuRoof* gpu_roof_of_device(std::string_view device_name) {
  constexpr std::string_view kBetweenWords = " -";
  for (std::string_view rest = device_name; !rest.empty();) {
    const size_t end = std::min(rest.find_first_of(kBetweenWords), rest.size());
    if (const GpuRoof* const gpu = gpu_roof(rest.substr(0, end))) return gpu;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return nullptr;
}

const GpuRoof& measured_gpu() { return *gpu_roof("H200"); }

std::string gpu_names() {
  std::string names;
  for (const GpuRoof& gpu : kRoofs) {
    if (!names.empty()) names += ", ";
    for (const char letter : gpu.name) {
      names += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    }
  }
  return names;
}

}  // namespace megatron
