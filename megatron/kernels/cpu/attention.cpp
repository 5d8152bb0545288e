#include "megatron/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "megatron/core/parallel_for.h"
#include "megatron/kernels/cpu/random_row.h"
#include "megatron/kernels/cpu/tile_product.h"
#include "megatron/kernels/cpu/vector_math.h"
#include "megatron/kernels/cpu/workspace.h"

// Scores are computed in tiles of kQueries x kKeys. Keys and values of a head are packed once, in
// the layouts that tile_product reads, and every query tile of the head passes over them.
namespace megatron::kernels::cpu {
namespace {

constexpr int64_t kQueries = 4 * kTileRows;
constexpr int64_t kKeys = 64;
static_assert(kKeys % kTileCols == 0);
constexpr int64_t kScoreStride = kKeys + 16;  // the padding spreads rows over cache sets
constexpr int64_t kHeadStride = 256 + 16;     // stride of packed queries, d <= 256
constexpr float kInfinity = std::numeric_limits<float>::infinity();

int64_t padded_keys(int64_t keys) { return (keys + kKeys - 1) / kKeys * kKeys; }
int64_t padded_channels(int64_t d) { return num_panels(d) * kTileCols; }

template <class T, class Pointer>
auto* head_data(const BasicHeadsView<Pointer>& x, int64_t batch, int64_t head) {
  using Element = std::conditional_t<std::is_same_v<Pointer, void*>, T, const T>;
  return static_cast<Element*>(x.data) + x.offset(batch, head);
}

// The keys that each query of a tile sees, [first, last) without the hidden ones, and their union.
struct Visibility {
  int64_t first[kQueries];
  int64_t last[kQueries];
  int64_t tile_first = 0;  // a multiple of kKeys
  int64_t tile_last = 0;
  int64_t key_offset = 0;
  const bool* hidden = nullptr;  // by key, or null
};

Visibility visibility_of(const AttentionSettings& settings, int64_t batch, int64_t sq, int64_t sk,
                         int64_t query, int64_t queries) {
  Visibility seen;
  seen.key_offset = settings.key_offset;
  const int32_t* starts = settings.document_starts.data == nullptr
                              ? nullptr
                              : settings.document_starts.as<int32_t>() + batch * sq + query;
  const int32_t* ends = settings.prefix_ends.data == nullptr
                            ? nullptr
                            : settings.prefix_ends.as<int32_t>() + batch * sq + query;
  int64_t first = sk;
  int64_t last = 0;
  for (int64_t i = 0; i < queries; ++i) {
    const int64_t position = settings.query_offset - settings.key_offset + query + i;
    const int64_t start = starts == nullptr ? 0 : starts[i] - settings.key_offset;
    const int64_t in_window = settings.window == 0 ? 0 : position - settings.window + 1;
    seen.first[i] = std::max({int64_t{0}, start, in_window});
    const int64_t end = std::max<int64_t>(position + 1, ends == nullptr ? 0 : ends[i]);
    seen.last[i] = settings.is_causal ? std::min(sk, end) : sk;
    if (seen.first[i] >= seen.last[i]) continue;
    first = std::min(first, seen.first[i]);
    last = std::max(last, seen.last[i]);
  }
  seen.tile_first = first / kKeys * kKeys;
  seen.tile_last = last;
  if (settings.key_padding_mask.data != nullptr) {
    seen.hidden = settings.key_padding_mask.as<bool>() + batch * sk;
  }
  return seen;
}

// Rows of a tile of n keys are processed in whole vectors: hidden scores fill the last one.
int64_t whole_vectors(int64_t n) { return (n + simd::kLanes - 1) / simd::kLanes * simd::kLanes; }

// The relative bias of one of sq queries, or its gradient, by key; null without a bias.
template <class View>
auto* bias_row(const View& bias, int64_t head, int64_t query, int64_t sq) {
  using Element = std::conditional_t<std::is_same_v<View, TensorView>, float, const float>;
  if (bias.data == nullptr) return static_cast<Element*>(nullptr);
  return static_cast<Element*>(bias.data) + head * bias.size(1) + sq - 1 - query;
}

// Caps a row of scores; `slopes`, if not null, gets the derivative of each.
void cap_scores(float* scores, float* slopes, float cap, int64_t n) {
  if (cap == 0) return;
  const float inverse = 1 / cap;
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) {
    const float share = fast_tanh(scores[j] * inverse);
    scores[j] = cap * share;
    if (slopes != nullptr) slopes[j] = 1 - share * share;
  }
}

// Adds the position biases to one row of scores for keys [key, key + n). Hides the keys that query
// i may not see and the padding of the last vector. `relative`: the query's row of the relative
// bias, or null.
void finish_scores(float* scores, const Visibility& seen, int64_t i, int64_t key, int64_t n,
                   float slope, const float* relative) {
  if (slope != 0) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      scores[j] += slope * static_cast<float>(seen.key_offset + key + j);
    }
  }
  if (relative != nullptr) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) scores[j] += relative[key + j];
  }
  const int64_t first = std::clamp<int64_t>(seen.first[i] - key, 0, n);
  const int64_t last = std::clamp<int64_t>(seen.last[i] - key, first, n);
  std::fill(scores, scores + first, -kInfinity);
  std::fill(scores + last, scores + whole_vectors(n), -kInfinity);
  if (seen.hidden == nullptr) return;
  for (int64_t j = first; j < last; ++j) {
    if (seen.hidden[key + j]) scores[j] = -kInfinity;
  }
}

