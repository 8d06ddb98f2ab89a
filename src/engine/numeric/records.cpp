#include "engine/numeric/records.h"

#include "common/error.h"
#include "engine/numeric/block_quant.h"

namespace spark::engine {

void encode_window_record(std::span<const uint16_t> x, std::span<uint8_t> record) {
  SPARK_CHECK(record.size() == window_record_bytes(x.size()));
  quantise_fp8_block32(x, record.first(x.size()), record.subspan(x.size()));
}

void encode_main_record(std::span<const uint16_t> x, std::span<uint8_t> record) {
  SPARK_CHECK(record.size() == main_record_bytes(x.size()));
  quantise_fp4_block16_e4m3(x, record.first(x.size() / 2), record.subspan(x.size() / 2));
}

void encode_index_record(std::span<const uint16_t> x, std::span<uint8_t> record) {
  SPARK_CHECK(record.size() == index_key_record_bytes(x.size()));
  quantise_fp4_block32_ue8m0(x, record.first(x.size() / 2), record.subspan(x.size() / 2));
}

void decode_window_record(std::span<const uint8_t> record, std::span<uint16_t> out) {
  SPARK_CHECK(record.size() == window_record_bytes(out.size()));
  dequantise_fp8_block32(record.first(out.size()), record.subspan(out.size()), out);
}

void decode_main_record(std::span<const uint8_t> record, std::span<uint16_t> out) {
  SPARK_CHECK(record.size() == main_record_bytes(out.size()));
  dequantise_fp4_block16_e4m3(record.first(out.size() / 2), record.subspan(out.size() / 2), out);
}

void decode_index_record(std::span<const uint8_t> record, std::span<uint16_t> out) {
  SPARK_CHECK(record.size() == index_key_record_bytes(out.size()));
  dequantise_fp4_block32_ue8m0(record.first(out.size() / 2), record.subspan(out.size() / 2), out);
}

}  // namespace spark::engine
