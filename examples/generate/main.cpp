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
    const megatron::api::Model model(argv[1]);
    const std::vector<std::vector<int32_t>> texts =
        model.generate({{prompt}}, {.max_new_tokens = 8, .top_k = 1});  // the most probable tokens
    for (const int32_t token : texts.front()) std::printf("%d ", token);
    std::printf("\n");
  } catch (const megatron::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
