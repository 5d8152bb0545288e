#include <sstream>

#include "megatron/data/sentence_rules.h"

namespace megatron {
namespace {

// A full stop after these words rarely ends a sentence by itself.
constexpr const char* kAbbreviations =
    // titles and ranks
    "mr mrs ms messrs mme mlle dr prof rev hon st sr jr esq gen maj col lt capt cpl sgt cmdr adm "
    "gov sen rep reps pres supt det insp bros ph.d m.b.a "
    // companies and institutions
    "inc corp co cos ltd cie assn dept univ "
    // months and days; "sun" and "sat" are words, too
    "jan feb mar apr aug sept sep oct nov dec mon tues tue wed thurs thu fri "
    // states and addresses
    "ala ariz ark calif colo conn fla ga ill kan ky mich minn neb nev okla ore pa penn tenn va "
    "wash wis ave blvd ft mt "
    // in running text
    "vs viz cf approx pp vol eds yr yrs "
    // initials; the other letters may be words or names at the end of a sentence
    "c d e f g h j k l m n p r s t u v w";

// No sentence boundary between these words and a number: "No. 5", "pp. 3-7".
constexpr const char* kBeforeNumbers =
    "no nos vol vols p pp ch fig figs eq eqs sec art approx c ca est op";

// With an upper case letter, these words begin a sentence after an abbreviation.
constexpr const char* kStarters =
    "the a an this that these those he she it we they i you there here who what when where why how "
    "which his her its our their my your mr mrs and but or nor so yet for if as at by in on of to "
    "from with without after before while since although though because unless until once "
    "whenever whereas despite according under over during among between through against about "
    "however moreover furthermore therefore thus hence nevertheless nonetheless meanwhile instead "
    "similarly indeed also then now still even both many most some all each every several few "
    "another other one two no not only just perhaps maybe yes today yesterday tomorrow later "
    "earlier soon recently currently finally first second next last is are was were do does did "
    "can could will would should may might must have has had let see separately additionally "
    "likewise otherwise overall sometimes often usually whether";

std::vector<std::string> words_of(const char* text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

}  // namespace

SentenceRules english_sentence_rules() {
  SentenceRules rules;
  for (const std::string& word : words_of(kAbbreviations)) rules.abbreviations.insert(word);
  for (const std::string& word : words_of(kBeforeNumbers)) {
    rules.pairs.emplace(word, "##number##");
  }
  for (const std::string& word : words_of(kStarters)) {
    rules.starters.insert(word);
    rules.seen[word] = SentenceRules::kMiddleLower;
  }
  rules.letters_abbreviate = true;
  return rules;
}

}  // namespace megatron
