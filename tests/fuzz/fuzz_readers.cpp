// Feeds the readers of files damaged in random ways: usage: fuzz_readers SECONDS [SEED]
//
// A reader must end with an Error or with well-formed values; anything else (a signal, another
// exception, memory beyond the limit) is a failure, whose input stays in failed.<reader>. Build it
// with MG_SANITIZE=address,undefined to see reads beyond buffers too.
#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "annex/retro/data/hdf5_file.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/parts.h"
#include "megatron/data/indexed_dataset.h"
#include "megatron/data/parquet/parquet_file.h"
#include "megatron/formats/pickle_writer.h"
#include "megatron/formats/safetensors.h"
#include "megatron/formats/sharded.h"
#include "megatron/formats/torch_dist.h"
#include "megatron/formats/torch_file.h"
#include "megatron/formats/torch_writer.h"
#include "megatron/interchange/hf/config.h"
#include "megatron/interchange/hf/quantized.h"
#include "megatron/report/page.h"
#include "megatron/report/read_run.h"
#include "tests/fuzz/mutator.h"
#include "tests/support/sanitizers.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

struct Reader {
  const char* name;
  std::vector<std::string> samples;  // well-formed files
  std::function<void(const fs::path&)> read;
};

size_t description_of(PyValue value) {
  size_t sum = value.description().size();
  if (const PyObject* object = value.object()) sum += description_of(object->arguments);
  for (const PyValue item : value.items()) sum += description_of(item);
  for (const auto& [key, entry] : value.entries())
    sum += description_of(key) + description_of(entry);
  return sum;
}

// Touches all elements too.
int64_t sum_of(const TorchFile& file, PyValue value) {
  int64_t sum = 0;
  if (const PyTensor* tensor = value.tensor()) {
    for (const std::byte byte : bytes_of(file.elements(*tensor).view)) {
      sum += static_cast<int64_t>(byte);
    }
  }
  if (const PyObject* object = value.object()) sum += sum_of(file, object->arguments);
  for (const PyValue item : value.items()) sum += sum_of(file, item);
  for (const auto& [key, entry] : value.entries()) sum += sum_of(file, key) + sum_of(file, entry);
  return sum + static_cast<int64_t>(value.description().size());
}

std::string sample_torch_file(const fs::path& path) {
  const Tensor weight = full({3, 5}, 1.5f, DType::kFloat32, Stream{});
  const Tensor bias = full({7}, 2.0f, DType::kBFloat16, Stream{});
  TorchWriter writer(path);
  PickleWriter& pickle = writer.pickle();
  pickle.begin_dict();
  pickle.text("args");
  pickle.begin_namespace();
  pickle.text("hidden_size"), pickle.integer(32);
  pickle.text("lr"), pickle.number(1e-3);
  pickle.text("params_dtype"), pickle.dtype(DType::kBFloat16);
  pickle.text("data_path"), pickle.value(std::vector<std::string>{"a", "b"});
  pickle.end_namespace();
  pickle.text("model");
  pickle.begin_ordered_dict();
  pickle.text("weight"), writer.tensor(DType::kFloat32, {3, 5});
  pickle.text("bias"), writer.tensor(DType::kBFloat16, {7});
  pickle.text("tied"), writer.same_tensor(0);
  pickle.end_ordered_dict();
  pickle.text("rng"), pickle.uint32_array({1, 2, 0xffffffff});
  pickle.end_dict();
  writer.write(weight.view());
  writer.write(bias.view());
  writer.commit();
  return read_text(path);
}

std::string sample_weights(const fs::path& path) {
  const Tensor weight = full({3, 5}, 1.5f, DType::kBFloat16, Stream{});
  TorchWriter writer(path);
  writer.pickle().begin_ordered_dict();
  writer.pickle().text("a.weight"), writer.tensor(DType::kBFloat16, {3, 5});
  writer.pickle().text("b.weight"), writer.same_tensor(0);
  writer.pickle().end_ordered_dict();
  writer.write(weight.view());
  writer.commit();
  return read_text(path);
}

