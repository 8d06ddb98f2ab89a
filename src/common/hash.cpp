#include "common/hash.h"

#include <openssl/evp.h>

#include <fstream>
#include <memory>
#include <vector>

#include "common/error.h"

namespace spark {
namespace {

std::string hexadecimal(const unsigned char* digest, unsigned length) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * size_t{length});
  for (unsigned i = 0; i < length; ++i) {
    text += kDigits[digest[i] >> 4];
    text += kDigits[digest[i] & 15];
  }
  return text;
}

}  // namespace

std::string sha256_hex(std::string_view bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest, &length, EVP_sha256(), nullptr) != 1) {
    throw Error("the cryptographic library offers no SHA-256");
  }
  return hexadecimal(digest, length);
}

std::string sha256_hex_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error("cannot be opened", path);
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  if (!context || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1) {
    throw Error("the cryptographic library offers no SHA-256");
  }
  std::vector<char> buffer(size_t{4} << 20);
  while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || file.gcount() > 0) {
    SPARK_CHECK(EVP_DigestUpdate(context.get(), buffer.data(), static_cast<size_t>(file.gcount())) == 1);
  }
  if (file.bad()) throw Error("cannot be read to its end", path);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  SPARK_CHECK(EVP_DigestFinal_ex(context.get(), digest, &length) == 1);
  return hexadecimal(digest, length);
}

}  // namespace spark