// Factors of probabilities: 0 for a dropped one, 1 / (1 - p) for a kept one.
using DropoutFactors = float[2 * kKeys];

// The factors of the keys at positions [key, key + kKeys), in the memory of `factors`. The query is
// at `position`; its head begins at row head_row.
const float* dropout_factors(DropoutFactors& factors, const DropoutKey& dropout, int64_t head_row,
                             int64_t position, int64_t batch, int64_t key) {
  static_assert(kKeys % kDropoutKeys == 0);
  const int64_t before = key % kDropoutKeys;              // keys of the first group of columns
  const int64_t count = before == 0 ? kKeys : 2 * kKeys;  // as random_row() wants them
  uint32_t words[2 * kKeys];                              // for a quarter as many columns
  random_row(words, dropout.key, head_row + dropout_row(position), dropout.sample(batch),
             4 * dropout_column(key - before), count, kDropoutRounds);
  const uint32_t threshold = dropout.keep_threshold();
  const float kept = dropout.scale();
  for (int64_t j = 0; j < count; j += 8) {
    const uint32_t* const columns = words + j / kDropoutKeys * kDropoutKeys;
    const int64_t half = position / 8 % 2 * 4 + j / 8 % 4;
    const int64_t shift = 16 * (half % 2);
#pragma omp simd
    for (int64_t i = 0; i < 8; ++i) {
      const uint32_t bits = columns[4 * i + half / 2] >> shift & 0xFFFFu;
      factors[j + i] = bits < threshold ? kept : 0.0f;
    }
  }
  return factors + before;
}

// c[rows, cols] (+)= a b over tiles; c and b have whole panels, those of b panel_size apart.
template <int64_t kRowStride, int64_t kColStride>
void product(float* c, int64_t ldc, const float* a, const float* b, int64_t panel_size,
             int64_t rows, int64_t cols, int64_t depth, bool accumulate) {
  for (int64_t row = 0; row < rows; row += kTileRows) {
    const TileProduct tile =
        tile_product_of<kRowStride, kColStride>(std::min(kTileRows, rows - row));
    for (int64_t panel = 0; panel < num_panels(cols); ++panel) {
      tile(c + row * ldc + panel * kTileCols, ldc, a + row * kRowStride, b + panel * panel_size,
           depth, nullptr, accumulate);
    }
  }
}

