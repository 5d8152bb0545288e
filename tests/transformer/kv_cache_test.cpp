#include "megatron/transformer/kv_cache.h"

#include <gtest/gtest.h>

#include "megatron/device/allocator.h"

namespace megatron {
namespace {

TEST(KvCacheTest, TakesThePlannedBytes) {
  constexpr int64_t kPages = 64;
  constexpr int64_t kPageTokens = 16;
  TransformerConfig config;
  config.num_layers = 3;
  config.hidden_size = 128;
  config.num_attention_heads = 8;
  config.num_query_groups = 4;
  config.kv_channels = 16;
  config.kv_lora_rank = 48;
  config.qk_pos_emb_head_dim = 8;
  for (const bool is_latent : {false, true}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const KvCacheType type : {KvCacheType::kModel, KvCacheType::kFp8}) {
        for (const int64_t ranks : {1, 2, 8}) {
          config.params_dtype = dtype;
          config.multi_latent_attention = is_latent;
          const int64_t before = allocator_of(Device{}).stats().allocated_bytes;
          const KvCache cache(config, whole_model(config.num_layers), ranks, kPages, kPageTokens,
                              Stream{}, type);
          EXPECT_EQ(allocator_of(Device{}).stats().allocated_bytes - before,
                    kPages * kPageTokens *
                        kv_cache_bytes_per_token(config, config.num_layers, ranks, type))
              << name_of(dtype) << " " << name_of(type) << " " << ranks;
        }
      }
    }
  }
  // Each rank has all latents.
  EXPECT_EQ(kv_cache_bytes_per_token(config, 3, 8, KvCacheType::kFp8), 3 * (48 + 8 + 2 * 4) + 4);
}

}  // namespace
}  // namespace megatron
