#include "megatron/kernels/cpu/few_rows_products_of.h"

namespace megatron::kernels::cpu {

template AddProducts<float> add_products_of<float>(int64_t rows, int64_t groups);

}  // namespace megatron::kernels::cpu