// Rows [0, rows) of one head as fp32, times alpha, kHeadStride apart.
template <class T>
void pack_queries(float* packed, const T* x, int64_t stride, int64_t rows, int64_t d, float alpha) {
  pack_rows(packed, kHeadStride, x, stride, rows, d);
  if (alpha == 1) return;
  for (int64_t i = 0; i < rows; ++i) {
#pragma omp simd
    for (int64_t c = 0; c < d; ++c) packed[i * kHeadStride + c] *= alpha;
  }
}

// [keys, d] as panels over d, one set of panels for each tile of kKeys keys; tile t begins at
// t * kKeys * padded_channels(d).
template <class T>
void pack_tiles(float* packed, const T* x, int64_t stride, int64_t keys, int64_t d) {
  for (int64_t key = 0; key < keys; key += kKeys) {
    pack_panels(packed + key * padded_channels(d), x + key * stride, stride,
                std::min(kKeys, keys - key), d);
  }
}

template <class T>
void store_row(T* to, const float* from, int64_t d) {
  for (int64_t c = 0; c < d; c += simd::kLanes) {
    simd::store_first(to + c, std::min(simd::kLanes, d - c), simd::load(from + c));
  }
}

// The fewest multiply-adds that pay for another thread.
constexpr int64_t kMinWorkPerThread = 500'000;

// Calls work(task, scratch) for every task of about `task_work` multiply-adds, with worker_floats
// of scratch for each worker. Workers take tasks in turn, which spreads the longer ones at the end
// of a causal sequence.
template <class F>
void for_each_task(int64_t tasks, int64_t task_work, int64_t worker_floats, Stream stream,
                   const F& work) {
  if (tasks == 0) return;
  const int64_t useful = 1 + tasks * task_work / kMinWorkPerThread;
  const int64_t workers = std::min({tasks, useful, static_cast<int64_t>(num_threads())});
  const Scratch scratch(workers * worker_floats * 4, stream);
  parallel_for(workers, 1, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      for (int64_t task = worker; task < tasks; task += workers) {
        work(task, scratch.as<float>() + worker * worker_floats);
      }
    }
  });
}

// --- Forward ---

// A tile of queries during its pass over the keys. Pointers into scratch.
struct ForwardTile {
  float* q;       // [kQueries, kHeadStride], scaled
  float* scores;  // [kQueries, kScoreStride]: scores, then probabilities
  float* out;     // [kQueries, padded_channels(d)]
  float largest[kQueries];
  float sum[kQueries];
};

// Turns one row of scores into exp(score - running maximum), and updates sum and output.
void accumulate_row(ForwardTile& tile, int64_t i, int64_t n, int64_t channels) {
  const int64_t width = whole_vectors(n);
  float* row = tile.scores + i * kScoreStride;
  float largest = tile.largest[i];
#pragma omp simd reduction(max : largest)
  for (int64_t j = 0; j < width; ++j) largest = row[j] > largest ? row[j] : largest;
  if (largest == -kInfinity) {  // no key seen so far, or only NaN
    const bool has_nan = std::any_of(row, row + width, [](float x) { return std::isnan(x); });
    if (has_nan) tile.sum[i] = std::numeric_limits<float>::quiet_NaN();
    std::fill(row, row + width, 0.0f);
    return;
  }
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < width; ++j) {
    row[j] = fast_exp(row[j] - largest);
    sum += row[j];
  }
  if (largest > tile.largest[i]) {
    const float shrink = fast_exp(tile.largest[i] - largest);
    tile.sum[i] *= shrink;
    float* out = tile.out + i * channels;
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) out[c] *= shrink;
    tile.largest[i] = largest;
  }
  tile.sum[i] += sum;
}

// One batch and group of the forward pass, with its packed keys and values.
struct ForwardTask {
  const AttentionSettings& settings;
  const ConstHeadsView& q;
  int64_t batch, sk;
  const float* k_panels;
  const float* v_tiles;
};

