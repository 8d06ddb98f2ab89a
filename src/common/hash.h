// SHA-256, as lowercase hexadecimal: file identities, fingerprints, pins.
//
//   sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace spark {

std::string sha256_hex(std::string_view bytes);

// The same of bytes that come in pieces.
class Sha256 {
 public:
  Sha256();
  void feed(std::string_view bytes);
  std::string hex();  // once, at the end

 private:
  struct Free {
    void operator()(void* context) const;
  };
  std::unique_ptr<void, Free> context_;  // OpenSSL's EVP_MD_CTX
};

// The same of a file of any size; Error when it cannot be read to its end.
std::string sha256_hex_of_file(const std::string& path);

}  // namespace spark
