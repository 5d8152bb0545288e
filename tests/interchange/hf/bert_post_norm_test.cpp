// transformers' BertForPreTraining, whose norms come after the branches (Devlin et al. 2018,
// arXiv:1810.04805; Vaswani et al. 2017, arXiv:1706.03762, sec. 3.1), as our model with the norms
// before them and the residual behind the norm. The definition is computed here, in fp64, from the
// tensors under transformers' names.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "megatron/formats/safetensors.h"
#include "megatron/interchange/checkpoint_source.h"
#include "megatron/interchange/hf/names.h"
#include "megatron/interchange/stored_logits.h"
#include "megatron/models/model_specs.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

using Row = std::vector<double>;
using Matrix = std::vector<Row>;  // [s, h]

constexpr int64_t kVocabulary = 11;
constexpr size_t kHeads = 2;

HfModel small_bert() {
  HfModel model;
  model.family = find_hf_family("bert");
  model.vocab_size = kVocabulary;
  TransformerConfig& c = model.transformer;
  c.kind = ModelKind::kBert;
  c.num_layers = 3;
  c.hidden_size = 8;
  c.ffn_hidden_size = 12;
  c.num_attention_heads = kHeads;
  c.seq_length = c.max_position_embeddings = 6;
  c.norm_epsilon = 1e-12;
  c.activation = Activation::kGeluErf;
  c.apply_residual_connection_post_layernorm = true;
  c.num_tokentypes = 2;
  c = resolved(c);
  c.padded_vocab_size = kVocabulary;
  return model;
}

// The definition, on the tensors of a folder.
class Definition {
 public:
  explicit Definition(const std::filesystem::path& folder) : file_(folder) {}

  // Logits of tokens of the first type.
  Matrix logits(const std::vector<int64_t>& tokens, int64_t num_layers) const {
    Matrix x;
    for (size_t i = 0; i < tokens.size(); ++i) {
      Row row = matrix("bert.embeddings.word_embeddings.weight")[static_cast<size_t>(tokens[i])];
      add(row, matrix("bert.embeddings.position_embeddings.weight")[i]);
      add(row, matrix("bert.embeddings.token_type_embeddings.weight")[0]);
      x.push_back(norm(row, "bert.embeddings.LayerNorm"));
    }
    for (int64_t layer = 0; layer < num_layers; ++layer) {
      const std::string name = "bert.encoder.layer." + std::to_string(layer);
      const Matrix attended = attention(x, name + ".attention.self");
      for (size_t i = 0; i < x.size(); ++i) {
        Row y = linear(attended[i], name + ".attention.output.dense");
        add(y, x[i]);
        x[i] = norm(y, name + ".attention.output.LayerNorm");
        Row z = linear(gelu(linear(x[i], name + ".intermediate.dense")), name + ".output.dense");
        add(z, x[i]);
        x[i] = norm(z, name + ".output.LayerNorm");
      }
    }
    const Matrix words = matrix("bert.embeddings.word_embeddings.weight");
    const Row bias = vector("cls.predictions.bias");
    Matrix logits;
    for (const Row& row : x) {
      const Row head = norm(gelu(linear(row, "cls.predictions.transform.dense")),
                            "cls.predictions.transform.LayerNorm");
      Row& of_row = logits.emplace_back();
      for (size_t id = 0; id < words.size(); ++id)
        of_row.push_back(dot(words[id], head) + bias[id]);
    }
    return logits;
  }

