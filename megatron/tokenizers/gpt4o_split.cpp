#include "megatron/tokenizers/gpt4o_split.h"

#include <utf8proc.h>

#include "megatron/tokenizers/unicode_text.h"

namespace megatron {
namespace {

CasedClasses::Kind case_kind_of(char32_t value) {
  using Kind = CasedClasses::Kind;
  if (is_white_space(value)) return Kind::kSpace;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(value))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
      return Kind::kUpper;
    case UTF8PROC_CATEGORY_LL:
      return Kind::kLower;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return Kind::kUncased;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return Kind::kMark;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return Kind::kNumber;
    default:
      return Kind::kOther;
  }
}

}  // namespace

CasedClasses::CasedClasses() : table_(case_kind_of) {}

}  // namespace megatron
