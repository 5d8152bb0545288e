#include "megatron/kernels/cpu/few_rows_products_of.h"

namespace megatron::kernels::cpu {

template AddProducts<int8_t> add_products_of<int8_t>(int64_t rows, int64_t groups);

}  // namespace megatron::kernels::cpu
