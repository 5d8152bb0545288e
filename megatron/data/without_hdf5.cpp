#include "megatron/core/error.h"
#include "megatron/data/hdf5_file.h"

// Builds without MG_RETRO.
namespace megatron {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path) {
  throw Unsupported(path.string() +
                    ": HDF5 files need a build with Retro; configure with -DMG_RETRO=ON");
}

}  // namespace

Hdf5File::Hdf5File(std::filesystem::path path) : file_(path) { refuse(path); }
std::optional<std::vector<int64_t>> Hdf5File::find(const std::string&) const { refuse(path_); }
std::vector<int64_t> Hdf5File::shape(const std::string&) const { refuse(path_); }
std::string Hdf5File::read_bytes(const std::string&, int64_t, int64_t, Hdf5Type) const {
  refuse(path_);
}
std::optional<int64_t> Hdf5File::offset_if(const std::string&, Hdf5Type) const { refuse(path_); }

Hdf5Writer::Hdf5Writer(std::filesystem::path path) { refuse(path); }
Hdf5Writer::~Hdf5Writer() = default;
void Hdf5Writer::add_array(const std::string&, Hdf5Type, const void*, int64_t,
                           const std::vector<int64_t>&) {
  refuse(path_);
}
void Hdf5Writer::commit() { refuse(path_); }

}  // namespace megatron
