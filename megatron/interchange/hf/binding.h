#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/kernels/activation.h"

namespace megatron {

// Upper bound of any size in a model; keeps products of two sizes within 64 bits.
inline constexpr int64_t kMaxHfSize = int64_t{1} << 31;

// A value of an activation field.
struct HfActivation {
  const char* name;
  Activation activation;
};

// The problems found while the fields of a config.json were bound.
struct HfReport {
  std::vector<std::string> malformed;    // reading: fields of the wrong kind or missing
  std::vector<std::string> unsupported;  // reading: values that this program does not compute
  std::vector<std::string> differences;  // writing: settings that the family cannot express
  std::vector<std::string> unknown;      // reading: fields that nothing was bound to
  std::vector<std::string> warnings;
  std::set<const void*> bound;  // settings
};

// Binds the fields of an object of config.json to settings, in both directions: reading, a setting
// gets the value of its field; writing, the field gets the setting. So a family describes its
// fields once.
//
// A field of the wrong kind, or one that is missing, goes to the report, and the setting gets
// `otherwise` (1 for a required size). Null counts as absent, unless a function says otherwise.
class HfBinding {
 public:
  // Reads an object of the file. All must outlive it.
  HfBinding(const std::filesystem::path& file, const nlohmann::json& object, HfReport& report)
      : file_(&file), from_(&object), report_(report) {}
  // Writes into the object.
  HfBinding(nlohmann::json& object, HfReport& report) : to_(&object), report_(report) {}

  bool reads() const { return from_ != nullptr; }

  // An older name, which is read where the file lacks the first.
  void also_named(std::string name, std::string older);

  void size(const char* name, int64_t& setting);  // required
  void size(const char* name, int64_t& setting, int64_t otherwise);
  void size_from_zero(const char* name, int64_t& setting, int64_t otherwise);
  // 0 is null in the file; `otherwise` holds where the field is absent.
  void size_or_null(const char* name, int64_t& setting, int64_t otherwise);
  void number(const char* name, double& setting, double otherwise);
  void positive(const char* name, double& setting, double otherwise);  // a number above 0
  void number_or_null(const char* name, double& setting, double otherwise);
  void flag(const char* name, bool& setting, bool otherwise);
  // The field is the opposite of the setting.
  void opposite(const char* name, bool& setting, bool otherwise);
  void activation(const char* name, Activation& setting, std::span<const HfActivation> known,
                  const char* otherwise);

  // A setting that all models of the family share; `phrase` names it where another value cannot be
  // written.
  template <class T>
  void fixed(T& setting, const T& value, const char* phrase) {
    bind(setting);
    if (reads()) {
      setting = value;
    } else if (!(setting == value)) {
      differs(phrase);
    }
  }
  // The same for a setting to which no field is bound.
  template <class T>
  void fixed_unless_bound(T& setting, const T& value, const char* phrase) {
    if (!is_bound(setting)) fixed(setting, value, phrase);
  }
  // Writing: a condition of what the family can express.
  void expect(bool holds, const char* phrase) {
    if (!reads() && !holds) differs(phrase);
  }

  // A field with a single value that this program computes.
  void only(const char* name, bool value, std::string_view why);
  void only(const char* name, int64_t value, std::string_view why);
  void only(const char* name, double value, std::string_view why);
  void only(const char* name, const char* value, std::string_view why);
  // Fields without effect on the model.
  void ignore(std::span<const char* const> names);
  // No field of the object, or of those inside, is reported as unknown.
  void ignore_others() { ignores_others_ = true; }

  template <class T>
  bool is_bound(const T& setting) const {
    return report_.bound.contains(&setting);
  }
  template <class T>
  void bind(const T& setting) {  // by a converted value
    report_.bound.insert(&setting);
  }

  // Reading: values for which no function above suits. `has`: present and not null.
  bool has(const char* name) const;
  bool is_there(const char* name) const;  // may be null
  int64_t size_of(const char* name, int64_t otherwise);
  double number_of(const char* name, double otherwise);
  double positive_of(const char* name, double otherwise);
  bool flag_of(const char* name, bool otherwise);
  double required_number(const char* name);
  std::string text_of(const char* name, const char* otherwise);
  std::vector<std::string> texts(const char* name);
  std::vector<double> numbers(const char* name);
  std::vector<int64_t> tokens(const char* name);  // a token id or a list of them
  std::optional<int64_t> token(const char* name);
  // Reading: nullptr without a field that is an object. Writing: a new object.
  HfBinding* object(const char* name);
  // Reading: the fields that are objects.
  std::vector<HfBinding*> objects();
  bool is_empty() const;
  void unsupported(const char* name, std::string_view why);

  void warns(std::string warning) { report_.warnings.push_back(std::move(warning)); }

  // Writing: values for which no function above suits.
  void write(const char* name, const nlohmann::json& value);
  void write_texts(const char* name, const std::vector<std::string>& texts);
  void write_sizes(const char* name, const std::vector<int>& sizes);
  void differs(const char* phrase) { report_.differences.emplace_back(phrase); }

  // Fields of the object, and of those inside, that nothing was bound to, with the nearest name
  // that would be. Reading only; to be called last.
  void report_unknown() const;

 private:
  const nlohmann::json* find(const char* name);
  const nlohmann::json* find_required(const char* name);
  void wrong(const char* name, const char* expected);

  const std::filesystem::path* file_ = nullptr;
  const nlohmann::json* from_ = nullptr;
  nlohmann::json* to_ = nullptr;
  HfReport& report_;
  bool ignores_others_ = false;
  std::set<std::string, std::less<>> known_;
  std::map<std::string, std::string, std::less<>> older_;
  std::map<std::string, std::unique_ptr<HfBinding>> objects_;
};

// Activations of MLPs without a gate; gates: silu, gelu in the tanh form.
extern const std::span<const HfActivation> kHfActivations;
extern const std::span<const HfActivation> kHfSilu;
extern const std::span<const HfActivation> kHfGatedGelu;

}  // namespace megatron
