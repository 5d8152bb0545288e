#include "megatron/tokenizers/hf/post_processor.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "megatron/core/error.h"

namespace megatron::hf {
namespace {

using Json = nlohmann::json;

// {"cls": ["[CLS]", 101], "sep": ["[SEP]", 102]}
PostProcessor of_cls_and_sep(const Json& json) {
  return {{json.at("cls").at(1).get<int32_t>()}, {json.at("sep").at(1).get<int32_t>()}};
}

// A list of {"SpecialToken": {"id": name}} and {"Sequence": {"id": "A"}}.
PostProcessor of_template(const Json& json) {
  PostProcessor result;
  bool text_came = false;
  for (const Json& item : json.at("single")) {
    if (item.contains("Sequence")) {
      if (text_came) throw FormatError("the template \"single\" has the text twice");
      text_came = true;
      continue;
    }
    const std::string name = item.at("SpecialToken").at("id");
    std::vector<int32_t>& side = text_came ? result.after : result.before;
    for (const Json& id : json.at("special_tokens").at(name).at("ids")) {
      side.push_back(id.get<int32_t>());
    }
  }
  if (!text_came) throw FormatError("the template \"single\" has no text");
  return result;
}

// Each processor works on the result of the previous one.
PostProcessor of_sequence(const Json& json) {
  PostProcessor result;
  for (const Json& part : json.at("processors")) {
    const PostProcessor outer = make_post_processor(part);
    result.before.insert(result.before.begin(), outer.before.begin(), outer.before.end());
    result.after.insert(result.after.end(), outer.after.begin(), outer.after.end());
  }
  return result;
}

}  // namespace

PostProcessor make_post_processor(const Json& json) {
  if (json.is_null()) return {};
  const std::string type = json.at("type");
  if (type == "Sequence") return of_sequence(json);
  if (type == "TemplateProcessing") return of_template(json);
  if (type == "BertProcessing" || type == "RobertaProcessing") return of_cls_and_sep(json);
  if (type == "ByteLevel") return {};  // changes offsets only
  throw FormatError(fmt::format("the post_processor {} is not available", type));
}

}  // namespace megatron::hf