void forward_tile(ForwardTile& tile, const ForwardTask& task, int64_t head, int64_t query,
                  int64_t queries) {
  const AttentionSettings& settings = task.settings;
  const int64_t d = task.q.d;
  const int64_t channels = padded_channels(d);
  const Visibility seen = visibility_of(settings, task.batch, task.q.s, task.sk, query, queries);
  const float slope =
      settings.alibi_slopes.data == nullptr ? 0 : settings.alibi_slopes.as<float>()[head];
  std::fill_n(tile.largest, queries, -kInfinity);
  std::fill_n(tile.sum, queries, 0.0f);
  std::fill_n(tile.out, queries * channels, 0.0f);
  for (int64_t key = seen.tile_first; key < seen.tile_last; key += kKeys) {
    const int64_t n = std::min(kKeys, seen.tile_last - key);
    product<kHeadStride, 1>(tile.scores, kScoreStride, tile.q, task.k_panels + key * d,
                            d * kTileCols, queries, n, d, false);
    for (int64_t i = 0; i < queries; ++i) {
      float* row = tile.scores + i * kScoreStride;
      cap_scores(row, nullptr, settings.logit_cap, n);
      finish_scores(row, seen, i, key, n, slope,
                    bias_row(settings.relative_bias, head, query + i, task.q.s));
      accumulate_row(tile, i, n, channels);
      if (!settings.dropout.is_active()) continue;
      DropoutFactors memory;
      const float* const factors =
          dropout_factors(memory, settings.dropout, first_dropout_row(settings, head, task.q.s),
                          settings.query_offset + query + i, task.batch, settings.key_offset + key);
#pragma omp simd
      for (int64_t j = 0; j < whole_vectors(n); ++j) row[j] *= factors[j];
    }
    const int64_t packed_keys = std::min(kKeys, task.sk - key);
    product<kScoreStride, 1>(tile.out, channels, tile.scores, task.v_tiles + key * channels,
                             packed_keys * kTileCols, queries, d, n, true);
  }
}

// --- Backward ---

// Scratch of a tile of queries in the backward pass, and its head's packed keys and values.
struct BackwardTile {
  float* q;            // [kQueries, kHeadStride], scaled
  float* dout;         // [kQueries, kHeadStride]
  float* q_panels;     // panels of q over d
  float* dout_panels;  // panels of dout over d
  float* p;            // [kQueries, kScoreStride]: scores, probabilities, dropped probabilities
  float* ds;           // [kQueries, kScoreStride]: gradient of probabilities, then of scores
  float* dq;           // [kQueries, padded_channels(d)]
  float* k_panels;     // transposed
  float* v_panels;     // transposed
  float* k_tiles;
  float delta[kQueries];  // sum over channels of dout * out

  static int64_t floats(int64_t sk, int64_t d) {
    const int64_t channels = padded_channels(d);
    return kQueries * (2 * kHeadStride + 2 * kScoreStride + 3 * channels) +
           padded_keys(sk) * (2 * d + channels);
  }

  BackwardTile(float* scratch, int64_t sk, int64_t d) {
    const auto take = [&scratch](int64_t count) {
      float* const taken = scratch;
      scratch += count;
      return taken;
    };
    const int64_t channels = padded_channels(d);
    q = take(kQueries * kHeadStride);
    dout = take(kQueries * kHeadStride);
    q_panels = take(kQueries * channels);
    dout_panels = take(kQueries * channels);
    p = take(kQueries * kScoreStride);
    ds = take(kQueries * kScoreStride);
    dq = take(kQueries * channels);
    k_panels = take(padded_keys(sk) * d);
    v_panels = take(padded_keys(sk) * d);
    k_tiles = take(padded_keys(sk) * channels);
  }
};

// Common values of the rows of a backward tile.
struct BackwardRows {
  const AttentionSettings& settings;
  const Visibility& seen;
  const float* lse;  // of the tile's first query
  int64_t head_row;  // first dropout row of the head
  int64_t position;  // of the tile's first query
  int64_t batch;
  float slope;
  int64_t head;
  int64_t query;  // the tile's first one
  int64_t sq;
  TensorView drelative_bias;  // may be null
};

