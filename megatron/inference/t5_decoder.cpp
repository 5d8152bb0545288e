#include "megatron/inference/t5_decoder.h"

#include "megatron/core/error.h"
#include "megatron/inference/stages.h"
#include "megatron/parallel/pipeline/model_chunk.h"
#include "megatron/parallel/tensor/mappings.h"

namespace megatron {
namespace {

constexpr int64_t kPageTokens = 16;

}  // namespace

T5Input encoder_input(const T5Model& model, const T5Texts& texts) {
  const TransformerConfig& config = model.config();
  expect_texts(texts.ids);
  check_length(static_cast<int64_t>(texts.ids[0].size()), 0, config);
  for (const std::vector<int32_t>& row : texts.ids) check_ids(row, config.counted_vocab_size());
  return {.encoder_tokens = tensor_of_rows(texts.ids),
          .encoder_padding_mask = padding_mask_of(texts.attention_mask, texts.ids)};
}

int64_t longest_of(const Request& request) {
  return static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens;
}

void check_request(const T5Model& model, const T5Request& request) {
  encoder_input(model, {.ids = {request.text}});
  const Request& decoding = request.decoding;
  invariant(!decoding.prompt.empty(), "a decoder begins with a token");
  check_ids(decoding.prompt, model.config().counted_vocab_size());
  check_length(longest_of(decoding), decoding.max_new_tokens, model.config());
}

T5Decoder::T5Decoder(const T5Inference& inference, int64_t num_rows, int64_t longest)
    : model_(inference.model),
      parallel_(inference.parallel),
      pool_(num_rows * ((longest + kPageTokens - 1) / kPageTokens), kPageTokens),
      cache_(model_.config(), whole_model(model_.config().decoder_num_layers),
             parallel_.tensor.size(), pool_.num_pages(), kPageTokens, model_.stream()),
      distance_bias_(model_.distance_bias(longest)) {}

T5Row T5Decoder::begin(const T5Request& request) {
  T5Row row;
  row.tokens = request.decoding.prompt;
  for (int64_t i = pool_.pages_for(longest_of(request.decoding)); i > 0; --i) {
    row.pages.push_back(pool_.allocate());
  }
  RandomState random(0);
  random.set_training(false);
  row.memory = std::make_shared<EncoderMemory>();
  row.memory->output = model_.encode(encoder_input(model_, {.ids = {request.text}}), {}, random);
  return row;
}

T5Row T5Decoder::copy_of(const T5Row& row) {
  T5Row copy = row;
  const int64_t used = pool_.pages_for(row.cached);
  for (size_t i = 0; i < copy.pages.size(); ++i) {
    copy.pages[i] = pool_.allocate();
    if (static_cast<int64_t>(i) < used) cache_.copy_page(copy.pages[i], row.pages[i]);
  }
  return copy;
}

void T5Decoder::release(const T5Row& row) {
  for (const int32_t page : row.pages) pool_.release(page);
}

Tensor T5Decoder::next_logits(std::span<T5Row* const> rows) {
  std::vector<int64_t> tokens;
  std::vector<int64_t> positions;
  std::vector<PagedRow> paged;
  CachedBatch cached{cache_};
  for (T5Row* const row : rows) {
    paged.push_back({static_cast<int64_t>(tokens.size()), 1, row->cached, row->pages});
    tokens.push_back(row->tokens[static_cast<size_t>(row->cached)]);
    positions.push_back(row->cached);
    cached.memories.push_back(row->memory.get());
    ++row->cached;
  }
  const TransformerConfig& c = model_.config();
  cached.rows = paged_batch(paged, kPageTokens, c.num_attention_heads / parallel_.tensor.size(),
                            c.kv_channels, model_.stream());
  const Shape shape = {1, static_cast<int64_t>(tokens.size())};
  const Variable hidden = model_.decode_cached(tensor_of(tokens, shape),
                                               tensor_of(positions, shape), distance_bias_, cached);
  const Tensor all = gathered_last_axis(model_.logits(hidden).data(), parallel_.tensor.group);
  const Tensor host = cast(all, DType::kFloat32).to(Stream{});
  return host.reshape({host.size(0), host.size(2)});
}

}  // namespace megatron
