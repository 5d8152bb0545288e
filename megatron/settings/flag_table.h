#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "megatron/core/arg_map.h"

namespace megatron {

enum class FlagType {
  kSwitch,  // its presence means true
  kOff,     // its presence means false: --no-X and --disable-X
  kBool,    // takes a value: true or false, yes or no, 1 or 0
  kInt,
  kFloat,
  kText,
  kChoice,  // one of a list of words
  kInts,    // the arguments up to the next flag
  kTexts,
  kFloats,
  kLayers,  // a number of each layer, or one number (layer_pattern.h)
};

// The effect of giving a flag.
enum class FlagStatus {
  kUsed,
  kIgnored,  // accepted with a warning: it has no effect here, for the given reason
  kRefused,  // a problem unless the value is the default: its feature is not available
  kRemoved,  // a problem: the flag no longer exists; the remedy names its replacement
};

// Whether --use-checkpoint-args takes a setting from the checkpoint.
enum class FromCheckpoint {
  kNever,
  kUnlessGiven,  // the command line wins
  kAlways,       // Compat: core_r0.5.0 takes it even if the command line has it
};

// An enumeration field, and the names of its values on the command line.
struct ChoiceField {
  std::function<void(int)> set;
  std::function<int()> get;
  std::vector<std::pair<std::string, int>> values;  // a value prints as its first name
};

// An entry in a map, for a setting without a field.
struct MapEntry {
  ArgMap* map;
  std::string key;
};

using FlagField = std::variant<bool*, int64_t*, double*, std::optional<double>*, std::string*,
                               std::vector<int64_t>*, std::vector<std::string>*,
                               std::vector<double>*, std::vector<int>*, ChoiceField, MapEntry>;

// One row: a flag, its field, and its text in --help. The setters return the row, so that a
// declaration reads as one sentence.
struct Flag {
  std::vector<std::string> names;  // "--norm-epsilon", then other spellings
  std::string dest;                // name of the setting: norm_epsilon
  std::string group;
  std::string help;
  FlagType type = FlagType::kText;
  FlagStatus status = FlagStatus::kUsed;
  FlagField field;
  ArgValue initial;   // the field's value before parsing
  ArgValue fallback;  // shown by values() and --help instead; none(), prints()
  std::vector<std::string> choices;
  std::string feature;  // kRefused: the missing feature; kRemoved: the remedy
  std::string reason;   // kIgnored: why the flag has no effect, as the end of a sentence
  std::vector<std::string> models;     // the only models that read the setting; empty: all
  std::string carrier;                 // field of the resolved config; empty: dest
  std::vector<std::string> nicknames;  // unknown spellings that mean this flag
  bool is_listed = true;               // listed by values() even if not given
  // The value changes the shape or meaning of a checkpoint's weights.
  bool is_architecture = false;
  FromCheckpoint taken_from_checkpoint = FromCheckpoint::kNever;
  bool must_continue = false;        // a resumed run must have the checkpoint's value
  bool is_in_every_version = false;  // see in_every_version()
  bool refuses_zero = false;         // see not_zero()
  std::string requirement;           // "required"; see required()
  int64_t most = std::numeric_limits<int64_t>::max();  // largest accepted integer

  Flag& none();                                 // the default shows as None
  Flag& prints(ArgValue default_value);         // the default shows as this
  Flag& among(std::vector<std::string> words);  // the choices of a kChoice entry
  Flag& architecture(FromCheckpoint taken = FromCheckpoint::kUnlessGiven);
  Flag& from_checkpoint(FromCheckpoint taken = FromCheckpoint::kUnlessGiven);
  // A run must have the checkpoint's value to resume from it. Compat: the list of Megatron-LM
  // core_r0.5.0 without the parallel sizes, which may change.
  Flag& continued();
  // Checkpoints of every version of Megatron-LM store the setting with this type and meaning.
  Flag& in_every_version();
  // 0 in the field means "not given", so giving 0 is a problem.
  Flag& not_zero();
  // --help marks the flag as required; `without` names a flag that can replace it.
  Flag& required(const std::string& without = {});
  // A larger integer is a typo that would exhaust memory or time.
  Flag& at_most(int64_t value);
  // Further effects of giving the flag.
  Flag& no_effect(std::string why);          // accepted: "--flag has no effect: <why>"
  Flag& refused(std::string missing);        // only the default value is accepted
  Flag& only_for(std::vector<std::string>);  // no effect in a program of another model
  Flag& becomes(std::string field);          // the field that constructors read instead of dest
  Flag& nickname(std::vector<std::string>);  // for "--tp", `did you mean ...?` suggests this flag

