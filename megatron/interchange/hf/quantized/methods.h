#pragma once

#include <memory>

#include "megatron/interchange/hf/quantized.h"

// The methods of quantized.cpp's table, from the fields of quantization_config.
namespace megatron {

std::shared_ptr<const Quantization> read_gptq(HfBinding& fields);
std::shared_ptr<const Quantization> read_awq(HfBinding& fields);
std::shared_ptr<const Quantization> read_compressed_tensors(HfBinding& fields);
std::shared_ptr<const Quantization> read_mxfp4(HfBinding& fields);
std::shared_ptr<const Quantization> read_fp8(HfBinding& fields);
std::shared_ptr<const Quantization> read_bitsandbytes(HfBinding& fields);

}  // namespace megatron
