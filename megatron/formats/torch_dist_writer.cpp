#include "megatron/formats/torch_dist_writer.h"

#include <span>

#include "megatron/formats/torch_writer.h"

namespace megatron {
namespace {

constexpr const char* kModule = "torch.distributed.checkpoint.metadata";
constexpr const char* kFileModule = "torch.distributed.checkpoint.filesystem";

void write_size(PickleWriter& pickle, const char* name, std::span<const int64_t> sizes) {
  pickle.text(name), pickle.torch_size(sizes);
}

// dtype, layout, requires_grad, memory format, pin_memory
void write_properties(PickleWriter& pickle, DType dtype) {
  pickle.begin_object(kModule, "TensorProperties");
  pickle.begin_tuple();
  pickle.dtype(dtype);
  pickle.begin_call("torch.serialization", "_get_layout");
  pickle.text("torch.strided");
  pickle.end_call();
  pickle.boolean(false);
  pickle.begin_call(kModule, "_MEM_FORMAT_ENCODING");
  pickle.integer(0);
  pickle.end_call();
  pickle.boolean(false);
  pickle.end_tuple();
  pickle.end_object();
}

void write_tensor(PickleWriter& pickle, const TorchDistIndex::Tensor& tensor) {
  pickle.begin_object(kModule, "TensorStorageMetadata");
  pickle.begin_dict();
  pickle.text("properties"), write_properties(pickle, tensor.dtype.value());
  write_size(pickle, "size", tensor.shape.dims());
  pickle.text("chunks"), pickle.begin_list();
  for (const TorchDistIndex::Piece& piece : tensor.pieces) {
    pickle.begin_object(kModule, "ChunkStorageMetadata");
    pickle.begin_dict();
    write_size(pickle, "offsets", piece.region.offset);
    write_size(pickle, "sizes", piece.region.shape.dims());
    pickle.end_dict();
    pickle.end_object();
  }
  pickle.end_list();
  pickle.end_dict();
  pickle.end_object();
}

// An entry of the dictionary of locations.
void write_place(PickleWriter& pickle, const std::string& name, const std::vector<int64_t>* offset,
                 const TorchDistIndex::Place& place) {
  pickle.begin_object(kModule, "MetadataIndex");
  pickle.begin_dict();
  pickle.text("fqn"), pickle.text(name);
  if (offset != nullptr) {
    write_size(pickle, "offset", *offset);
  } else {
    pickle.text("offset"), pickle.none();
  }
  pickle.text("index"), pickle.none();
  pickle.end_dict();
  pickle.end_object();
  pickle.begin_object(kFileModule, "_StorageInfo");
  pickle.begin_dict();
  pickle.text("relative_path"), pickle.text(place.file);
  pickle.text("offset"), pickle.integer(place.begin);
  pickle.text("length"), pickle.integer(place.bytes);
  pickle.text("transform_descriptors"), pickle.none();
  pickle.end_dict();
  pickle.end_object();
}

}  // namespace

TorchDistIndex::Place TorchDistFile::write(ConstView piece) {
  TorchDistIndex::Place place{name_, file_.bytes_written(), 0};
  TorchWriter writer(file_);
  writer.tensor(piece.dtype, piece.shape);
  writer.write(piece);
  writer.commit();
  place.bytes = file_.bytes_written() - place.begin;
  return place;
}

TorchDistIndex::Place write_empty_object(const std::filesystem::path& path) {
  TorchWriter writer(path);
  writer.pickle().begin_list();
  writer.pickle().none();
  writer.pickle().end_list();
  writer.commit();
  return {path.filename().string(), 0, static_cast<int64_t>(std::filesystem::file_size(path))};
}

void write_torch_dist_metadata(const std::filesystem::path& directory,
                               const TorchDistIndex& index) {
  PickleWriter pickle;
  pickle.begin_object(kModule, "Metadata");
  pickle.begin_dict();
  pickle.text("state_dict_metadata"), pickle.begin_dict();
  for (const auto& [name, tensor] : index.tensors) pickle.text(name), write_tensor(pickle, tensor);
  for (const auto& [name, place] : index.objects) {
    pickle.text(name), pickle.begin_object(kModule, "BytesStorageMetadata");
    pickle.begin_dict();
    pickle.end_dict();
    pickle.end_object();
  }
  pickle.end_dict();
  pickle.text("planner_data"), pickle.none();
  pickle.text("storage_data"), pickle.begin_dict();
  for (const auto& [name, tensor] : index.tensors) {
    for (const TorchDistIndex::Piece& piece : tensor.pieces) {
      write_place(pickle, name, &piece.region.offset, piece.place);
    }
  }
  for (const auto& [name, place] : index.objects) write_place(pickle, name, nullptr, place);
  pickle.end_dict();
  pickle.text("storage_meta"), pickle.none();
  pickle.end_dict();
  pickle.end_object();
  write_text_atomically(directory / kTorchDistMetadata, pickle.finish());
}

}  // namespace megatron
