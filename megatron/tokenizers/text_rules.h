#pragma once

#include <string>
#include <string_view>

namespace megatron {

void replace_all(std::string& text, std::string_view from, std::string_view to);

// Whether " do not" becomes " don't", as the decoder of WordPiece in tokenizer.json has it.
enum class BlankRules { kPlain, kWithDoNot };

// Removes the blanks that joining words leaves before . ? ! , n't 'm 's 've 're and around '.
std::string without_extra_blanks(std::string text, BlankRules rules = BlankRules::kPlain);

}  // namespace megatron
