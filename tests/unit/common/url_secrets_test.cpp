#include "common/url_secrets.h"

#include <gtest/gtest.h>

namespace spark {
namespace {

TEST(UrlSecrets, UsersAndQueriesAreLeftOut) {
  EXPECT_EQ(without_url_secrets("https://ghp_1@host/a.git"), "https://...@host/a.git");
  EXPECT_EQ(without_url_secrets("https://name:word@host/a"), "https://...@host/a");
  EXPECT_EQ(without_url_secrets("https://name:wo/rd@host/a"), "https://...@host/a");
  EXPECT_EQ(without_url_secrets("http://host:80/v1?token=x&y=z"), "http://host:80/v1?...");
  EXPECT_EQ(without_url_secrets("ssh://git:word@host/a"), "ssh://git:...@host/a");
}

TEST(UrlSecrets, OtherTextStays) {
  for (const char* text : {"", "git@host:spark/a.git", "ssh://git@host/a", "https://host/a@b",
                           "https://host:80/a@b", "host:80", "a?b", "https://host/?", "://"}) {
    EXPECT_EQ(without_url_secrets(text), text);
  }
}

TEST(UrlSecrets, EveryAddressOfATextLosesThem) {
  EXPECT_EQ(text_without_url_secrets("fatal: unable to access 'https://name:word@host/a.git/': refused"),
            "fatal: unable to access 'https://...@host/a.git/': refused");
  EXPECT_EQ(text_without_url_secrets("x=https://t@a y=ssh://git:w@b\nhttp://c/?token=d"),
            "x=https://...@a y=ssh://git:...@b\nhttp://c/?...");
  for (const char* text : {"", "a", "://", "a :// b@c", "https://host/a me@there", "git@host:a.git"})
    EXPECT_EQ(text_without_url_secrets(text), text);
}

}  // namespace
}  // namespace spark
