#include "megatron/training/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <span>
#include <variant>

#include "megatron/core/crc32c.h"
#include "megatron/core/host_name.h"
#include "megatron/training/event.pb.h"
#include "megatron/training/little_endian.h"

namespace megatron {
namespace {

constexpr int kStringDtype = 7;  // TensorFlow's DT_STRING

double wall_time() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// TFRecord stores a rotated and shifted checksum, so that nested records stay protected.
uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

uint32_t masked_crc(std::string_view bytes) {
  return masked(crc32c(std::as_bytes(std::span(bytes.data(), bytes.size()))));
}

std::string file_name() {
  return fmt::format("events.out.tfevents.{}.{}.{}", static_cast<int64_t>(wall_time()), host_name(),
                     ::getpid());
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& directory)
    : file_(directory / file_name(), "--tensorboard-dir") {
  tensorboard::Event event;
  event.set_wall_time(wall_time());
  event.set_file_version("brain.Event:2");
  append_record(event.SerializeAsString());
}

void TensorBoardWriter::add_scalar(std::string_view tag, double value, int64_t step) {
  tensorboard::Event event;
  event.set_wall_time(wall_time());
  event.set_step(step);
  tensorboard::Value* entry = event.mutable_summary()->add_value();
  entry->set_tag(std::string(tag));
  entry->set_simple_value(static_cast<float>(value));
  append_record(event.SerializeAsString());
}

void TensorBoardWriter::add_text(std::string_view tag, std::string_view text, int64_t step) {
  tensorboard::Event event;
  event.set_wall_time(wall_time());
  event.set_step(step);
  tensorboard::Value* entry = event.mutable_summary()->add_value();
  entry->set_tag(fmt::format("{}/text_summary", tag));
  entry->mutable_metadata()->mutable_plugin_data()->set_plugin_name("text");
  entry->mutable_tensor()->set_dtype(kStringDtype);
  entry->mutable_tensor()->mutable_tensor_shape()->add_dim()->set_size(1);
  entry->mutable_tensor()->add_string_val(std::string(text));
  append_record(event.SerializeAsString());
}

void TensorBoardWriter::add_hyperparameters(const ArgMap& settings) {
  tensorboard::HyperparameterContent content;
  tensorboard::SessionStartInfo* const start = content.mutable_session_start_info();
  start->set_start_time_secs(wall_time());
  for (const auto& [name, value] : settings) {
    tensorboard::HyperparameterValue& entry = (*start->mutable_hparams())[name];
    if (const auto* const flag = std::get_if<bool>(&value)) {
      entry.set_bool_value(*flag);
    } else if (const auto* const integer = std::get_if<int64_t>(&value)) {
      entry.set_number_value(static_cast<double>(*integer));
    } else if (const auto* const number = std::get_if<double>(&value)) {
      entry.set_number_value(*number);
    } else {
      entry.set_string_value(text_of(value));
    }
  }
  tensorboard::Event event;
  event.set_wall_time(wall_time());
  tensorboard::Value* const entry = event.mutable_summary()->add_value();
  entry->set_tag("_hparams_/session_start_info");
  tensorboard::PluginData* const plugin = entry->mutable_metadata()->mutable_plugin_data();
  plugin->set_plugin_name("hparams");
  plugin->set_content(content.SerializeAsString());
  append_record(event.SerializeAsString());
}

void TensorBoardWriter::append_record(const std::string& event) {
  std::string record;
  append_little_endian(record, static_cast<uint64_t>(event.size()));
  append_little_endian(record, masked_crc(record));
  record += event;
  append_little_endian(record, masked_crc(event));
  file_.append(record);
}

}  // namespace megatron
