#include "megatron/serve/service.h"

#include <nlohmann/json.hpp>

#include <gmock/gmock.h>

#include "megatron/comm/threads.h"
#include "megatron/serve/request_codec.h"
#include "tests/serve/running_server.h"

namespace megatron::serve {
namespace {

using namespace std::chrono_literals;

TEST(RequestCodecTest, KeepsEveryField) {
  Request request;
  request.text = {4, 4, 7};
  request.prompt = {1, 2, 3};
  request.max_new_tokens = 9;
  request.sampling = {.temperature = 0.1,
                      .top_k = 3,
                      .top_p = 1.0 / 3,
                      .top_p_decay = 0.7,
                      .top_p_bound = 0.2,
                      .min_p = 0.01,
                      .repetition_penalty = 1.3,
                      .presence_penalty = -0.5,
                      .frequency_penalty = 0.25,
                      .logit_bias = {{4, 1.5}}};
  request.seed = 0xFFFFFFFFFFFFFFFFu;
  request.row = 7;
  request.vocab_size = 30;
  request.stop_tokens = {5};
  request.stop_sequences = {{6, 7}};
  request.min_new_tokens = 2;
  request.never_after = {8, 9};
  request.return_log_probabilities = true;
  request.num_top = 4;
  request.beams = BeamOptions{3, 0.5};
  const auto value = encoded(request);
  EXPECT_EQ(encoded(decoded(nlohmann::json::parse(value.dump()))), value);
  EXPECT_EQ(decoded(value).seed, request.seed);
  EXPECT_EQ(decoded(value).text, request.text);
  EXPECT_EQ(decoded(value).beams->width, 3);
  const auto plain = encoded(Request());
  EXPECT_EQ(encoded(decoded(plain)), plain);
}

// Two ranks serve what one does, and end together.
TEST(ServiceTest, RanksFollowTheFirst) {
  const RunningServer alone;
  Request request;
  request.prompt = {5, 6, 7};
  request.max_new_tokens = 10;
  const std::vector<int32_t> want = alone.generated(request).tokens;
  request.vocab_size = alone.tokenizer->vocab_size();
  comm::run_ranks(2, [&](const comm::Group& world) {
    ParallelConfig config;
    config.world_size = 2;
    config.pipeline_model_parallel_size = 2;
    const ParallelContext parallel = make_parallel_context(world, config);
    const auto chunk = model_chunks(config, 2, parallel.pipeline.rank()).front();
    GptModel part(alone.model->config(), chunk, parallel.tensor, Stream{});
    initialize(part, 5);
    Service service({part, parallel}, world, {});
    if (world.rank() != 0) return service.run();
    std::thread client([&] {
      std::vector<int32_t> tokens = request.prompt;
      const auto ticket = service.submit({request, request});
      for (size_t finished = 0; finished < 2;) {
        const auto event = ticket->wait(1000ms);
        if (!event) continue;
        if (event->index == 0 && event->progress.token) tokens.push_back(*event->progress.token);
        if (event->progress.finish != Finish::kNone) ++finished;
      }
      EXPECT_EQ(tokens, want);
      service.stop(10s);
    });
    service.run();
    client.join();
    EXPECT_THROW(service.submit({request}), Unavailable);
  });
}

}  // namespace
}  // namespace megatron::serve
