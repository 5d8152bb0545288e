#include "megatron/settings.h"

#include <fmt/format.h>

#include <algorithm>

namespace megatron::api {

Settings::Value::Value(int64_t number) : texts_{std::to_string(number)} {}
Settings::Value::Value(double number) : texts_{fmt::format("{}", number)} {}

Settings::Settings(std::initializer_list<std::pair<std::string_view, Value>> settings) {
  for (const auto& [name, value] : settings) set(name, value);
}

Settings& Settings::set(std::string_view name, const Value& value) {
  const auto found = std::ranges::find(settings_, name, &std::pair<std::string, Value>::first);
  if (found != settings_.end()) {
    found->second = value;
  } else {
    settings_.emplace_back(name, value);
  }
  return *this;
}

Settings& Settings::set_argument(std::string_view name, ArgValue value) {
  arguments_.emplace_back(name, std::move(value));
  return *this;
}

Settings& Settings::set_model_config(std::string path) {
  model_config_ = std::move(path);
  return *this;
}

std::vector<std::string> Settings::words() const {
  std::vector<std::string> words;
  for (const auto& [name, value] : settings_) {
    if (!value.is_there_) continue;
    words.push_back("--" + name);
    words.insert(words.end(), value.texts_.begin(), value.texts_.end());
  }
  return words;
}

}  // namespace megatron::api
