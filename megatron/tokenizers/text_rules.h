#pragma once

#include <string>
#include <string_view>

namespace megatron {

void replace_all(std::string& text, std::string_view from, std::string_view to);

// Replaces " do not" by " don't", as the WordPiece decoder in tokenizer.json.
enum class BlankRules { kPlain, kWithDoNot };

// Removes the blanks that joining words leaves before . ? ! , n't 'm 's 've 're and around '.
std::string without_extra_blanks(std::string text, BlankRules rules = BlankRules::kPlain);

}  // namespace megatron
