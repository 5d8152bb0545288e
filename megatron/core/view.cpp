#include "megatron/core/view.h"

#include "megatron/core/error.h"

namespace megatron {

void expect_shape(const Shape& got, const Shape& want, const char* what) {
  if (got == want) return;
  throw ShapeError(std::string(what) + " has shape " + got.str() + ", expected " + want.str());
}

void expect_dtype(DType got, DType want, const char* what) {
  if (got == want) return;
  throw DtypeError(std::string(what) + " has dtype " + std::string(name_of(got)) + ", expected " +
                   std::string(name_of(want)));
}

}  // namespace megatron
