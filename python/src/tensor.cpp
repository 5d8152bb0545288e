#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"

namespace megatron::python {
namespace {

using Code = nb::dlpack::dtype_code;

// The types that DLPack and the engine share.
struct SharedType {
  DType ours;
  nb::dlpack::dtype theirs;
};
constexpr nb::dlpack::dtype type(Code code, uint8_t bits) {
  return {static_cast<uint8_t>(code), bits, 1};
}
constexpr SharedType kTypes[] = {
    {DType::kFloat32, type(Code::Float, 32)},   {DType::kFloat16, type(Code::Float, 16)},
    {DType::kBFloat16, type(Code::Bfloat, 16)}, {DType::kFloat64, type(Code::Float, 64)},
    {DType::kInt64, type(Code::Int, 64)},       {DType::kInt32, type(Code::Int, 32)},
    {DType::kInt16, type(Code::Int, 16)},       {DType::kInt8, type(Code::Int, 8)},
    {DType::kUInt64, type(Code::UInt, 64)},     {DType::kUInt32, type(Code::UInt, 32)},
    {DType::kUInt16, type(Code::UInt, 16)},     {DType::kUInt8, type(Code::UInt, 8)},
    {DType::kBool, type(Code::Bool, 8)},
};

}  // namespace

std::shared_ptr<nb::object> kept(nb::object object) {
  return {new nb::object(std::move(object)), [](nb::object* held) {
            const nb::gil_scoped_acquire acquire;
            delete held;
          }};
}

nb::object array_of(const api::Tensor& tensor) {
  for (const auto& [ours, theirs] : kTypes) {
    if (ours != tensor.dtype) continue;
    const std::vector<size_t> shape(tensor.shape.begin(), tensor.shape.end());
    const nb::capsule owner(new std::shared_ptr<void>(tensor.owner), [](void* held) noexcept {
      delete static_cast<std::shared_ptr<void>*>(held);
    });
    const bool is_on_host = tensor.device < 0;
    return nb::cast(nb::ndarray<nb::array_api>(
        tensor.data, shape.size(), shape.data(), owner, tensor.strides.data(), theirs,
        is_on_host ? nb::device::cpu::value : nb::device::cuda::value,
        is_on_host ? 0 : tensor.device));
  }
  throw DtypeError("DLPack has no " + std::string(name_of(tensor.dtype)));
}

api::Tensor tensor_of_array(nb::handle array) {
  nb::ndarray<nb::c_contig> read;
  try {
    read = nb::cast<nb::ndarray<nb::c_contig>>(array, false);
  } catch (const nb::cast_error&) {
    throw ShapeError("an array must be a contiguous one that DLPack or the buffer protocol gives");
  }
  for (const auto& [ours, theirs] : kTypes) {
    if (read.dtype() != theirs) continue;
    api::Tensor tensor;
    tensor.data = read.data();
    tensor.dtype = ours;
    for (size_t axis = 0; axis < read.ndim(); ++axis) {
      tensor.shape.push_back(static_cast<int64_t>(read.shape(axis)));
      tensor.strides.push_back(read.stride(axis));
    }
    if (read.device_type() == nb::device::cuda::value) {
      tensor.device = read.device_id();
      cuda::synchronize(nullptr);  // packages compute on the default stream
    } else if (read.device_type() != nb::device::cpu::value) {
      throw DeviceError("an array must be in host memory or on a GPU of CUDA");
    }
    tensor.owner = kept(nb::borrow(array));
    return tensor;
  }
  throw DtypeError("the engine has no such element type");
}

void bind_tensor(nb::module_& m) {
  nb::class_<api::Tensor>(m, "Tensor",
                          "Elements of the engine, which arrays of other packages share: numpy(), "
                          "torch(), DLPack. They live as long as any of them.")
      .def_prop_ro("shape", [](const api::Tensor& t) { return nb::tuple(nb::cast(t.shape)); })
      .def_prop_ro(
          "strides", [](const api::Tensor& t) { return nb::tuple(nb::cast(t.strides)); },
          "In elements, one per axis.")
      .def_prop_ro("dtype", [](const api::Tensor& t) { return name_of(t.dtype); })
      .def_prop_ro("device",
                   [](const api::Tensor& t) {
                     return t.device < 0 ? "cpu" : "cuda:" + std::to_string(t.device);
                   })
      .def_prop_ro(
          "data_ptr", [](const api::Tensor& t) { return reinterpret_cast<uintptr_t>(t.data); },
          "The address of the first element.")
      .def("__dlpack__",
           [](const api::Tensor& t, const nb::kwargs& options) {
             return array_of(t).attr("__dlpack__")(**options);
           })
      .def("__dlpack_device__",
           [](const api::Tensor& t) { return array_of(t).attr("__dlpack_device__")(); })
      .def("__array__",
           [](const api::Tensor& t, const nb::args& args, const nb::kwargs& options) {
             const nb::object numpy = nb::module_::import_("numpy");
             return numpy.attr("asarray")(array_of(t), *args, **options);
           })
      .def(
          "numpy",
          [](const api::Tensor& t) {
            return nb::module_::import_("numpy").attr("asarray")(array_of(t));
          },
          "An array that shares the elements. numpy has no bfloat16: use torch().")
      .def(
          "torch",
          [](nb::handle self) { return nb::module_::import_("torch").attr("from_dlpack")(self); },
          "A tensor that shares the elements.")
      .def("__repr__", [](const api::Tensor& t) {
        const nb::object shape = nb::tuple(nb::cast(t.shape));
        return "Tensor(shape=" + std::string(nb::repr(shape).c_str()) +
               ", dtype=" + std::string(name_of(t.dtype)) + ")";
      });
}

}  // namespace megatron::python
