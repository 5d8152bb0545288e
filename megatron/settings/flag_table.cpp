#include "megatron/settings/flag_table.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "megatron/core/error.h"
#include "megatron/core/number_text.h"
#include "megatron/core/printable.h"
#include "megatron/settings/edit_distance.h"
#include "megatron/settings/layer_pattern.h"
#include "megatron/tokenizers/unicode_text.h"

namespace megatron {
namespace {

constexpr size_t kHelpColumn = 42;
constexpr size_t kHelpWidth = 100;

std::string with_hyphens(std::string_view name) {
  std::string text(name);
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

// "--no-bias-dropout-fusion" -> "bias_dropout_fusion" for a switch that turns something off.
std::string dest_of(std::string_view name, FlagType type) {
  name.remove_prefix(2);
  if (type == FlagType::kOff) {
    for (const std::string_view prefix : {"no-", "disable-"}) {
      if (name.starts_with(prefix)) {
        name.remove_prefix(prefix.size());
        break;
      }
    }
  }
  std::string dest(name);
  std::replace(dest.begin(), dest.end(), '-', '_');
  return dest;
}

// The parts of "--norm-epsilon,--layernorm-epsilon -> norm_epsilon".
struct Spelling {
  Spelling(std::string_view text, FlagType type) {
    constexpr std::string_view kArrow = " -> ";
    const size_t arrow = text.find(kArrow);
    if (arrow != std::string_view::npos) {
      dest = text.substr(arrow + kArrow.size());
      text = text.substr(0, arrow);
    }
    while (!text.empty()) {
      const size_t end = std::min(text.find(','), text.size());
      names.emplace_back(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    if (dest.empty()) dest = dest_of(names.front(), type);
  }

  std::vector<std::string> names;
  std::string dest;
};

bool is_negative_number(std::string_view word) { return number_of(word).has_value(); }

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// True if the argument ends a list of values. An argument with a space is text, even with a leading
// hyphen, and no flag begins with a digit: "-1,2,3" is a value.
bool is_flag_like(std::string_view word) {
  return word.size() > 1 && word.front() == '-' && !is_digit(word[1]) &&
         !is_negative_number(word) && word.find(' ') == std::string_view::npos;
}

std::optional<bool> truth_of(std::string word) {
  std::transform(word.begin(), word.end(), word.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const char* yes : {"true", "yes", "on", "1"}) {
    if (word == yes) return true;
  }
  for (const char* no : {"false", "no", "off", "0"}) {
    if (word == no) return false;
  }
  return std::nullopt;
}

// The arguments; replaces those that are not UTF-8 by printable() and adds a problem for each, with
// the flag before it.
std::vector<std::string> in_utf8(std::span<const std::string> words,
                                 std::vector<std::string>& problems) {
  std::vector<std::string> readable;
  readable.reserve(words.size());
  std::string flag;
  for (const std::string& word : words) {
    const bool is_readable = is_valid_utf8(word);
    readable.push_back(is_readable ? word : printable(word));
    const bool is_flag = is_flag_like(readable.back());
    if (is_flag) flag = readable.back() + " ";
    if (is_readable) continue;
    problems.push_back(
        fmt::format("{}{} must be UTF-8, because checkpoints and logs keep it as JSON; rename the "
                    "file, or write the text in UTF-8",
                    is_flag ? "" : flag, readable.back()));
  }
  return readable;
}

// The value of one occurrence's arguments; sets `wrong` to a sentence if they are invalid.
ArgValue value_of(const Flag& flag, std::span<const std::string> words, std::string& wrong) {
  const auto reject = [&](const std::string& word, const std::string& rule) {
    wrong = fmt::format("{} {} {}", flag.names.front(), word, rule);
    return ArgValue();
  };
  switch (flag.type) {
    case FlagType::kSwitch:
      return true;
    case FlagType::kOff:
      return false;
    case FlagType::kText:
      return words.front();
    case FlagType::kTexts:
      return std::vector<std::string>(words.begin(), words.end());
    case FlagType::kBool: {
      const auto truth = truth_of(words.front());
      return truth ? ArgValue(*truth) : reject(words.front(), "must be true or false");
    }
    case FlagType::kInt: {
      const auto number = integer_of(words.front());
      if (!number) return reject(words.front(), "must be an integer");
      if (*number == 0 && flag.refuses_zero) {
        return reject(words.front(), "must be greater than 0; leave the flag out for its default");
      }
      if (*number > flag.most) {
        return reject(words.front(), fmt::format("must be at most {}", flag.most));
      }
      return *number;
    }
    case FlagType::kFloat: {
      const auto number = number_of(words.front());
      if (!number || std::isnan(*number)) return reject(words.front(), "must be a number");
      if (std::isinf(*number)) return reject(words.front(), "must be a finite number");
      return *number;
    }
    case FlagType::kChoice: {
      const auto found = std::find(flag.choices.begin(), flag.choices.end(), words.front());
      if (found != flag.choices.end()) return words.front();
      return reject(words.front(), fmt::format("must be one of {}", fmt::join(flag.choices, ", ")));
    }
    case FlagType::kFloats:
      for (const std::string& word : words) {
        const auto number = number_of(word);
        if (!number || !std::isfinite(*number)) return reject(word, "must be a list of numbers");
      }
      return std::vector<std::string>(words.begin(), words.end());
    case FlagType::kLayers: {
      const auto pattern = layer_pattern(words.front());
      if (pattern) return std::vector<int64_t>(pattern->begin(), pattern->end());
      return reject(words.front(), "must be an integer, or a list such as ([1]*3+[0]*1)*2");
    }
    case FlagType::kInts: {
      std::vector<int64_t> numbers;
      for (const std::string& word : words) {
        for (size_t begin = 0; begin <= word.size();) {
          const size_t end = std::min(word.find(',', begin), word.size());
          const auto number = integer_of(word.substr(begin, end - begin));
          if (!number) return reject(word, "must be a list of integers");
          numbers.push_back(*number);
          begin = end + 1;
        }
      }
      return numbers;
    }
  }
  throw InternalError("value_of: unknown flag type");
}

// Writes a value into a field; false if the types do not fit. None leaves the field unchanged.
struct AssignTo {
  const ArgValue& value;

  template <class T>
  bool operator()(T* field) const {
    if (!std::holds_alternative<T>(value)) return false;
    *field = std::get<T>(value);
    return true;
  }
  bool operator()(std::vector<std::string>* field) const {
    if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) {
      return *field = *texts, true;
    }
    if (const auto* text = std::get_if<std::string>(&value)) return *field = {*text}, true;
    // An empty list in a file has no element type.
    const auto* numbers = std::get_if<std::vector<int64_t>>(&value);
    if (numbers == nullptr || !numbers->empty()) return false;
    return field->clear(), true;
  }
  bool operator()(std::vector<double>* field) const {
    std::vector<double> numbers;
    if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) {
      for (const std::string& text : *texts) {
        const auto number = number_of(text);
        if (!number) return false;
        numbers.push_back(*number);
      }
    } else if (const auto* whole = std::get_if<std::vector<int64_t>>(&value)) {
      numbers.assign(whole->begin(), whole->end());
    } else {
      double number = 0.0;
      if (!(*this)(&number)) return false;
      numbers = {number};
    }
    *field = std::move(numbers);
    return true;
  }
  bool operator()(std::vector<int>* field) const {
    if (const auto* numbers = std::get_if<std::vector<int64_t>>(&value)) {
      return field->assign(numbers->begin(), numbers->end()), true;
    }
    if (const auto* number = std::get_if<int64_t>(&value)) {
      return *field = {static_cast<int>(*number)}, true;
    }
    const auto* text = std::get_if<std::string>(&value);
    const auto pattern = text != nullptr ? layer_pattern(*text) : std::nullopt;
    if (pattern) *field = *pattern;
    return pattern.has_value();
  }
  bool operator()(double* field) const {
    if (const auto* number = std::get_if<double>(&value)) return *field = *number, true;
    if (const auto* whole = std::get_if<int64_t>(&value)) {
      return *field = static_cast<double>(*whole), true;
    }
    return false;
  }
  bool operator()(std::optional<double>* field) const {
    double number = 0.0;
    if (!(*this)(&number)) return false;
    *field = number;
    return true;
  }
  bool operator()(const ChoiceField& field) const {
    const auto* word = std::get_if<std::string>(&value);
    if (word == nullptr) return false;
    for (const auto& [name, number] : field.values) {
      if (name == *word) return field.set(number), true;
    }
    return false;
  }
  bool operator()(const MapEntry& entry) const {
    (*entry.map)[entry.key] = value;
    return true;
  }
};

struct ValueIn {
  template <class T>
  ArgValue operator()(T* field) const {
    return *field;
  }
  ArgValue operator()(std::optional<double>* field) const {
    return field->has_value() ? ArgValue(**field) : ArgValue();
  }
  ArgValue operator()(std::vector<double>* field) const {
    std::vector<std::string> texts;
    for (const double number : *field) texts.push_back(fmt::format("{}", number));
    return field->empty() ? ArgValue() : ArgValue(texts);
  }
  ArgValue operator()(std::vector<int>* field) const {
    return field->empty() ? ArgValue() : std::vector<int64_t>(field->begin(), field->end());
  }
  ArgValue operator()(const ChoiceField& field) const {
    const int number = field.get();
    for (const auto& [name, value] : field.values) {
      if (value == number) return name;
    }
    return ArgValue();
  }
  ArgValue operator()(const MapEntry& entry) const {
    const auto found = entry.map->find(entry.key);
    return found == entry.map->end() ? ArgValue() : found->second;
  }
};

// "--names TYPE" of --help.
std::string synopsis(const Flag& flag) {
  std::string text = fmt::format("{}", fmt::join(flag.names, ", "));
  if (flag.type == FlagType::kChoice) {
    return fmt::format("{} {{{}}}", text, fmt::join(flag.choices, ","));
  }
  if (flag.takes_value()) text += fmt::format(" {}", name_of(flag.type));
  return text;
}

// Text after a column, broken at spaces into lines of kHelpWidth.
std::string wrapped(std::string_view text) {
  const std::string indent(kHelpColumn, ' ');
  std::string lines;
  size_t column = kHelpColumn;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (column > kHelpColumn && column + 1 + end > kHelpWidth) {
      lines += '\n' + indent;
      column = kHelpColumn;
    }
    if (column > kHelpColumn) {
      lines += ' ';
      column += 1;
    }
    lines += text.substr(0, end);
    column += end;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::string described(const Flag& flag) {
  std::string text = flag.help;
  if (flag.status == FlagStatus::kIgnored) {
    text += flag.reason.empty() ? " Accepted, no effect here."
                                : fmt::format(" No effect here: {}.", flag.reason);
  }
  if (!flag.models.empty()) text += fmt::format(" For {} only.", fmt::join(flag.models, " and "));
  if (flag.status == FlagStatus::kRefused) text += " Not available yet.";
  if (!flag.requirement.empty()) text += fmt::format(" ({})", flag.requirement);
  const std::string fallback = text_of(flag.fallback);
  if (flag.takes_value() && flag.fallback.index() != 0 && !fallback.empty()) {
    text += fmt::format(" (default: {})", fallback);
  }
  return text;
}

}  // namespace

std::string_view name_of(FlagType type) {
  switch (type) {
    case FlagType::kSwitch:
      return "switch";
    case FlagType::kOff:
      return "off-switch";
    case FlagType::kBool:
      return "true|false";
    case FlagType::kInt:
      return "INT";
    case FlagType::kFloat:
      return "NUMBER";
    case FlagType::kText:
      return "TEXT";
    case FlagType::kChoice:
      return "CHOICE";
    case FlagType::kInts:
      return "INT...";
    case FlagType::kTexts:
      return "TEXT...";
    case FlagType::kFloats:
      return "NUMBER...";
    case FlagType::kLayers:
      return "LAYERS";
  }
  throw InternalError("name_of: unknown flag type");
}

Flag& Flag::none() {
  fallback = ArgValue();
  return *this;
}

Flag& Flag::prints(ArgValue default_value) {
  fallback = std::move(default_value);
  return *this;
}

Flag& Flag::among(std::vector<std::string> words) {
  choices = std::move(words);
  return *this;
}

Flag& Flag::architecture(FromCheckpoint taken) {
  is_architecture = true;
  return from_checkpoint(taken);
}

Flag& Flag::from_checkpoint(FromCheckpoint taken) {
  taken_from_checkpoint = taken;
  return *this;
}

Flag& Flag::continued() {
  must_continue = true;
  return *this;
}

Flag& Flag::in_every_version() {
  is_in_every_version = true;
  return *this;
}

Flag& Flag::not_zero() {
  refuses_zero = true;
  return *this;
}

Flag& Flag::at_most(int64_t value) {
  most = value;
  return *this;
}

Flag& Flag::no_effect(std::string why) {
  status = FlagStatus::kIgnored;
  reason = std::move(why);
  return *this;
}

Flag& Flag::refused(std::string missing) {
  status = FlagStatus::kRefused;
  feature = std::move(missing);
  return *this;
}

Flag& Flag::only_for(std::vector<std::string> kinds) {
  models = std::move(kinds);
  return *this;
}

Flag& Flag::becomes(std::string field_name) {
  carrier = std::move(field_name);
  return *this;
}

Flag& Flag::required(const std::string& without) {
  requirement = without.empty() ? "required" : "required without " + without;
  return *this;
}

Flag& Flag::nickname(std::vector<std::string> spellings) {
  nicknames = std::move(spellings);
  return *this;
}

void FlagTable::group(std::string title) { group_ = std::move(title); }

Flag& FlagTable::add_switch(std::string_view names, bool& field, std::string help) {
  return add_row(names, FlagType::kSwitch, &field, std::move(help));
}
Flag& FlagTable::add_off(std::string_view names, bool& field, std::string help) {
  return add_row(names, FlagType::kOff, &field, std::move(help));
}
Flag& FlagTable::add_bool(std::string_view names, bool& field, std::string help) {
  return add_row(names, FlagType::kBool, &field, std::move(help));
}

Flag& FlagTable::add_entry(std::string_view names, FlagType type, ArgMap& map, ArgValue fallback,
                           std::string help, std::string missing_feature) {
  const std::string dest = Spelling(names, type).dest;
  map[dest] = std::move(fallback);
  Flag& flag = add_row(names, type, MapEntry{&map, dest}, std::move(help));
  flag.status = missing_feature.empty() ? FlagStatus::kIgnored : FlagStatus::kRefused;
  flag.feature = std::move(missing_feature);
  return flag;
}

Flag& FlagTable::add_later_entry(std::string_view names, FlagType type, ArgMap& map,
                                 ArgValue fallback, std::string help, std::string missing_feature) {
  Flag& flag =
      add_entry(names, type, map, std::move(fallback), std::move(help), std::move(missing_feature));
  flag.is_listed = false;
  return flag;
}

Flag& FlagTable::add_choice(std::string_view names, ChoiceField field, std::string help) {
  return add_row(names, FlagType::kChoice, std::move(field), std::move(help));
}
Flag& FlagTable::add_bool(std::string_view names, std::optional<bool>& field, std::string help) {
  constexpr int kNone = -1;
  return add_choice(names,
                    {.set = [&field](int value) { field = value != 0; },
                     .get = [&field] { return field.has_value() ? int{*field} : kNone; },
                     .values = {{"true", 1}, {"false", 0}}},
                    std::move(help));
}

Flag& FlagTable::add_removed(std::string_view names, FlagType type, std::string remedy) {
  Flag& flag = add_row(names, type, MapEntry{nullptr, {}}, "Removed: " + remedy + ".");
  flag.status = FlagStatus::kRemoved;
  flag.feature = std::move(remedy);
  flag.is_listed = false;
  return flag;
}

Flag& FlagTable::add_row(std::string_view names, FlagType type, FlagField field, std::string help) {
  Spelling spelling(names, type);
  Flag flag;
  flag.names = std::move(spelling.names);
  flag.dest = std::move(spelling.dest);
  flag.group = group_;
  flag.help = std::move(help);
  flag.type = type;
  flag.field = std::move(field);
  if (const auto* choice = std::get_if<ChoiceField>(&flag.field)) {
    for (const auto& [name, value] : choice->values) flag.choices.push_back(name);
  }
  const auto* entry = std::get_if<MapEntry>(&flag.field);
  if (entry == nullptr || entry->map != nullptr) {
    flag.initial = std::visit(ValueIn{}, flag.field);
    flag.fallback = flag.initial;
  }
  rows_.push_back(std::move(flag));
  Flag& row = rows_.back();
  for (const std::string& name : row.names) {
    const bool is_new = by_name_.emplace(with_hyphens(name), &row).second;
    invariant(is_new, "every flag is declared once");
  }
  return row;
}

const Flag* FlagTable::lookup(std::string_view typed) const {
  const auto found = by_name_.find(with_hyphens(typed));
  return found == by_name_.end() ? nullptr : found->second;
}

const Flag* FlagTable::find(std::string_view dest) const {
  for (const Flag& flag : rows_) {
    if (flag.dest == dest) return &flag;
  }
  return nullptr;
}

// "--hiden-size is not a flag; did you mean --hidden-size?" A short name may differ in only one
// letter, because with two it resembles many others.
std::string FlagTable::unknown(const std::string& typed) const {
  const std::string name = with_hyphens(typed);
  size_t best_distance = (name.size() <= 6 ? 1 : std::max<size_t>(2, name.size() / 3)) + 1;
  std::string nearest;
  for (const Flag& flag : rows_) {
    for (const std::string& nickname : flag.nicknames) {
      if (nickname == name) {
        return fmt::format("{} is not a flag; did you mean {}?", typed, flag.names.front());
      }
    }
  }
  for (const auto& [known, flag] : by_name_) {
    if (flag->status == FlagStatus::kRemoved) continue;
    const bool is_abbreviated = name.size() > 4 && known.starts_with(name);
    const size_t distance = is_abbreviated ? 0 : edit_distance(name, known);
    if (distance < best_distance) {
      best_distance = distance;
      nearest = flag->names.front();
      for (const std::string& spelling : flag->names) {
        if (with_hyphens(spelling) == known) nearest = spelling;
      }
    }
  }
  return nearest.empty() ? fmt::format("{} is not a flag; --help lists them all", typed)
                         : fmt::format("{} is not a flag; did you mean {}?", typed, nearest);
}

void FlagTable::set(const Flag& flag, std::span<const std::string> words, const std::string& typed,
                    ParsedFlags& parsed) const {
  if (flag.status == FlagStatus::kRemoved) {
    parsed.problems.push_back(fmt::format("{} was removed; {}", typed, flag.feature));
    return;
  }
  std::string wrong;
  const ArgValue value = value_of(flag, words, wrong);
  if (!wrong.empty()) {
    parsed.problems.push_back(std::move(wrong));
    return;
  }
  const bool changes = value != flag.initial;
  if (flag.status == FlagStatus::kRefused && changes) {
    const std::string shown =
        words.empty() ? typed : fmt::format("{} {}", typed, fmt::join(words, " "));
    parsed.problems.push_back(
        fmt::format("{}: {} is not available yet; remove the flag", shown, flag.feature));
    return;
  }
  if (flag.status == FlagStatus::kIgnored) {
    if (flag.reason.empty()) {
      parsed.ignored.push_back(flag.names.front());
    } else {
      parsed.warnings.push_back(
          fmt::format("{} has no effect: {}", flag.names.front(), flag.reason));
    }
  }
  invariant(std::visit(AssignTo{value}, flag.field), "a flag's type is its field's type");
  parsed.given.insert(flag.dest);
}

ParsedFlags FlagTable::parse(std::span<const std::string> given_words) {
  ParsedFlags parsed;
  const std::vector<std::string> words = in_utf8(given_words, parsed.problems);
  const size_t count = words.size();
  for (size_t i = 0; i < count;) {
    const std::string& word = words[i++];
    if (word == "-h" || word == "--help" || word == "--help-all" || word == "--help_all") {
      parsed.wants_help = true;
      if (word.size() > 6) parsed.wants_all_help = true;
      continue;
    }
    if (!is_flag_like(word)) {
      parsed.words.push_back(word);
      continue;
    }
    const size_t equals = word.find('=');
    const std::string typed = word.substr(0, equals);
    const Flag* flag = lookup(typed);
    if (flag == nullptr) {
      parsed.problems.push_back(unknown(typed));
      while (i < count && !is_flag_like(words[i])) ++i;  // skips the values of the unknown flag
      continue;
    }
    std::vector<std::string> values;
    if (equals != std::string::npos) {
      values.push_back(word.substr(equals + 1));
    } else if (flag->takes_list()) {
      while (i < count && !is_flag_like(words[i])) values.push_back(words[i++]);
    } else if (flag->takes_value() && i < count && !is_flag_like(words[i])) {
      values.push_back(words[i++]);
    }
    if (!flag->takes_value() && !values.empty()) {
      parsed.problems.push_back(
          fmt::format("{} takes no value; write {} alone", word, flag->names.front()));
    } else if (flag->takes_value() && !flag->takes_list() && values.empty() &&
               flag->status != FlagStatus::kRemoved) {
      parsed.problems.push_back(fmt::format("{} needs a value; write {}", typed, synopsis(*flag)));
    } else {
      set(*flag, values, typed, parsed);
    }
  }
  return parsed;
}

std::vector<std::string> FlagTable::take_own(std::vector<std::string>& words) const {
  std::vector<std::string> own;
  std::vector<std::string> rest;
  for (size_t i = 0; i < words.size(); ++i) {
    const size_t equals = words[i].find('=');
    const Flag* flag = is_flag_like(words[i]) ? lookup(words[i].substr(0, equals)) : nullptr;
    std::vector<std::string>& to = flag == nullptr ? rest : own;
    to.push_back(words[i]);
    if (flag == nullptr || !flag->takes_value() || equals != std::string::npos) continue;
    while (i + 1 < words.size() && !is_flag_like(words[i + 1])) {
      own.push_back(words[++i]);
      if (!flag->takes_list()) break;
    }
  }
  words = std::move(rest);
  return own;
}

void FlagTable::assign(const std::string& dest, const ArgValue& value) {
  const Flag* flag = find(dest);
  if (flag == nullptr) throw ConfigError(fmt::format("{} is not a setting", dest));
  if (std::holds_alternative<std::monostate>(value)) return;
  const auto* const number = std::get_if<double>(&value);
  if (number != nullptr && !std::isfinite(*number)) {
    throw ConfigError(fmt::format("{} {} must be a finite number", dest, text_of(value)));
  }
  const auto* const text = std::get_if<std::string>(&value);
  if (text != nullptr && !is_valid_utf8(*text)) {
    throw ConfigError(fmt::format("{} {} must be UTF-8", dest, printable(*text)));
  }
  if (!std::visit(AssignTo{value}, flag->field)) {
    throw ConfigError(fmt::format(
        "{} cannot take the value {}; it must be {}", dest, text_of(value),
        flag->choices.empty() ? fmt::format("of type {}", name_of(flag->type))
                              : fmt::format("one of {}", fmt::join(flag->choices, ", "))));
  }
}

ArgMap FlagTable::values(const std::set<std::string>& given) const {
  ArgMap map;
  for (const Flag& flag : rows_) {
    const bool is_given = given.count(flag.dest) > 0;
    if (flag.status == FlagStatus::kRemoved || (!flag.is_listed && !is_given)) continue;
    const ArgValue value = std::visit(ValueIn{}, flag.field);
    map[flag.dest] = !is_given && value == flag.initial ? flag.fallback : value;
  }
  return map;
}

std::set<std::string> FlagTable::changed() const {
  std::set<std::string> dests;
  for (const Flag& flag : rows_) {
    if (flag.status == FlagStatus::kRemoved) continue;
    if (std::visit(ValueIn{}, flag.field) != flag.initial) dests.insert(flag.dest);
  }
  return dests;
}

std::string FlagTable::help(HelpScope scope, std::string_view model) const {
  std::string text;
  const auto shows = [&](const Flag& flag) {
    if (flag.status == FlagStatus::kRemoved) return false;
    if (scope == HelpScope::kAll) return true;
    const std::vector<std::string>& models = flag.models;
    const bool is_for_model =
        models.empty() || std::find(models.begin(), models.end(), model) != models.end();
    return flag.status == FlagStatus::kUsed && is_for_model;
  };
  std::vector<std::string> groups;
  for (const Flag& flag : rows_) {
    if (shows(flag) && std::find(groups.begin(), groups.end(), flag.group) == groups.end()) {
      groups.push_back(flag.group);
    }
  }
  for (const std::string& group : groups) {
    text += fmt::format("\n{}:\n", group.empty() ? "flags" : group);
    for (const Flag& flag : rows_) {
      if (flag.group != group || !shows(flag)) continue;
      const std::string left = "  " + synopsis(flag);
      text += left;
      text += left.size() + 2 > kHelpColumn ? "\n" + std::string(kHelpColumn, ' ')
                                            : std::string(kHelpColumn - left.size(), ' ');
      text += wrapped(described(flag)) + "\n";
    }
  }
  return text;
}

}  // namespace megatron
