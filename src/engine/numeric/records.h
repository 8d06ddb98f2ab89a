// The cache records of DeepSeek V4.1 Flash: codes of one vector, then its scales, in one run of bytes
// (numeric/record_sizes.h).
//
//   std::vector<uint8_t> record(window_record_bytes(512));  // 528
//   encode_window_record(kv, record);                       // kv: 512 BF16, after norm and rotation
//   decode_window_record(record, kv_again);
//
// | record | content                                            | bytes for width w | real size   |
// | window | E4M3 [w], UE8M0 [w/32]           (fp8_block32)       | w + w/32          | 528 (512) |
// | main   | E2M1 [w/2], E4M3 [w/16]          (fp4_block16_e4m3)  | w/2 + w/16        | 288 (512) |
// | index  | E2M1 [w/2], UE8M0 [w/32]         (fp4_block32_ue8m0) | w/2 + w/32        |  68 (128) |
//
// The width is that of the BF16 span and must be a multiple of the block; a record span of another size is a
// programming error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/numeric/record_sizes.h"

namespace spark::engine {

void encode_window_record(std::span<const uint16_t> x, std::span<uint8_t> record);
void encode_main_record(std::span<const uint16_t> x, std::span<uint8_t> record);
void encode_index_record(std::span<const uint16_t> x, std::span<uint8_t> record);

void decode_window_record(std::span<const uint8_t> record, std::span<uint16_t> out);
void decode_main_record(std::span<const uint8_t> record, std::span<uint16_t> out);
void decode_index_record(std::span<const uint8_t> record, std::span<uint16_t> out);

}  // namespace spark::engine
