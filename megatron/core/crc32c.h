#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace megatron {

// CRC-32C (Castagnoli polynomial 0x1EDC6F41, reflected, as in iSCSI, RFC 3720 appendix B.4).
// Continues from `crc`, the checksum of earlier bytes: crc32c(b, crc32c(a)) is the checksum of ab.
//
// Not zlib's crc32: processors have an instruction for this polynomial, so checking a checkpoint
// costs a fraction of reading it.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

// The table-driven version: the test oracle of the instruction.
uint32_t crc32c_by_table(std::span<const std::byte> bytes, uint32_t crc = 0);

// CRC-32 of zip files (polynomial 0x04C11DB7, reflected); continues in the same way. Uses
// carry-less multiplication if the processor has it, several times faster than zlib's.
uint32_t crc32(std::span<const std::byte> bytes, uint32_t crc = 0);
uint32_t crc32_by_table(std::span<const std::byte> bytes, uint32_t crc = 0);

}  // namespace megatron
