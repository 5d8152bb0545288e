#pragma once

#include <chrono>
#include <filesystem>
#include <string>

#include "annex/emissions/energy_meter.h"

namespace megatron {

// --codecarbon-dir: measures the energy of this host while it lives, then adds a row to a file with
// the columns of codecarbon's emissions.csv. Energies are in kWh, powers are means in W. Columns
// that would need an estimate, such as the emissions, stay empty; a warning names the parts of the
// host without counters.
class EmissionsReport {
 public:
  // Throws IoError if `file` cannot be written.
  EmissionsReport(std::filesystem::path file, const EnergyMeter::Options& options);
  ~EmissionsReport();
  EmissionsReport(const EmissionsReport&) = delete;
  EmissionsReport& operator=(const EmissionsReport&) = delete;

 private:
  const std::filesystem::path file_;
  const std::chrono::steady_clock::time_point started_;
  const bool has_gpus_;
  EnergyMeter meter_;
};

// The row of a run, for emissions_header().
struct EmissionsRow {
  double seconds = 0;
  Energy energy = {};
  int64_t num_gpus = 0;
  std::string gpu_model = {};
};
std::string text_of(const EmissionsRow& row);
std::string emissions_header();

}  // namespace megatron