// For one row: turns scores and gradients of dropped probabilities into dropped probabilities and
// gradients of scores.
void backward_row(BackwardTile& tile, const BackwardRows& rows, int64_t i, int64_t key, int64_t n) {
  const int64_t width = whole_vectors(n);
  float* p = tile.p + i * kScoreStride;
  float* ds = tile.ds + i * kScoreStride;
  const float cap = rows.settings.logit_cap;
  float slopes[kKeys];
  cap_scores(p, slopes, cap, n);
  finish_scores(p, rows.seen, i, key, n, rows.slope,
                bias_row(rows.settings.relative_bias, rows.head, rows.query + i, rows.sq));
  const float lse = rows.lse[i];
  const float delta = tile.delta[i];
#pragma omp simd
  for (int64_t j = 0; j < width; ++j) p[j] = fast_exp(p[j] - lse);
  if (!rows.settings.dropout.is_active()) {
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) ds[j] = p[j] * (ds[j] - delta);
  } else {
    DropoutFactors memory;
    const float* const factors =
        dropout_factors(memory, rows.settings.dropout, rows.head_row, rows.position + i, rows.batch,
                        rows.settings.key_offset + key);
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) {
      ds[j] = p[j] * (factors[j] * ds[j] - delta);
      p[j] *= factors[j];
    }
  }
  if (cap == 0) return;
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) ds[j] *= slopes[j];
}

// Adds the gradients of a row's scores for keys [key, key + n) to the gradient of the relative
// bias.
void add_bias_gradient(const BackwardTile& tile, const BackwardRows& rows, int64_t i, int64_t key,
                       int64_t n) {
  float* const sum = bias_row(rows.drelative_bias, rows.head, rows.query + i, rows.sq);
  if (sum == nullptr) return;
  const float* const ds = tile.ds + i * kScoreStride;
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) sum[key + j] += ds[j];
}

// Everything for one query head: adds to drelative_bias, and writes dq and this head's dk and dv
// [padded keys, channels].
template <class T>
void backward_head(float* dk, float* dv, float* scratch, const HeadsView& dq,
                   TensorView drelative_bias, const ConstHeadsView& dout, const ConstHeadsView& out,
                   ConstView lse, const ConstHeadsView& q, const ConstHeadsView& k,
                   const ConstHeadsView& v, const AttentionSettings& settings, int64_t batch,
                   int64_t head) {
  const int64_t d = q.d;
  const int64_t sk = k.s;
  const int64_t channels = padded_channels(d);
  const int64_t group = head / (q.heads / k.heads);
  const T* const k_data = head_data<T>(k, batch, group);
  const T* const v_data = head_data<T>(v, batch, group);
  BackwardTile tile(scratch, sk, d);
  pack_panels_transposed(tile.k_panels, k_data, k.stride_s, d, sk);
  pack_panels_transposed(tile.v_panels, v_data, v.stride_s, d, sk);
  pack_tiles(tile.k_tiles, k_data, k.stride_s, sk, d);
  std::fill_n(dk, padded_keys(sk) * channels, 0.0f);
  std::fill_n(dv, padded_keys(sk) * channels, 0.0f);

  for (int64_t query = 0; query < q.s; query += kQueries) {
    const int64_t queries = std::min(kQueries, q.s - query);
    const Visibility seen = visibility_of(settings, batch, q.s, sk, query, queries);
    const BackwardRows rows{.settings = settings,
                            .seen = seen,
                            .lse = lse.as<float>() + (batch * q.heads + head) * q.s + query,
                            .head_row = first_dropout_row(settings, head, q.s),
                            .position = settings.query_offset + query,
                            .batch = batch,
                            .slope = settings.alibi_slopes.data == nullptr
                                         ? 0
                                         : settings.alibi_slopes.as<float>()[head],
                            .head = head,
                            .query = query,
                            .sq = q.s,
                            .drelative_bias = drelative_bias};
    pack_queries(tile.q, head_data<T>(q, batch, head) + query * q.stride_s, q.stride_s, queries, d,
                 settings.scale);
    pack_queries(tile.dout, head_data<T>(dout, batch, head) + query * dout.stride_s, dout.stride_s,
                 queries, d, 1);
    pack_panels(tile.q_panels, tile.q, kHeadStride, queries, d);
    pack_panels(tile.dout_panels, tile.dout, kHeadStride, queries, d);
    for (int64_t i = 0; i < queries; ++i) {
      const T* row = head_data<T>(out, batch, head) + (query + i) * out.stride_s;
      const float* drow = tile.dout + i * kHeadStride;
      float delta = 0;
#pragma omp simd reduction(+ : delta)
      for (int64_t c = 0; c < d; ++c) delta += drow[c] * static_cast<float>(row[c]);
      tile.delta[i] = delta;
    }
    std::fill_n(tile.dq, queries * channels, 0.0f);

    for (int64_t key = seen.tile_first; key < seen.tile_last; key += kKeys) {
      const int64_t n = std::min(kKeys, seen.tile_last - key);
      const int64_t packed_keys = std::min(kKeys, sk - key);
      product<kHeadStride, 1>(tile.p, kScoreStride, tile.q, tile.k_panels + key * d, d * kTileCols,
                              queries, n, d, false);
      product<kHeadStride, 1>(tile.ds, kScoreStride, tile.dout, tile.v_panels + key * d,
                              d * kTileCols, queries, n, d, false);
      for (int64_t i = 0; i < queries; ++i) {
        backward_row(tile, rows, i, key, n);
        add_bias_gradient(tile, rows, i, key, n);
      }
      product<1, kScoreStride>(dv + key * channels, channels, tile.p, tile.dout_panels,
                               queries * kTileCols, n, d, queries, true);
      product<1, kScoreStride>(dk + key * channels, channels, tile.ds, tile.q_panels,
                               queries * kTileCols, n, d, queries, true);
      product<kScoreStride, 1>(tile.dq, channels, tile.ds, tile.k_tiles + key * channels,
                               packed_keys * kTileCols, queries, d, n, true);
    }
    for (int64_t i = 0; i < queries; ++i) {
      float* row = tile.dq + i * channels;
      for (int64_t c = 0; c < d; ++c) row[c] *= settings.scale;
      store_row(head_data<T>(dq, batch, head) + (query + i) * dq.stride_s, row, d);
    }
  }
}

