#pragma once

#include <cstdint>
#include <deque>
#include <functional>
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
  kBool,    // takes a word: true or false, yes or no, 1 or 0
  kInt,
  kFloat,
  kText,
  kChoice,  // one of a list of words
  kInts,    // the words up to the next flag
  kTexts,
};

// What giving a flag does.
enum class FlagStatus {
  kUsed,
  kIgnored,  // accepted with a warning: it has no effect here, for the reason given
  kRefused,  // a problem, unless the value is the default: its feature is not available
  kRemoved,  // a problem: the name is gone; the remedy says what replaced it
};

// Whether --use-checkpoint-args takes a setting from the checkpoint.
enum class FromCheckpoint {
  kNever,
  kUnlessGiven,  // the command line wins
  kAlways,       // Compat: core_r0.5.0 takes it even when the command line names it
};

// A field with named values: an enumeration as the command line spells it.
struct ChoiceField {
  std::function<void(int)> set;
  std::function<int()> get;
  std::vector<std::pair<std::string, int>> values;  // first name of a value is the printed one
};

// An entry of a map of settings that have no field of their own.
struct MapEntry {
  ArgMap* map;
  std::string key;
};

using FlagField =
    std::variant<bool*, int64_t*, double*, std::optional<double>*, std::string*,
                 std::vector<int64_t>*, std::vector<std::string>*, ChoiceField, MapEntry>;

// One row: a flag, the field it fills, and what --help says. The setters return the row, so that a
// declaration reads as one sentence.
struct Flag {
  std::vector<std::string> names;  // "--norm-epsilon", then other spellings
  std::string dest;                // name of the setting: norm_epsilon
  std::string group;
  std::string help;
  FlagType type = FlagType::kText;
  FlagStatus status = FlagStatus::kUsed;
  FlagField field;
  ArgValue initial;   // what the field holds before parsing
  ArgValue fallback;  // what values() and --help show for that; none(), prints()
  std::vector<std::string> choices;
  std::string feature;  // kRefused: what is not available; kRemoved: the remedy
  std::string reason;   // kIgnored: why the flag has no effect, as the end of a sentence
  std::vector<std::string> models;     // the only models that read the setting; empty: all
  std::string carrier;                 // field of a resolved config that holds it; empty: dest
  std::vector<std::string> nicknames;  // unknown spellings that mean this flag
  bool is_listed = true;               // listed by values() even when it is not given
  // The weights of a checkpoint have another shape or another meaning with another value.
  bool is_architecture = false;
  FromCheckpoint taken_from_checkpoint = FromCheckpoint::kNever;

  Flag& none();                                 // the default shows as None
  Flag& prints(ArgValue default_value);         // the default shows as this
  Flag& among(std::vector<std::string> words);  // the choices of a kChoice entry
  Flag& architecture(FromCheckpoint taken = FromCheckpoint::kUnlessGiven);
  Flag& from_checkpoint(FromCheckpoint taken = FromCheckpoint::kUnlessGiven);
  // What giving the flag means, if it is not what its status says.
  Flag& no_effect(std::string why);          // accepted: "--flag has no effect: <why>"
  Flag& refused(std::string missing);        // only the default value is accepted
  Flag& only_for(std::vector<std::string>);  // no effect in a program of another model
  Flag& becomes(std::string field);          // the field that constructors read instead of dest
  Flag& nickname(std::vector<std::string>);  // "--tp": `did you mean ...?` answers with this flag

  bool takes_value() const { return type != FlagType::kSwitch && type != FlagType::kOff; }
  bool takes_list() const { return type == FlagType::kInts || type == FlagType::kTexts; }
};

// What a command line said beside the values it set.
struct ParsedFlags {
  std::set<std::string> given;        // dests
  std::vector<std::string> words;     // neither flags nor their values
  std::vector<std::string> ignored;   // flags without effect, by their first name
  std::vector<std::string> warnings;  // a sentence for each flag whose row says why
  std::vector<std::string> problems;  // one sentence each
  bool wants_help = false;
  bool wants_all_help = false;  // --help-all: flags without effect, too
};

enum class HelpScope {
  kUseful,  // flags that do something
  kAll,
};

// The flags of a program, bound to its config structs. Parsing follows Megatron-LM's argument
// parser: `--flag value` and `--flag=value`, no abbreviations, the last occurrence wins, a list
// ends at the next word that begins with '-' and is not a negative number. `-` and `_` are the same
// inside a flag. The fields must outlive the table and stay where they are.
class FlagTable {
 public:
  // Rows declared from here on belong to this group of --help.
  void group(std::string title);