 private:
  static double dot(const Row& a, const Row& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
  }
  static void add(Row& y, const Row& x) {
    for (size_t i = 0; i < y.size(); ++i) y[i] += x[i];
  }
  static Row gelu(Row x) {
    for (double& value : x) value *= 0.5 * (1.0 + std::erf(value / std::sqrt(2.0)));
    return x;
  }
  Row vector(const std::string& name) const {
    const Tensor tensor = copy_of(whole_elements(*file_.find(name)).view);
    const auto values = tensor.span<float>();
    return {values.begin(), values.end()};
  }
  Matrix matrix(const std::string& name) const {
    const Row values = vector(name);
    const auto rows = static_cast<size_t>(file_.find(name)->shape[0]);
    Matrix result;
    for (size_t i = 0; i < rows; ++i) {
      const auto width = static_cast<int64_t>(values.size() / rows);
      const auto begin = values.begin() + static_cast<int64_t>(i) * width;
      result.emplace_back(begin, begin + width);
    }
    return result;
  }
  Row linear(const Row& x, const std::string& name) const {
    Row y = vector(name + ".bias");
    const Matrix weight = matrix(name + ".weight");
    for (size_t i = 0; i < y.size(); ++i) y[i] += dot(weight[i], x);
    return y;
  }
  Row norm(const Row& x, const std::string& name) const {
    const auto n = static_cast<double>(x.size());
    double mean = 0;
    double variance = 0;
    for (const double value : x) mean += value / n;
    for (const double value : x) variance += (value - mean) * (value - mean) / n;
    Row y = vector(name + ".bias");
    const Row weight = vector(name + ".weight");
    for (size_t i = 0; i < x.size(); ++i) {
      y[i] += weight[i] * (x[i] - mean) / std::sqrt(variance + 1e-12);
    }
    return y;
  }
  Matrix attention(const Matrix& x, const std::string& name) const {
    Matrix q, k, v;
    for (const Row& row : x) {
      q.push_back(linear(row, name + ".query"));
      k.push_back(linear(row, name + ".key"));
      v.push_back(linear(row, name + ".value"));
    }
    const size_t d = x[0].size() / kHeads;
    Matrix result(x.size(), Row(x[0].size(), 0.0));
    for (size_t head = 0; head < kHeads; ++head) {
      for (size_t i = 0; i < x.size(); ++i) {
        Row weights;
        double sum = 0;
        for (const Row& key : k) {
          double score = 0;
          for (size_t c = head * d; c < (head + 1) * d; ++c) score += q[i][c] * key[c];
          weights.push_back(std::exp(score / std::sqrt(static_cast<double>(d))));
          sum += weights.back();
        }
        for (size_t j = 0; j < x.size(); ++j) {
          for (size_t c = head * d; c < (head + 1) * d; ++c) {
            result[i][c] += weights[j] / sum * v[j][c];
          }
        }
      }
    }
    return result;
  }

  ShardedWeights file_;
};

class BertPostNormTest : public testing::Test {
 protected:
  void SetUp() override {
    const HfModel model = small_bert();
    const std::vector<TensorSpec> ours = model_tensors(model.transformer);
    uint64_t seed = 0;
    std::map<std::string, Tensor> tensors;
    for (const TensorSpec& spec : ours) {
      tensors.emplace(spec.name, random_normal(spec.shape, {.seed = ++seed}));
    }
    save_hf_model(folder_.path(), model, ours, int64_t{1} << 30, [&](const TensorSpec& spec) {
      return FileElements{std::as_const(tensors.at(spec.name)).view(), tensors.at(spec.name)};
    });
  }

  static void expect_definition(const std::filesystem::path& folder, const Matrix& want,
                                const std::vector<int64_t>& tokens) {
    const CheckpointSource source(folder, CheckpointFormat::kHuggingFace);
    EXPECT_EQ(source.kind(), ModelKind::kBert);
    const auto length = static_cast<int64_t>(tokens.size());
    const Tensor logits =
        stored_logits(source.contents(), source.hf()->transformer, tensor_of(tokens, {1, length}));
    for (size_t i = 0; i < want.size(); ++i) {
      for (size_t id = 0; id < want[i].size(); ++id) {
        EXPECT_NEAR(logits.span<float>()[i * want[i].size() + id], want[i][id], 1e-4);
      }
    }
  }

  TemporaryDirectory folder_;
  std::vector<int64_t> tokens_ = {2, 10, 4, 7, 3};
};

TEST_F(BertPostNormTest, IsTheDefinition) {
  const Matrix want =
      Definition(folder_.path()).logits(tokens_, small_bert().transformer.num_layers);
  expect_definition(folder_.path(), want, tokens_);
}

// The names of Google's files, and of transformers until 2019.
TEST_F(BertPostNormTest, ReadsOlderNamesOfNorms) {
  const ShardedWeights file(folder_.path());
  std::vector<TensorSpec> specs;
  std::map<std::string, std::string> names;
  for (const auto& [name_in_file, tensor] : file.tensors()) {
    std::string name = name_in_file;
    for (const auto& [now, before] : {std::pair("LayerNorm.weight", "LayerNorm.gamma"),
                                      std::pair("LayerNorm.bias", "LayerNorm.beta")}) {
      if (name.ends_with(now)) name.replace(name.size() - std::string(now).size(), 99, before);
    }
    names[name] = name_in_file;
    specs.push_back({name, tensor.dtype, tensor.shape});
  }
  const TemporaryDirectory older;
  write_sharded(older.path(), specs, int64_t{1} << 30, [&](const TensorSpec& spec) {
    return whole_elements(*file.find(names.at(spec.name)));
  });
  std::filesystem::copy(folder_.path() / "config.json", older.path() / "config.json");
  const Matrix want =
      Definition(folder_.path()).logits(tokens_, small_bert().transformer.num_layers);
  expect_definition(older.path(), want, tokens_);
}

}  // namespace
}  // namespace megatron