  bool takes_value() const { return type != FlagType::kSwitch && type != FlagType::kOff; }
  bool takes_list() const {
    return type == FlagType::kInts || type == FlagType::kTexts || type == FlagType::kFloats;
  }
};

// Maximum value of flags for threads.
inline constexpr int64_t kMaxThreads = 4096;

// The result of parsing a command line, besides the values it set.
struct ParsedFlags {
  std::set<std::string> given;        // dests
  std::vector<std::string> words;     // positional arguments
  std::vector<std::string> ignored;   // flags without effect, by their first name
  std::vector<std::string> warnings;  // one sentence for each flag whose row has a reason
  std::vector<std::string> problems;  // one sentence each
  bool wants_help = false;
  bool wants_all_help = false;  // --help-all: includes flags without effect
};

enum class HelpScope {
  kUseful,  // flags that have an effect
  kAll,
};

// The flags of a program, bound to its config structs. Parsing follows Megatron-LM's argument
// parser: `--flag value` and `--flag=value`, no abbreviations, the last occurrence wins, a list
// ends at the next word that begins with '-' and is not a negative number. `-` and `_` are equal
// inside a flag. The fields must outlive the table and must not move.
class FlagTable {
 public:
  // Starts a group of --help for the rows that follow.
  void group(std::string title);

  // `names` is a comma-separated list of spellings. The first one names the dest, unless
  // " -> dest" follows.
  template <class Field>
  Flag& add(std::string_view names, Field& field, std::string help) {
    const FlagType type = value_type_of(field);
    FlagField bound = &field;
    return add_row(names, type, std::move(bound), std::move(help));
  }
  // The same for a field whose initial value means "not given" and shows as None.
  template <class Field>
  Flag& add_optional(std::string_view names, Field& field, std::string help) {
    return add(names, field, std::move(help)).none();
  }
  Flag& add_switch(std::string_view names, bool& field, std::string help);
  Flag& add_off(std::string_view names, bool& field, std::string help);
  Flag& add_bool(std::string_view names, bool& field, std::string help);
  // true or false; the field is without a value, and shows as None, unless the flag is given.
  Flag& add_bool(std::string_view names, std::optional<bool>& field, std::string help);

  template <class Enum>
  Flag& add_choice(std::string_view names, Enum& field,
                   std::initializer_list<std::pair<const char*, Enum>> values, std::string help) {
    ChoiceField choice;
    choice.set = [&field](int value) { field = static_cast<Enum>(value); };
    choice.get = [&field] { return static_cast<int>(field); };
    for (const auto& [name, value] : values) {
      choice.values.emplace_back(name, static_cast<int>(value));
    }
    return add_choice(names, std::move(choice), std::move(help));
  }
  Flag& add_choice(std::string_view names, ChoiceField field, std::string help);

  // A flag without a field: its value is in `map` from the start. It has no effect, or is refused
  // if `missing_feature` names a feature.
  Flag& add_entry(std::string_view names, FlagType type, ArgMap& map, ArgValue fallback,
                  std::string help, std::string missing_feature = {});
  // The same for a flag that core_r0.5.0 does not have: values() lists it only if it is given.
  Flag& add_later_entry(std::string_view names, FlagType type, ArgMap& map, ArgValue fallback,
                        std::string help, std::string missing_feature = {});
  // A flag that no longer exists; giving it is a problem that ends with `remedy`.
  Flag& add_removed(std::string_view names, FlagType type, std::string remedy);

  // Sets the fields from the arguments of a command line, without the program's name. Reports all
  // problems.
  ParsedFlags parse(std::span<const std::string> words);

  // Moves this table's flags and their values out of a command line whose other arguments belong to
  // another table. Leaves --help.
  std::vector<std::string> take_own(std::vector<std::string>& words) const;

  // The row of a dest; null if there is none.
  const Flag* find(std::string_view dest) const;
  // Assigns a value to the field of a dest. Throws ConfigError if it does not fit.
  void assign(const std::string& dest, const ArgValue& value);
  // Every setting and its current value; `given` holds the dests that the command line set. A field
  // that was not given and still has its initial value shows as its row's fallback.
  ArgMap values(const std::set<std::string>& given) const;
  // The dests of fields that differ from their initial values.
  std::set<std::string> changed() const;

  const std::deque<Flag>& rows() const { return rows_; }
  // The text of --help below the usage line: groups and their flags, 100 columns. `model` is the
  // program's model; flags of other models show only with kAll.
  std::string help(HelpScope scope = HelpScope::kAll, std::string_view model = {}) const;

 private:
  static FlagType value_type_of(const int64_t&) { return FlagType::kInt; }
  static FlagType value_type_of(const double&) { return FlagType::kFloat; }
  static FlagType value_type_of(const std::optional<double>&) { return FlagType::kFloat; }
  static FlagType value_type_of(const std::string&) { return FlagType::kText; }
  static FlagType value_type_of(const std::vector<int64_t>&) { return FlagType::kInts; }
  static FlagType value_type_of(const std::vector<std::string>&) { return FlagType::kTexts; }
  static FlagType value_type_of(const std::vector<double>&) { return FlagType::kFloats; }
  static FlagType value_type_of(const std::vector<int>&) { return FlagType::kLayers; }

  Flag& add_row(std::string_view names, FlagType type, FlagField field, std::string help);
  void set(const Flag& flag, std::span<const std::string> words, const std::string& typed,
           ParsedFlags& parsed) const;
  const Flag* lookup(std::string_view typed) const;
  std::string unknown(const std::string& typed) const;

  std::string group_;
  std::deque<Flag> rows_;
  std::map<std::string, const Flag*> by_name_;  // with hyphens only
};

// "int", "text", ...: the type of a flag in --help and tests/golden/flags.txt.
std::string_view name_of(FlagType type);

}  // namespace megatron
