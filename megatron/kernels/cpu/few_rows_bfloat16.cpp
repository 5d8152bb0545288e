#include "megatron/kernels/cpu/few_rows_products_of.h"

namespace megatron::kernels::cpu {

template AddProducts<BFloat16> add_products_of<BFloat16>(int64_t rows, int64_t groups);

}  // namespace megatron::kernels::cpu
