#include "megatron/interchange/megatron/rank_file.h"

#include <utility>

namespace megatron {

void RankFile::tensor(const char* section, const RankParameter& parameter, DType dtype) {
  writer_.tensor(dtype, parameter.shape);
  elements_.emplace_back([this, section, &parameter, dtype] {
    FileElements elements = shard_.elements(section, parameter);
    if (elements.view.dtype == dtype) return writer_.write_later(std::move(elements));
    const Tensor converted = cast(copy_of(elements.view), dtype);
    writer_.write_later(FileElements{converted.view(), converted});
  });
}

void RankFile::constant(Tensor value) {
  writer_.tensor(value.dtype(), value.shape());
  elements_.emplace_back([this, value] { writer_.write_later({value.view(), value}); });
}

void RankFile::commit() {
  for (const auto& write_elements : elements_) write_elements();
  writer_.commit();
}

}  // namespace megatron
