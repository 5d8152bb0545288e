// Speed of a tokenizer on one thread: the best of several passes over the texts of a file of JSON
// lines, in MB of text per second of CPU time, which a busy machine distorts less than the clock.
// Also prints a checksum of the ids.
// Usage: tokenizers_bench TYPE FILE[,MERGES] corpus.jsonl [passes]
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <limits>

#include "megatron/data/json_line.h"
#include "megatron/data/line_reader.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron {
namespace {

double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::vector<std::string> texts_of(const std::string& path) {
  std::vector<std::string> texts;
  LineReader reader(path);
  JsonLineParser parser({"text"});
  for (LineChunk chunk; reader.next(chunk);) {
    for (const std::string_view line : chunk.lines) {
      if (parser.parse(line)) continue;
      for (const std::string_view text : parser.texts(0)) texts.emplace_back(text);
    }
  }
  return texts;
}

TokenizerConfig config_of(const std::string& type, const std::string& files) {
  const size_t comma = files.find(',');
  TokenizerConfig config;
  config.tokenizer_type = type;
  const bool is_vocabulary = type.starts_with("BertWordPiece") || type == "GPT2BPETokenizer";
  (is_vocabulary ? config.vocab_file : config.tokenizer_model) = files.substr(0, comma);
  if (comma != std::string::npos) config.merge_file = files.substr(comma + 1);
  return config;
}

void measure(const Tokenizer& tokenizer, const std::vector<std::string>& texts, int passes) {
  const std::unique_ptr<Encoder> encoder = tokenizer.make_encoder();
  double best = std::numeric_limits<double>::max();
  double bytes = 0;
  for (const std::string& text : texts) bytes += static_cast<double>(text.size());
  uint64_t checksum = 0;
  size_t count = 0;
  std::vector<int32_t> ids;
  for (int pass = 0; pass < passes; ++pass) {
    checksum = 0;
    count = 0;
    double seconds = 0;
    for (const std::string& text : texts) {
      ids.clear();
      const double start = cpu_seconds();
      encoder->append(text, ids);
      seconds += cpu_seconds() - start;
      count += ids.size();
      for (const int32_t id : ids) {
        checksum = checksum * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(id) + 1;
      }
    }
    best = std::min(best, seconds);
  }
  fmt::print("{}: {:.1f} MB/s, {} tokens, checksum {:016x}\n", tokenizer.type(), bytes / best / 1e6,
             count, checksum);
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  if (argc < 4) {
    fmt::print(stderr, "usage: tokenizers_bench TYPE FILE[,MERGES] corpus.jsonl [passes]\n");
    return 2;
  }
  const auto tokenizer = megatron::make_tokenizer(megatron::config_of(argv[1], argv[2]));
  megatron::measure(*tokenizer, megatron::texts_of(argv[3]), argc > 4 ? std::atoi(argv[4]) : 5);
}