// Keys that a query sees at most, and those that the tiles of queries add.
int64_t num_keys_of_work(const AttentionSettings& settings, int64_t sk) {
  return settings.window == 0 ? sk : std::min(sk, settings.window + kQueries);
}

// The gradients for one key, summed over a group's heads in order.
template <class T>
void store_head_sum(T* to, float* first, int64_t between_heads, int64_t heads, int64_t d) {
  for (int64_t head = 1; head < heads; ++head) {
#pragma omp simd
    for (int64_t c = 0; c < d; ++c) first[c] += first[head * between_heads + c];
  }
  store_row(to, first, d);
}

// The number of heads, in whole groups, whose gradients of keys and values are summed together.
int64_t num_heads_at_once(int64_t pairs, int64_t heads_per_group) {
  const int64_t wanted = (int64_t{4} * num_threads() + heads_per_group - 1) / heads_per_group;
  return std::min(pairs, wanted) * heads_per_group;
}

}  // namespace

void attention_forward(HeadsView out, TensorView lse, ConstHeadsView q, ConstHeadsView k,
                       ConstHeadsView v, const AttentionSettings& settings, Stream stream) {
  const int64_t d = q.d;
  const int64_t sk = k.s;
  const int64_t channels = padded_channels(d);
  const int64_t heads_per_group = q.heads / k.heads;
  const int64_t pairs = q.b * k.heads;
  const int64_t tiles = (q.s + kQueries - 1) / kQueries;
  if (pairs == 0 || tiles == 0) return;
  // A task is a batch, a group and a part of the query tiles. There are several parts only if there
  // are too few tasks otherwise, because each part packs the keys and values again.
  const int64_t parts =
      std::clamp<int64_t>((int64_t{4} * num_threads() + pairs - 1) / pairs, 1, tiles);
  const int64_t tile_floats = kQueries * (kHeadStride + kScoreStride + channels);
  const int64_t packed_floats = padded_keys(sk) * (d + channels);

  dispatch_floating(q.dtype, "attention", [&]<class T>() {
    for_each_task(
        pairs * parts, heads_per_group * q.s * num_keys_of_work(settings, sk) * d * 2 / parts,
        tile_floats + packed_floats, stream, [&](int64_t index, float* scratch) {
          const int64_t part = index % parts;
          const int64_t batch = index / parts / k.heads;
          const int64_t group = index / parts % k.heads;
          float* const k_panels = scratch + tile_floats;
          float* const v_tiles = k_panels + padded_keys(sk) * d;
          pack_panels_transposed(k_panels, head_data<T>(k, batch, group), k.stride_s, d, sk);
          pack_tiles(v_tiles, head_data<T>(v, batch, group), v.stride_s, sk, d);
          const ForwardTask task{settings, q, batch, sk, k_panels, v_tiles};
          ForwardTile tile{.q = scratch,
                           .scores = scratch + kQueries * kHeadStride,
                           .out = scratch + kQueries * (kHeadStride + kScoreStride),
                           .largest = {},
                           .sum = {}};
          for (int64_t head = group * heads_per_group; head < (group + 1) * heads_per_group;
               ++head) {
            for (int64_t t = part; t < tiles; t += parts) {
              const int64_t query = t * kQueries;
              const int64_t queries = std::min(kQueries, q.s - query);
              pack_queries(tile.q, head_data<T>(q, batch, head) + query * q.stride_s, q.stride_s,
                           queries, d, settings.scale);
              forward_tile(tile, task, head, query, queries);
              for (int64_t i = 0; i < queries; ++i) {
                float sum = tile.sum[i];
                float largest = tile.largest[i];
                float shrink = 1;
                if (settings.sinks.data != nullptr) {
                  const float sink = settings.sinks.as<float>()[head];
                  largest = std::max(largest, sink);
                  shrink = fast_exp(tile.largest[i] - largest);
                  sum = sum * shrink + fast_exp(sink - largest);
                }
                float* row = tile.out + i * channels;
                const float inverse = sum == 0 ? 0 : shrink / sum;  // a NaN stays NaN
                for (int64_t c = 0; c < d; ++c) row[c] *= inverse;
                store_row(head_data<T>(out, batch, head) + (query + i) * out.stride_s, row, d);
                if (lse.is_null()) continue;
                lse.as<float>()[(batch * q.heads + head) * q.s + query + i] =
                    sum == 0 ? kInfinity : largest + std::log(sum);
              }
            }
          }
        });
  });
}