  // `names` is a comma-separated list of spellings. The first one names the dest, unless
  // " -> dest" follows.
  template <class Field>
  Flag& add(std::string_view names, Field& field, std::string help) {
    const FlagType type = value_type_of(field);
    FlagField bound = &field;
    return add_row(names, type, std::move(bound), std::move(help));
  }
  // The same for a field whose first value means "not given", which shows as None.
  template <class Field>
  Flag& add_optional(std::string_view names, Field& field, std::string help) {
    return add(names, field, std::move(help)).none();
  }
  Flag& add_switch(std::string_view names, bool& field, std::string help);
  Flag& add_off(std::string_view names, bool& field, std::string help);
  Flag& add_bool(std::string_view names, bool& field, std::string help);

  template <class Enum>
  Flag& add_choice(std::string_view names, Enum& field,
                   std::initializer_list<std::pair<const char*, Enum>> values, std::string help) {
    ChoiceField choice;
    choice.set = [&field](int value) { field = static_cast<Enum>(value); };
    choice.get = [&field] { return static_cast<int>(field); };
    for (const auto& [name, value] : values) {
      choice.values.emplace_back(name, static_cast<int>(value));
    }
    return add_row(names, FlagType::kChoice, std::move(choice), std::move(help));
  }

  // A flag without a field: its value lives in `map`, from the start. It has no effect, or is
  // refused when `missing_feature` says what it would need.
  Flag& add_entry(std::string_view names, FlagType type, ArgMap& map, ArgValue fallback,
                  std::string help, std::string missing_feature = {});
  // The same for a flag that core_r0.5.0 does not have: values() lists it only when it is given.
  Flag& add_later_entry(std::string_view names, FlagType type, ArgMap& map, ArgValue fallback,
                        std::string help, std::string missing_feature = {});
  // A flag that no longer exists; giving it is a problem that ends with `remedy`.
  Flag& add_removed(std::string_view names, FlagType type, std::string remedy);

  // Sets the fields from the words of a command line, without the program's name. Reports every
  // problem instead of stopping at the first.
  ParsedFlags parse(std::span<const std::string> words);

  // Takes this table's flags and their values out of a command line, for a command that hands the
  // rest to another table. --help stays.
  std::vector<std::string> take_own(std::vector<std::string>& words) const;

  // The row of a dest; null when there is none.
  const Flag* find(std::string_view dest) const;
  // Puts a value into the field of a dest. Throws ConfigError when it does not fit.
  void assign(const std::string& dest, const ArgValue& value);
  // Every setting and its value now; `given` holds the dests that the command line named. A field
  // that still has its first value and was not given shows as its row's fallback.
  ArgMap values(const std::set<std::string>& given) const;
  // The dests whose fields no longer have their first values.
  std::set<std::string> changed() const;

  const std::deque<Flag>& rows() const { return rows_; }
  // The text of --help below the usage line: groups and their flags, 100 columns. `model` names the
  // model of the program; flags of other models only show with kAll.
  std::string help(HelpScope scope = HelpScope::kAll, std::string_view model = {}) const;

 private:
  static FlagType value_type_of(const int64_t&) { return FlagType::kInt; }
  static FlagType value_type_of(const double&) { return FlagType::kFloat; }
  static FlagType value_type_of(const std::optional<double>&) { return FlagType::kFloat; }
  static FlagType value_type_of(const std::string&) { return FlagType::kText; }
  static FlagType value_type_of(const std::vector<int64_t>&) { return FlagType::kInts; }
  static FlagType value_type_of(const std::vector<std::string>&) { return FlagType::kTexts; }

  Flag& add_row(std::string_view names, FlagType type, FlagField field, std::string help);
  void set(const Flag& flag, std::span<const std::string> words, const std::string& typed,
           ParsedFlags& parsed) const;
  const Flag* lookup(std::string_view typed) const;
  std::string unknown(const std::string& typed) const;

  std::string group_;
  std::deque<Flag> rows_;
  std::map<std::string, const Flag*> by_name_;  // with hyphens only
};

// "int", "text", ...: the type of a flag as --help and tests/golden/flags.txt show it.
std::string_view name_of(FlagType type);

}  // namespace megatron
