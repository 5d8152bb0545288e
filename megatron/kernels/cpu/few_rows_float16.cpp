#include "megatron/kernels/cpu/few_rows_products_of.h"

namespace megatron::kernels::cpu {

template AddProducts<Float16> add_products_of<Float16>(int64_t rows, int64_t groups);

}  // namespace megatron::kernels::cpu