std::string sample_stream() {
  std::string text = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.";
  PickleWriter system;
  system.begin_dict();
  system.text("little_endian"), system.boolean(true);
  system.end_dict();
  PickleWriter object;
  object.begin_dict();
  object.text("weight"), object.tensor("94", 15, DType::kFloat32, 5, {2, 5});
  object.end_dict();
  PickleWriter keys;
  keys.begin_list();
  keys.text("94");
  keys.end_list();
  text += system.finish() + object.finish() + keys.finish();
  const int64_t numel = 15;
  text.append(reinterpret_cast<const char*>(&numel), sizeof(numel));
  return text + std::string(60, 'x');
}

std::string sample_safetensors(const fs::path& path) {
  SafetensorsWriter writer(path, {{"weight", DType::kFloat32, {3, 5}}, {"bias", DType::kInt8, {7}}},
                           {{"format", "pt"}});
  for (const TensorSpec& spec : writer.specs()) {
    writer.write(zeros(spec.shape, spec.dtype, Stream{}).view());
  }
  writer.commit();
  return read_text(path);
}

// Folders of models with quantized weights.
std::vector<fs::path> quantized_folders() {
  std::vector<fs::path> folders;
  const fs::path golden = fs::path(MG_SOURCE_DIR) / "tests/golden/quantized";
  for (const fs::directory_entry& entry : fs::directory_iterator(golden)) {
    if (entry.is_directory()) folders.push_back(entry.path());
  }
  return folders;
}

// The tensors of one layer of a folder, in which the header is a large part.
std::string sample_of_layer(const fs::path& folder, const fs::path& path) {
  const SafetensorsFile file(folder / "model.safetensors");
  std::vector<TensorSpec> specs;
  for (const SafetensorsFile::Entry& entry : file.tensors()) {
    if (entry.spec.name.starts_with("model.layers.1.")) specs.push_back(entry.spec);
  }
  SafetensorsWriter writer(path, specs);
  for (const TensorSpec& spec : writer.specs()) writer.write(file.at(spec.name));
  writer.commit();
  return read_text(path);
}

