#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/transformer/config.h"

namespace megatron {

// Upper bound of any size in a model; keeps products of two sizes within 64 bits.
inline constexpr int64_t kMaxHfSize = int64_t{1} << 31;

// The fields of an object of config.json; null counts as absent. A field of the wrong kind, and a
// required one that is absent, is a FormatError.
class HfFields {
 public:
  // Both must outlive it.
  HfFields(const std::filesystem::path& path, const nlohmann::json& object)
      : path_(path), object_(object) {}

  bool is_empty() const;
  bool has(const char* name) const;

  int64_t size(const char* name) const;
  int64_t size(const char* name, int64_t otherwise) const {
    return has(name) ? size(name) : otherwise;
  }
  double number(const char* name) const;
  double number(const char* name, double otherwise) const {
    return has(name) ? number(name) : otherwise;
  }
  bool flag(const char* name, bool otherwise) const;
  std::string text(const char* name, const char* otherwise) const;
  std::vector<std::string> texts(const char* name) const;
  // A token id; the first of a list.
  std::optional<int64_t> token(const char* name) const;
  // A token id or a list of them.
  std::vector<int64_t> tokens(const char* name) const;
  std::optional<HfFields> object(const char* name) const;

  // Throws Unsupported with the field's value and the reason.
  [[noreturn]] void unsupported(const char* name, std::string_view why) const;
  // Refuses any value but `only`.
  void require_flag(const char* name, bool only, std::string_view why) const {
    if (flag(name, only) != only) unsupported(name, why);
  }

 private:
  [[noreturn]] void wrong(const char* name, const char* expected) const;
  const nlohmann::json& required(const char* name) const;

  const std::filesystem::path& path_;
  const nlohmann::json& object_;
};

// The ungated activation of a field's value, and the reverse.
Activation hf_activation(const HfFields& fields, const char* name, const char* otherwise);
const char* hf_activation_name(Activation activation);

}  // namespace megatron