int64_t attention_backward_workspace_bytes(const Shape& sbnd, int64_t groups) {
  const int64_t s = sbnd[0];
  const int64_t d = sbnd[3];
  const int64_t heads = num_heads_at_once(sbnd[1] * groups, sbnd[2] / groups);
  const int64_t workers = std::min(heads, static_cast<int64_t>(num_threads()));
  return 4 *
         (heads * 2 * padded_keys(s) * padded_channels(d) + workers * BackwardTile::floats(s, d));
}

void attention_backward(HeadsView dq, HeadsView dk, HeadsView dv, TensorView drelative_bias,
                        ConstHeadsView dout, ConstHeadsView out, ConstView lse, ConstHeadsView q,
                        ConstHeadsView k, ConstHeadsView v, const AttentionSettings& settings,
                        Stream stream) {
  const int64_t d = q.d;
  const int64_t sk = k.s;
  const int64_t channels = padded_channels(d);
  const int64_t heads_per_group = q.heads / k.heads;
  const int64_t pairs = q.b * k.heads;  // pairs of a batch and a group
  const bool has_bias_gradient = drelative_bias.data != nullptr;
  if (has_bias_gradient) std::fill_n(drelative_bias.as<float>(), drelative_bias.numel(), 0.0f);
  if (pairs == 0) return;
  // Heads run in parallel, each with its own dk and dv, which are then summed over a group in the
  // order of heads, so that the result does not depend on threads. A wave of groups bounds the
  // memory.
  const int64_t head_floats = padded_keys(sk) * channels;
  const int64_t wave = num_heads_at_once(pairs, heads_per_group) / heads_per_group;
  const Scratch gradients(wave * heads_per_group * 2 * head_floats * 4, stream);
  float* const dk_heads = gradients.as<float>();
  float* const dv_heads = dk_heads + wave * heads_per_group * head_floats;

  dispatch_floating(q.dtype, "attention", [&]<class T>() {
    for (int64_t first = 0, count = 0; first < pairs; first += count) {
      count = std::min(wave, pairs - first);
      // In one wave a head adds to its bias gradient only once, so that samples add in order.
      if (has_bias_gradient) count = std::min(count, k.heads - first % k.heads);
      for_each_task(count * heads_per_group, q.s * num_keys_of_work(settings, sk) * d * 5,
                    BackwardTile::floats(sk, d), stream, [&](int64_t task, float* scratch) {
                      const int64_t pair = first + task / heads_per_group;
                      const int64_t head =
                          pair % k.heads * heads_per_group + task % heads_per_group;
                      backward_head<T>(dk_heads + task * head_floats, dv_heads + task * head_floats,
                                       scratch, dq, drelative_bias, dout, out, lse, q, k, v,
                                       settings, pair / k.heads, head);
                    });
      parallel_for(count * sk, 16384 / (d * heads_per_group) + 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t pair = first + i / sk;
          const int64_t key = i % sk;
          const int64_t at = i / sk * heads_per_group * head_floats + key * channels;
          const int64_t batch = pair / k.heads;
          const int64_t group = pair % k.heads;
          store_head_sum(head_data<T>(dk, batch, group) + key * dk.stride_s, dk_heads + at,
                         head_floats, heads_per_group, d);
          store_head_sum(head_data<T>(dv, batch, group) + key * dv.stride_s, dv_heads + at,
                         head_floats, heads_per_group, d);
        }
      });
    }
  });
}

