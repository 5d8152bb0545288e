#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/core/arg_map.h"
#include "megatron/core/dtype.h"
#include "megatron/core/shape.h"

namespace megatron {

// Writes a pickle (protocol 2) for torch.load, value by value. Containers are opened and closed;
// inside a dictionary keys and values alternate.
//
//   writer.begin_dict();
//   writer.text("iteration"), writer.integer(20);
//   writer.end_dict();
class PickleWriter {
 public:
  PickleWriter();

  void none();
  void boolean(bool value);
  void integer(int64_t value);
  void number(double value);
  void text(std::string_view value);
  void bytes(std::string_view value);
  void dtype(DType value);  // torch.float32
  void value(const ArgValue& value);

  void begin_dict();
  void end_dict();
  void begin_ordered_dict();  // collections.OrderedDict
  void end_ordered_dict();
  void begin_list();
  void end_list();
  void begin_tuple();
  void end_tuple();
  // An object of a class constructed without arguments; its state is written between the two calls:
  // a dictionary of attributes, or the argument of its __setstate__.
  void begin_object(std::string_view module, std::string_view name);
  void end_object();
  // The result of a function call; its arguments are written between the two calls.
  void begin_call(std::string_view module, std::string_view name);
  void end_call();
  void torch_size(std::span<const int64_t> sizes);
  // An argparse.Namespace with the entries of the following dictionary.
  void begin_namespace();
  void end_namespace();
  // A one-dimensional numpy array of uint32.
  void uint32_array(const std::vector<uint32_t>& values);

  // A contiguous tensor on the CPU: elements [offset, offset + numel) of the storage with that key
  // and that number of elements.
  void tensor(std::string_view storage, int64_t storage_numel, DType dtype, int64_t offset,
              const Shape& shape);

  // The pickle. REQUIRES: one value was written, and all containers are closed.
  std::string finish();

 private:
  void op(char code) { text_.push_back(code); }
  template <class T>
  void raw(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void global(std::string_view module, std::string_view name);
  void integers(std::span<const int64_t> values);  // as a tuple

  std::string text_;
  int open_ = 0;  // containers
};

}  // namespace megatron
