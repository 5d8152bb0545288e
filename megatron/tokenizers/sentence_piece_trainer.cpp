#include "megatron/tokenizers/sentence_piece_trainer.h"

#include <fmt/format.h>
#include <sentencepiece_trainer.h>

#include <unordered_map>

#include "megatron/core/error.h"
#include "megatron/tokenizers/unicode.h"

namespace megatron {
namespace {

// The library skips longer sentences; they are split here instead.
constexpr size_t kMaxSentence = 4096;

class Sentences final : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(const std::vector<std::string>& list) : list_(list) {}
  bool done() const override { return at_ == list_.size(); }
  void Next() override { ++at_; }
  const std::string& value() const override { return list_[at_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>& list_;
  size_t at_ = 0;
};

// Where to split a sentence that begins at `begin`: after a blank if there is one.
size_t end_of_part(std::string_view line, size_t begin) {
  if (line.size() - begin <= kMaxSentence) return line.size();
  const size_t blank = line.rfind(' ', begin + kMaxSentence);
  if (blank != std::string_view::npos && blank > begin) return blank;
  size_t end = begin + kMaxSentence;
  while ((static_cast<uint8_t>(line[end]) & 0xC0u) == 0x80u) --end;
  return end;
}

}  // namespace

void SentencePieceModelTrainer::add_text(std::string_view text) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = with_valid_utf8(text.substr(begin, end - begin));
    for (size_t at = 0; at < line.size();) {
      const size_t stop = end_of_part(line, at);
      sentences_.push_back(line.substr(at, stop - at));
      at = stop;
    }
    begin = end + 1;
  }
}

std::string SentencePieceModelTrainer::train(const Options& options) const {
  if (sentences_.empty()) {
    throw ConfigError("the input holds no text to learn from; give files that hold some");
  }
  // One thread, for reproducible results.
  const std::unordered_map<std::string, std::string> settings = {
      {"model_type", options.unigram ? "unigram" : "bpe"},
      {"vocab_size", std::to_string(options.vocab_size)},
      {"character_coverage", fmt::format("{}", options.character_coverage)},
      {"byte_fallback", options.byte_fallback ? "true" : "false"},
      {"num_threads", "1"},
      {"minloglevel", "2"},
  };
  Sentences sentences(sentences_);
  std::string model;
  const sentencepiece::util::Status status =
      sentencepiece::SentencePieceTrainer::Train(settings, &sentences, &model);
  if (!status.ok()) {
    throw ConfigError(
        fmt::format("SentencePiece cannot learn --vocab-size {} pieces from {} lines: {}",
                    options.vocab_size, sentences_.size(), status.ToString()));
  }
  return model;
}

}  // namespace megatron
