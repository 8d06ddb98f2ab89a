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

void Sha256::Free::operator()(void* context) const {
  EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context));
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  if (!context_ || EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_.get()), EVP_sha256(), nullptr) != 1) {
    throw Error("the cryptographic library offers no SHA-256");
  }
}

void Sha256::feed(std::string_view bytes) {
  SPARK_CHECK(EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_.get()), bytes.data(), bytes.size()) == 1);
}

std::string Sha256::hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  SPARK_CHECK(EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_.get()), digest, &length) == 1);
  return hexadecimal(digest, length);
}

std::string sha256_hex_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error("cannot be opened", path);
  Sha256 sum;
  std::vector<char> buffer(size_t{4} << 20);
  while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || file.gcount() > 0) {
    sum.feed({buffer.data(), static_cast<size_t>(file.gcount())});
  }
  if (file.bad()) throw Error("cannot be read to its end", path);
  return sum.hex();
}

}  // namespace spark
