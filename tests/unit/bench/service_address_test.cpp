#include <gtest/gtest.h>

#include "bench/load/http_client.h"

namespace spark::bench {
namespace {

TEST(ServiceAddress, SecretsInItAreRefusedAndNotRepeated) {
  for (const char* url : {"http://host:8000?token=SESAME", "http://host/v1#SESAME", "http://SESAME@host",
                          "ftp://name:SESAME@host", "ftp://host?token=SESAME"}) {
    try {
      const HttpClient client({url, ""});
      FAIL() << url;
    } catch (const Error& error) {
      EXPECT_EQ(error.describe().find("SESAME"), std::string::npos) << error.describe();
      EXPECT_EQ(error.where(), "the service's address");
    }
  }
}

}  // namespace
}  // namespace spark::bench
