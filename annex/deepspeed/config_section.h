#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace megatron::frontends {

// A map of a DeepSpeed configuration and the problems of its values. Each reader consumes a key:
// keys that remain at the end are unknown. null means the default, and so does "auto" unless a
// reader says otherwise.
class ConfigSection {
 public:
  // `name`: of the map, as in messages; empty for the whole file.
  ConfigSection(const nlohmann::json& map, std::string name, std::vector<std::string>& problems)
      : map_(map), name_(std::move(name)), problems_(problems) {}

  bool has(const std::string& key) const { return map_.contains(key) && !map_.at(key).is_null(); }
  bool is_auto(const std::string& key) const { return has(key) && map_.at(key) == "auto"; }

  std::optional<bool> flag(const std::string& key);
  // A number without a fraction, also written as 8.0 or "8".
  std::optional<int64_t> integer(const std::string& key, int64_t least = 0);
  // A list of integers; empty if it is absent.
  std::vector<int64_t> integers(const std::string& key);
  std::optional<double> number(const std::string& key, double least = 0);
  std::optional<std::string> word(const std::string& key,
                                  std::initializer_list<const char*> choices = {});
  // A map inside the map; an empty one if there is none.
  ConfigSection section(const std::string& key);
  // Consumes a key without reading it. True if it is present and neither false nor null.
  bool take(const std::string& key);

  // The keys that were not consumed.
  std::vector<std::string> rest() const;
  // "fp16.loss_scale": a key of this map in a message.
  std::string path(const std::string& key) const;
  const nlohmann::json& map() const { return map_; }

 private:
  const nlohmann::json* taken(const std::string& key);
  void refuse(const std::string& key, const std::string& rule);

  nlohmann::json map_;
  std::string name_;
  std::vector<std::string>& problems_;
  std::set<std::string> taken_;
};

}  // namespace megatron::frontends
