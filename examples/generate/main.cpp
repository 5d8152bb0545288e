// Continues a list of token ids with the model of a checkpoint or of a Hugging Face directory.
//
//   generate DIRECTORY ID ...
#include <megatron/megatron.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: generate DIRECTORY ID ...\n");
    return 2;
  }
  std::vector<int32_t> prompt;
  for (int i = 2; i < argc; ++i) prompt.push_back(std::atoi(argv[i]));
  try {
    megatron::ModelChoice choice;
    choice.load = argv[1];
    const megatron::LoadedModel loaded = megatron::load_model(choice);

    megatron::GenerateOptions options;
    options.max_new_tokens = 8;
    options.sampling.top_k = 1;  // the most probable token
    options.vocab_size = loaded.vocab_size;
    const std::vector<std::vector<int32_t>> prompts = {prompt};
    const std::vector<megatron::Generation> rows =
        megatron::generate(loaded.inference(), prompts, options);
    for (const int32_t token : rows.front().tokens) std::printf("%d ", token);
    std::printf("\n");
  } catch (const megatron::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
