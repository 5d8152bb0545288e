#include "megatron/training/wandb_run.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <cstdint>
#include <ctime>
#include <exception>
#include <fstream>
#include <random>
#include <string_view>
#include <system_error>
#include <utility>

#include "megatron/core/host_name.h"
#include "megatron/training/little_endian.h"
#include "megatron/training/wandb.pb.h"
#include "megatron/training/wandb_values.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::system_clock;

constexpr size_t kBlockBytes = 32768;
constexpr size_t kHeaderBytes = 7;  // of the file, and of each part of a record
constexpr std::string_view kFileHeader("\x3aW&B\xe1\xbe\0", kHeaderBytes);

// A part of a record: checksum of kind and bytes, length, kind, bytes.
std::string part_of_record(char kind, std::string_view bytes) {
  const auto* const data = reinterpret_cast<const Bytef*>(bytes.data());
  const auto* const first = reinterpret_cast<const Bytef*>(&kind);
  const uLong crc = ::crc32(::crc32(0, first, 1), data, static_cast<uInt>(bytes.size()));
  std::string part;
  append_little_endian(part, static_cast<uint32_t>(crc));
  append_little_endian(part, static_cast<uint16_t>(bytes.size()));
  part += kind;
  part += bytes;
  return part;
}

// A record as it lies in a file of `file_bytes`: a part never crosses the end of a block, and a
// rest of a block that holds no part is zero.
std::string in_blocks(std::string_view record, size_t file_bytes) {
  enum Kind : char { kWhole = 1, kFirst = 2, kMiddle = 3, kLast = 4 };
  std::string text;
  bool is_first = true;
  do {
    size_t room = kBlockBytes - (file_bytes + text.size()) % kBlockBytes;
    if (room < kHeaderBytes) {
      text.append(room, '\0');
      room = kBlockBytes;
    }
    const size_t count = std::min(room - kHeaderBytes, record.size());
    const bool is_last = count == record.size();
    const Kind kind = is_first ? (is_last ? kWhole : kFirst) : (is_last ? kLast : kMiddle);
    text += part_of_record(kind, record.substr(0, count));
    record.remove_prefix(count);
    is_first = false;
  } while (!record.empty());
  return text;
}

std::string random_id() {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::random_device source;
  std::string id;
  for (int i = 0; i < 8; ++i) id += kLetters[source() % kLetters.size()];
  return id;
}

fs::path file_in(const fs::path& directory, Clock::time_point started, const std::string& id) {
  const std::tm time = fmt::localtime(Clock::to_time_t(started));
  return directory / "wandb" / fmt::format("offline-run-{:%Y%m%d_%H%M%S}-{}", time, id) /
         fmt::format("run-{}.wandb", id);
}

template <class Items>
void add_item(Items& items, const std::string& key, std::string json) {
  wandb::Item* const item = items.Add();
  item->set_key(key);
  item->set_value_json(std::move(json));
}

}  // namespace

WandbRun::WandbRun(const fs::path& directory, const Description& description)
    : id_(description.id.empty() ? random_id() : description.id),
      file_(file_in(directory, started_, id_), "--wandb-save-dir") {
  file_.append(kFileHeader);
  wandb::Record header;
  header.mutable_header()->mutable_version_info()->set_producer("megatron.cpp");
  header.mutable_header()->mutable_version_info()->set_min_consumer("0.40.0");
  append(header);

  wandb::Record record;
  wandb::RunRecord* const run = record.mutable_run();
  run->set_run_id(id_);
  run->set_project(description.project);
  run->set_display_name(description.name);
  run->set_host(host_name());
  run->mutable_start_time()->set_seconds(Clock::to_time_t(started_));
  for (const auto& [name, value] : description.settings) {
    add_item(*run->mutable_config()->mutable_update(), name, wandb_json(value));
  }
  append(record);
}

void WandbRun::go_live(std::unique_ptr<RunService> service, const LiveRun::Pace& pace) {
  const std::string folder = path().parent_path().string();
  live_ = std::make_unique<LiveRun>(
      std::move(service), [](const RunRow&) {}, fmt::format("`wandb sync {}` sends all", folder),
      pace);
}

WandbRun::~WandbRun() {
  const bool has_failed = std::uncaught_exceptions() > 0;
  write_row();
  wandb::Record summary;
  for (const auto& [name, value] : summary_) {
    add_item(*summary.mutable_summary()->mutable_update(), name, wandb_json(value));
  }
  append(summary);
  wandb::Record end;
  end.mutable_exit()->set_exit_code(has_failed ? 1 : 0);
  end.mutable_exit()->set_runtime(static_cast<int32_t>(seconds()));
  append(end);
  // Compat: the client's mark, by which `wandb sync` passes over the folder.
  if (live_ && live_->finish(has_failed)) std::ofstream(path().string() + ".synced").flush();
}

double WandbRun::seconds() const {
  return std::chrono::duration<double>(Clock::now() - started_).count();
}

void WandbRun::write(int64_t iteration, const NamedValues& values) {
  if (iteration_ && *iteration_ != iteration) write_row();
  iteration_ = iteration;
  for (const auto& [name, value] : values) value_of(row_, name) = value;
}

void WandbRun::write_row() {
  if (!iteration_) return;
  row_.emplace_back("_step", static_cast<double>(*iteration_));
  row_.emplace_back("_runtime", seconds());
  row_.emplace_back("_timestamp",
                    std::chrono::duration<double>(Clock::now().time_since_epoch()).count());
  wandb::Record record;
  for (const auto& [name, value] : row_) {
    summary_[name] = value;
    add_item(*record.mutable_history()->mutable_item(), name, wandb_json(value));
  }
  record.mutable_history()->mutable_step()->set_num(*iteration_);
  append(record);
  if (live_) live_->add({*iteration_, row_.back().second, row_});
  row_.clear();
  iteration_.reset();
}

// The place in its block comes from the file, which lacks records that could not be written.
void WandbRun::append(wandb::Record& record) {
  record.set_num(++num_records_);
  std::error_code error;
  const auto bytes = fs::file_size(path(), error);
  file_.append(in_blocks(record.SerializeAsString(), error ? 0 : bytes));
}

}  // namespace megatron
