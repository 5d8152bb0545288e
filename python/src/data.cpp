#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bindings.h"
#include "megatron/data/indexed_dataset.h"
#include "megatron/tokenizers/tokenizer.h"
#include "megatron/tokenizers/tokenizer_files.h"

namespace megatron::python {
namespace {

constexpr TokenDtype kTokenDtypes[] = {TokenDtype::kUint8, TokenDtype::kInt8,  TokenDtype::kInt16,
                                       TokenDtype::kInt32, TokenDtype::kInt64, TokenDtype::kUint16};

TokenDtype token_dtype_of(const std::string& name) {
  for (const TokenDtype dtype : kTokenDtypes) {
    if (token_dtype_name(dtype) == name) return dtype;
  }
  throw DtypeError("dtype " + name + " is not one of tokens; use uint16 or int32");
}

int64_t index_in(int64_t index, int64_t size, const char* what) {
  const int64_t at = index < 0 ? index + size : index;
  if (at >= 0 && at < size) return at;
  throw nb::index_error(
      (std::string(what) + " " + std::to_string(index) + " of " + std::to_string(size)).c_str());
}

// The tokens in the mapped file, which the array keeps. They may be at an odd address.
nb::object array_of_tokens(const TokenView& view, const std::shared_ptr<IndexedDataset>& dataset) {
  const nb::capsule owner(new std::shared_ptr<IndexedDataset>(dataset), [](void* held) noexcept {
    delete static_cast<std::shared_ptr<IndexedDataset>*>(held);
  });
  return with_token_type(view.dtype(), [&]<class T>(T) {
    const size_t shape[] = {static_cast<size_t>(view.size())};
    return nb::cast(nb::ndarray<nb::numpy, const T>(view.bytes().data(), 1, shape, owner));
  });
}

class DatasetWriter {
 public:
  DatasetWriter(const std::string& prefix, const std::string& dtype)
      : builder_(std::make_unique<IndexedDatasetBuilder>(
            prefix, IndexedDatasetBuilder::Options{.dtype = token_dtype_of(dtype)})) {}

  void add_sequence(const Ids& tokens) {
    open().add_sequence(std::span<const int64_t>(tokens.data(), tokens.size()));
  }
  void end_document() { open().end_document(); }
  void finalize() {
    IndexedDatasetBuilder& builder = open();
    {
      const nb::gil_scoped_release release;
      builder.finalize();
    }
    builder_.reset();
  }
  void close() { builder_.reset(); }

 private:
  IndexedDatasetBuilder& open() {
    if (builder_ == nullptr) throw ClosedError("the dataset's writer is closed");
    return *builder_;
  }
  std::unique_ptr<IndexedDatasetBuilder> builder_;
};

std::shared_ptr<Tokenizer> tokenizer_of(const TokenizerConfig& config) {
  const nb::gil_scoped_release release;
  return make_tokenizer(config);
}

}  // namespace

void bind_data(nb::module_& m) {
  using nb::arg;
  using D = std::shared_ptr<IndexedDataset>;
  nb::class_<IndexedDataset>(m, "IndexedDataset")
      .def(
          "__init__",
          [](IndexedDataset* self, const std::string& prefix) {
            new (self) IndexedDataset(prefix);
          },
          arg("prefix"))
      .def("__len__", [](const D& d) { return d->num_sequences(); })
      .def("__getitem__",
           [](const D& d, int64_t index) {
             return array_of_tokens(d->sequence(index_in(index, d->num_sequences(), "sequence")),
                                    d);
           })
      .def_prop_ro("num_documents", [](const D& d) { return d->num_documents(); })
      .def_prop_ro("num_tokens", [](const D& d) { return d->num_tokens(); })
      .def_prop_ro("dtype", [](const D& d) { return std::string(token_dtype_name(d->dtype())); })
      .def(
          "document",
          [](const D& d, int64_t index) {
            const int64_t at = index_in(index, d->num_documents(), "document");
            return array_of_tokens(d->slice(d->document_start(at), d->document_start(at + 1)), d);
          },
          arg("index"), "The tokens of all sequences of a document.");

  nb::class_<DatasetWriter>(m, "DatasetWriter")
      .def(nb::init<const std::string&, const std::string&>(), arg("prefix"), arg("dtype"))
      .def("add_sequence", &DatasetWriter::add_sequence, arg("tokens"))
      .def("end_document", &DatasetWriter::end_document)
      .def("finalize", &DatasetWriter::finalize)
      .def("close", &DatasetWriter::close);

  nb::class_<Tokenizer>(m, "Tokenizer")
      .def(
          "encode",
          [](const Tokenizer& t, const std::string& text) {
            const nb::gil_scoped_release release;
            return t.encode(text);
          },
          arg("text"), "The ids of a text.")
      .def(
          "decode",
          [](const Tokenizer& t, const std::vector<int32_t>& ids) {
            const nb::gil_scoped_release release;
            return t.decode(ids);
          },
          arg("ids"), "The text of ids. Raises FormatError for an unknown id.")
      .def("piece", &Tokenizer::piece, arg("id"), "An id as the vocabulary has it.")
      .def(
          "id_of", [](const Tokenizer& t, const std::string& piece) { return t.id_of(piece); },
          arg("piece"), "The id of an entry of the vocabulary, or None.")
      .def(
          "special_id",
          [](const Tokenizer& t, const std::string& name) {
            for (const SpecialToken token :
                 {SpecialToken::kCls, SpecialToken::kSep, SpecialToken::kMask, SpecialToken::kPad,
                  SpecialToken::kBos, SpecialToken::kEos, SpecialToken::kEod}) {
              if (name_of(token) == name) return t.special_id(token);
            }
            throw ConfigError("special token " + name +
                              " is not known; use cls, sep, mask, pad, bos, eos or eod");
          },
          arg("name"))
      .def_prop_ro("eod", [](const Tokenizer& t) { return t.special_id(SpecialToken::kEod); })
      .def_prop_ro("type", [](const Tokenizer& t) { return std::string(t.type()); })
      .def_prop_ro("vocab_size", &Tokenizer::vocab_size)
      .def("__len__", &Tokenizer::vocab_size);
  m.def(
      "make_tokenizer",
      [](const std::string& type, const std::string& vocab_file, const std::string& merge_file,
         const std::string& model, int64_t vocab_size, int64_t extra_ids) {
        TokenizerConfig config;
        config.tokenizer_type = type;
        config.vocab_file = vocab_file;
        config.merge_file = merge_file;
        config.tokenizer_model = model;
        config.vocab_size = vocab_size;
        config.vocab_extra_ids = extra_ids;
        return tokenizer_of(config);
      },
      arg("tokenizer_type"), arg("vocab_file"), arg("merge_file"), arg("tokenizer_model"),
      arg("vocab_size"), arg("vocab_extra_ids"));
  m.def(
      "tokenizer_of_folder",
      [](const std::string& folder) {
        const std::optional<TokenizerConfig> config = tokenizer_of_model(folder);
        if (!config) {
          throw ConfigError(folder +
                            ": has no tokenizer (tokenizer.json, or vocab.json and merges.txt)");
        }
        return tokenizer_of(*config);
      },
      arg("folder"));
}

}  // namespace megatron::python