void add_attention_sinks(HeadsView out, TensorView lse, ConstView sinks, Stream) {
  dispatch_floating(out.dtype, "add_attention_sinks", [&]<class T>() {
    parallel_for(out.b * out.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t pair = begin; pair < end; ++pair) {
        const float sink = sinks.as<float>()[pair % out.heads];
        for (int64_t i = 0; i < out.s; ++i) {
          float& sum = lse.as<float>()[pair * out.s + i];
          const float before = sum == kInfinity ? -kInfinity : sum;
          const float largest = std::max(before, sink);
          sum = largest + std::log(fast_exp(before - largest) + fast_exp(sink - largest));
          const float kept = fast_exp(before - sum);
          T* const row = head_data<T>(out, pair / out.heads, pair % out.heads) + i * out.stride_s;
          for (int64_t c = 0; c < out.d; ++c) row[c] = T(static_cast<float>(row[c]) * kept);
        }
      }
    });
  });
}

void attention_sink_gradients(TensorView dsinks, ConstHeadsView dout, ConstHeadsView out,
                              ConstView lse, ConstView sinks, Stream) {
  dispatch_floating(out.dtype, "attention_sink_gradients", [&]<class T>() {
    parallel_for(out.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t head = begin; head < end; ++head) {
        double sum = 0;
        for (int64_t batch = 0; batch < out.b; ++batch) {
          for (int64_t i = 0; i < out.s; ++i) {
            const T* const row = head_data<T>(out, batch, head) + i * out.stride_s;
            const T* const drow = head_data<T>(dout, batch, head) + i * dout.stride_s;
            float delta = 0;
#pragma omp simd reduction(+ : delta)
            for (int64_t c = 0; c < out.d; ++c) {
              delta += static_cast<float>(drow[c]) * static_cast<float>(row[c]);
            }
            const float log_sum = lse.as<float>()[(batch * out.heads + head) * out.s + i];
            sum -= fast_exp(sinks.as<float>()[head] - log_sum) * delta;
          }
        }
        dsinks.as<float>()[head] = static_cast<float>(sum);
      }
    });
  });
}

}  // namespace megatron::kernels::cpu