std::vector<Reader> readers(const fs::path& directory) {
  const auto torch = [](const fs::path& path) {
    const TorchFile file(path);
    sum_of(file, file.root());
  };
  const auto safetensors = [](const fs::path& path) {
    const SafetensorsFile file(path);
    for (const SafetensorsFile::Entry& tensor : file.tensors()) copy_of(tensor.view);
  };
  const auto weights = [](const fs::path& path) {
    const ShardedWeights file(path);
    for (const auto& [name, tensor] : file.tensors()) copy_of(whole_elements(tensor).view);
  };
  // Without the archive, whose checksum would find most damage first.
  const auto pickle = [](const fs::path& path) {
    const MappedFile file(path);
    PyDocument document;
    description_of(unpickle(file.bytes(), document).value);
  };
  const auto index = [](const fs::path& path) {
    fs::path prefix = path;
    const IndexedDataset dataset(prefix.replace_extension());
    for (int64_t i = 0; i < dataset.num_sequences(); ++i) dataset.sequence(i);
  };
  // Few bytes may stand for any number of equal texts.
  const auto parquet = [](const fs::path& path) {
    int64_t left = 100'000;
    ParquetFile(path).read_texts("text", [&](std::string_view) {
      if (--left < 0) throw FormatError("too many texts");
    });
  };
  const auto hdf5 = [](const fs::path& path) {
    if constexpr (kHasRetro) {
      const Hdf5File file(path);
      for (const char* const name : {"chunks", "n_written", "neighbors", "big_endian", "none"}) {
        if (file.find(name)) file.read<int64_t>(name);
      }
    }
  };
  std::vector<std::string> layers;
  std::vector<std::shared_ptr<const Quantization>> methods;
  for (const fs::path& folder : quantized_folders()) {
    layers.push_back(sample_of_layer(folder, directory / "layer.safetensors"));
    methods.push_back(read_hf_config(folder).quantization);
  }
  const auto quantized = [methods](const fs::path& path) {
    const auto file = std::make_shared<const ShardedWeights>(path);
    for (size_t i = 0; i < methods.size(); ++i) {
      try {
        const auto plain = dequantized(file, *methods[i], DType::kFloat32);
        for (const auto& [name, tensor] : plain->tensors()) whole_elements(tensor);
      } catch (const InternalError&) {
        throw;
      } catch (const Error&) {
        if (i + 1 == methods.size()) throw;  // most files are of another method
      }
    }
  };
  // The description of pieces in files that are whole.
  const fs::path golden = fs::path(MG_SOURCE_DIR) / "tests/golden/megatron";
  const fs::path saved = golden.parent_path() / "torch_dist/gpt/iter_0000010";
  const fs::path pieces = directory / "torch_dist";
  fs::copy(saved, pieces);
  const auto distributed = [pieces](const fs::path& path) {
    fs::copy_file(path, pieces / kTorchDistMetadata, fs::copy_options::overwrite_existing);
    const TorchDistDirectory files(pieces);
    for (const auto& [name, tensor] : files.index().tensors) {
      for (const TorchDistIndex::Piece& piece : tensor.pieces) {
        copy_of(files.elements(name, tensor, piece).view);
      }
    }
  };
  fs::copy_file(golden / "data/corpus_text_document.bin", directory / "idx.bin");
  const std::string archive = sample_torch_file(directory / "sample.pt");
  const ZipArchive entries(std::as_bytes(std::span(archive)), "sample.pt");
  const auto bytes = entries.find("sample/data.pkl")->bytes;
  const std::string object(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::vector<std::string> tables;
  for (const char* const name : {"snappy", "zstd_v2", "gzip_plain", "none_required"}) {
    tables.push_back(
        read_text(golden.parent_path() / "parquet" / (std::string(name) + ".parquet")));
  }
  const std::vector<std::string> logs = {
      read_text(golden / "gpt/arguments.txt") + read_text(golden / "gpt/iterations.txt"),
      "{\"iteration\": 1, \"lm loss\": 2.5}\n{\"iteration\": 2, \"moe/load_layer_0_expert_1\": "
      "1}\n",
      "{\"name\":\"iteration\",\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":1,\"dur\":9}\n"
      "{\"name\":\"forward_step\",\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":2,\"dur\":1,\"args\":{}}"
      "\n"};
  const auto run = [](const fs::path& path) {
    report::run_json("run", report::read_run(path.string()), 1000);
  };
  return {{"run", logs, run},
          {"pt", {archive, sample_stream()}, torch},
          {"pkl", {object}, pickle},
          {"metadata", {read_text(saved / kTorchDistMetadata)}, distributed},
          {"weights", {sample_weights(directory / "sample.bin")}, weights},
          {"safetensors", {sample_safetensors(directory / "sample.safetensors")}, safetensors},
          {"idx", {read_text(golden / "data/corpus_text_document.idx")}, index},
          {"quantized", layers, quantized},
          {"parquet", tables, parquet},
          {"hdf5",
           {read_text(golden.parent_path() / "retro/train.hdf5"),
            read_text(golden.parent_path() / "retro/chunked.hdf5")},
           hdf5}};
}

// Operations of pickles, and digits.
constexpr std::string_view kLetters =
    "(.01234567NKMJGXcRbQqrhjtsuael]})}d\x80\x81\x85\x86\x87\x8a\x93";

int fuzz(double seconds, uint64_t seed) {
  const TemporaryDirectory directory;
  const std::vector<Reader> all = readers(directory.path());
  Mutator mutator(seed, kLetters);
  const auto start = std::chrono::steady_clock::now();
  int64_t files = 0;
  int64_t refused = 0;
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() <
         seconds) {
    const Reader& reader = all[mutator.below(all.size())];
    const std::string text = mutator.mutated(reader.samples[mutator.below(reader.samples.size())]);
    const fs::path path = directory.path() / ("idx." + std::string(reader.name));
    // In the current directory too: it survives a crash.
    std::ofstream("failed." + std::string(reader.name), std::ios::binary) << text;
    fs::remove(path);
    std::ofstream(path, std::ios::binary) << text;
    ++files;
    try {
      reader.read(path);
    } catch (const InternalError& error) {
      fmt::print(stderr, "{}: {}\n", reader.name, error.what());
      return 1;
    } catch (const Error&) {
      ++refused;
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}: {}\n", reader.name, error.what());
      return 1;
    }
    fs::remove("failed." + std::string(reader.name));
  }
  fmt::print("{} damaged files, {} refused, {} read; seed {}\n", files, refused, files - refused,
             seed);
  return 0;
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10.0;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : std::random_device()();
#if !MG_ADDRESS_SANITIZER
  const rlimit limit = {1 << 30, 1 << 30};  // no allocation comes near the absurd sizes
  ::setrlimit(RLIMIT_AS, &limit);
#endif
  return megatron::fuzz(seconds, seed);
}
