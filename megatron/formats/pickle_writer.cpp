#include "megatron/formats/pickle_writer.h"

#include <bit>
#include <limits>
#include <span>
#include <type_traits>
#include <variant>

#include "megatron/core/error.h"

namespace megatron {
namespace {

std::string_view storage_class(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "FloatStorage";
    case DType::kFloat16:
      return "HalfStorage";
    case DType::kBFloat16:
      return "BFloat16Storage";
    case DType::kFloat64:
      return "DoubleStorage";
    case DType::kInt64:
      return "LongStorage";
    case DType::kInt32:
      return "IntStorage";
    case DType::kInt16:
      return "ShortStorage";
    case DType::kInt8:
      return "CharStorage";
    case DType::kUInt8:
      return "ByteStorage";
    case DType::kBool:
      return "BoolStorage";
    default:
      break;
  }
  throw DtypeError("torch files have no storage of " + std::string(name_of(dtype)));
}

}  // namespace

PickleWriter::PickleWriter() { text_ = "\x80\x02"; }

void PickleWriter::none() { op('N'); }
void PickleWriter::boolean(bool value) { op(value ? '\x88' : '\x89'); }

void PickleWriter::integer(int64_t value) {
  if (value >= 0 && value < 256) {
    op('K');
    raw(static_cast<uint8_t>(value));
  } else if (value >= std::numeric_limits<int32_t>::min() &&
             value <= std::numeric_limits<int32_t>::max()) {
    op('J');
    raw(static_cast<int32_t>(value));
  } else {
    op('\x8a');
    raw(uint8_t{8});
    raw(value);
  }
}

void PickleWriter::number(double value) {
  op('G');
  raw(__builtin_bswap64(std::bit_cast<uint64_t>(value)));
}

void PickleWriter::text(std::string_view value) {
  op('X');
  raw(static_cast<uint32_t>(value.size()));
  text_ += value;
}

void PickleWriter::bytes(std::string_view value) {
  // Protocol 2 has no bytes object: bytes are a text in latin-1.
  std::string utf8;
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      utf8.push_back(c);
    } else {
      utf8.push_back(static_cast<char>(0xC0 | (byte >> 6)));
      utf8.push_back(static_cast<char>(0x80 | (byte & 0x3F)));
    }
  }
  global("_codecs", "encode");
  text(utf8);
  text("latin1");
  op('\x86');
  op('R');
}

void PickleWriter::dtype(DType value) { global("torch", name_of(value)); }

void PickleWriter::value(const ArgValue& value) {
  std::visit(
      [&]<class T>(const T& v) {
        if constexpr (std::is_same_v<T, std::monostate>) none();
        if constexpr (std::is_same_v<T, bool>) boolean(v);
        if constexpr (std::is_same_v<T, int64_t>) integer(v);
        if constexpr (std::is_same_v<T, double>) number(v);
        if constexpr (std::is_same_v<T, std::string>) text(v);
        if constexpr (std::is_same_v<T, DType>) dtype(v);
        if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
          begin_list();
          for (const int64_t item : v) integer(item);
          end_list();
        }
        if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          begin_list();
          for (const std::string& item : v) text(item);
          end_list();
        }
      },
      value);
}

void PickleWriter::begin_dict() {
  op('}');
  op('(');
  ++open_;
}

void PickleWriter::end_dict() {
  op('u');
  --open_;
}

void PickleWriter::begin_ordered_dict() {
  global("collections", "OrderedDict");
  op(')');
  op('R');
  op('(');
  ++open_;
}

void PickleWriter::end_ordered_dict() { end_dict(); }

void PickleWriter::begin_list() {
  op(']');
  op('(');
  ++open_;
}

void PickleWriter::end_list() {
  op('e');
  --open_;
}

void PickleWriter::begin_tuple() {
  op('(');
  ++open_;
}

void PickleWriter::end_tuple() {
  op('t');
  --open_;
}

void PickleWriter::begin_object(std::string_view module, std::string_view name) {
  global(module, name);
  op(')');
  op('\x81');
}

void PickleWriter::end_object() { op('b'); }

void PickleWriter::begin_call(std::string_view module, std::string_view name) {
  global(module, name);
  begin_tuple();
}

void PickleWriter::end_call() {
  end_tuple();
  op('R');
}

void PickleWriter::torch_size(std::span<const int64_t> sizes) {
  begin_call("torch", "Size");
  integers(sizes);
  end_call();
}

void PickleWriter::begin_namespace() {
  begin_object("argparse", "Namespace");
  begin_dict();
}

void PickleWriter::end_namespace() {
  end_dict();
  end_object();
}

void PickleWriter::uint32_array(const std::vector<uint32_t>& values) {
  global("numpy.core.multiarray", "_reconstruct");
  begin_tuple();
  global("numpy", "ndarray");
  begin_tuple();
  integer(0);
  end_tuple();
  bytes("b");
  end_tuple();
  op('R');
  begin_tuple();  // state: version, shape, dtype, Fortran order, elements
  integer(1);
  begin_tuple();
  integer(static_cast<int64_t>(values.size()));
  end_tuple();
  global("numpy", "dtype");
  begin_tuple();
  text("u4");
  boolean(false);
  boolean(true);
  end_tuple();
  op('R');
  begin_tuple();
  integer(3);
  text("<");
  none();
  none();
  none();
  integer(-1);
  integer(-1);
  integer(0);
  end_tuple();
  op('b');
  boolean(false);
  bytes({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(uint32_t)});
  end_tuple();
  op('b');
}

void PickleWriter::tensor(std::string_view storage, int64_t storage_numel, DType dtype,
                          int64_t offset, const Shape& shape) {
  global("torch._utils", "_rebuild_tensor_v2");
  begin_tuple();
  begin_tuple();
  text("storage");
  global("torch", storage_class(dtype));
  text(storage);
  text("cpu");
  integer(storage_numel);
  end_tuple();
  op('Q');
  integer(offset);
  integers(shape.dims());
  std::vector<int64_t> strides(shape.dims().size(), 1);
  for (size_t axis = strides.size(); axis-- > 1;) {
    strides[axis - 1] = strides[axis] * shape.dims()[axis];
  }
  integers(strides);
  boolean(false);
  begin_ordered_dict();  // hooks
  end_ordered_dict();
  end_tuple();
  op('R');
}

std::string PickleWriter::finish() {
  invariant(open_ == 0, "every container of a pickle is closed");
  op('.');
  return std::move(text_);
}

void PickleWriter::global(std::string_view module, std::string_view name) {
  op('c');
  text_ += module;
  text_ += '\n';
  text_ += name;
  text_ += '\n';
}

void PickleWriter::integers(std::span<const int64_t> values) {
  begin_tuple();
  for (const int64_t value : values) integer(value);
  end_tuple();
}

}  // namespace megatron
