#include "ops/doctor/secrets.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "common/file.h"
#include "common/process.h"
#include "ops/doctor/doctor.h"
#include "unit/temporary_folder.h"

namespace spark::ops {
namespace {

// Credentials in a source file would be found by the very check; they are put together here.
std::string token(const std::string& prefix, size_t length) {
  static const std::string kText = "Zx8Kq1Lm9Pw3Vt6Yb2Nd4Rf7Gh5Js0Ca1Zx8Kq1Lm9";
  return prefix + kText.substr(0, length);
}

std::vector<std::string> kinds(const std::string& file, const std::string& text) {
  std::vector<std::string> result;
  for (const SecretHit& hit : find_secrets(file, text))
    result.push_back(std::to_string(hit.line) + " " + hit.kind);
  return result;
}

using Kinds = std::vector<std::string>;

TEST(Secrets, FileNames) {
  for (const char* name : {".env", "a/id_rsa", "x/id_ed25519", "credentials.json", "tls.pem", "server.key",
                           "prod.local.env", "config/nodes.local.json"}) {
    EXPECT_NE(forbidden_name(name), "") << name;
  }
  for (const char* name : {"env", "id_rsa.pub", "keys.md", "nodes.example.json", "a.env", "keyboard"}) {
    EXPECT_EQ(forbidden_name(name), "") << name;
  }
}

TEST(Secrets, KnownTokens) {
  EXPECT_EQ(kinds("a", "first\nx = " + token("gh"
                                             "p_",
                                             30)),
            Kinds{"2 a GitHub token"});
  EXPECT_EQ(kinds("a", token("github"
                             "_pat_",
                             22)),
            Kinds{"1 a GitHub token"});
  EXPECT_EQ(kinds("a", "\"" +
                           token("h"
                                 "f_",
                                 34) +
                           "\""),
            Kinds{"1 a Hugging Face token"});
  EXPECT_EQ(kinds("a", token("ts"
                             "key-",
                             24)),
            Kinds{"1 a Tailscale key"});
  EXPECT_EQ(kinds("a",
                  "-----BEGIN OPENSSH "
                  "PRIVATE "
                  "KEY-----"),
            Kinds{"1 a private key"});
  EXPECT_EQ(kinds("a",
                  "-----BEGIN "
                  "PRIVATE "
                  "KEY-----"),
            Kinds{"1 a private key"});
}

TEST(Secrets, NearMisses) {
  EXPECT_EQ(kinds("a", token("gh"
                             "p_",
                             19)),
            Kinds{});  // too short
  EXPECT_EQ(kinds("a", "x" + token("h"
                                   "f_",
                                   30)),
            Kinds{});  // inside a word
  EXPECT_EQ(kinds("a", "-----BEGIN CERTIFICATE-----"), Kinds{});
  EXPECT_EQ(kinds("a", "task-based-scheduling-of-many-small-requests-and-more"), Kinds{});
  EXPECT_EQ(kinds("a", "sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"), Kinds{});
  EXPECT_EQ(kinds("a", "secret_environment_file = /etc/spark/api.env"), Kinds{});
}

TEST(Secrets, RandomTextBesideASecretsName) {
  EXPECT_EQ(kinds("a", "password = \"" + token("", 32) + "\""),
            Kinds{"1 a random text beside the name of a secret"});
  EXPECT_EQ(kinds("a", "API_KEY=" + token("", 32)), Kinds{"1 a random text beside the name of a secret"});
  EXPECT_EQ(kinds("a", "label = \"" + token("", 32) + "\""), Kinds{});
  EXPECT_EQ(kinds("a", "password = \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\""), Kinds{});
}

class GitFolder {
 public:
  void git(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"git", "-C", path_});
    const ProcessResult result = run_process(arguments);
    ASSERT_EQ(result.exit_code, 0) << result.error;
  }
  const std::string& path() const { return path_; }

 private:
  const test::TemporaryFolder temporary_;
  std::string path_ = temporary_.path();
};

TEST(Secrets, TrackedFilesOnly) {
  const GitFolder folder;
  folder.git({"init", "-q"});
  write_file_atomic(folder.path() + "/clean.txt", "nothing\n");
  write_file_atomic(folder.path() + "/bad.txt", token("gh"
                                                      "p_",
                                                      30) +
                                                    "\n");
  write_file_atomic(folder.path() + "/untracked.txt", token("gh"
                                                            "p_",
                                                            30) +
                                                          "\n");
  write_file_atomic(folder.path() + "/large.bin", std::string(3000, 'x'));
  std::filesystem::create_symlink("/etc/passwd", folder.path() + "/server.key");
  folder.git({"add", "clean.txt", "bad.txt", "large.bin", "server.key"});
  const SecretScan scan = scan_tracked_files(Repository(folder.path()), 2000);
  EXPECT_EQ(scan.failure, "");
  EXPECT_EQ(scan.files, 4u);
  EXPECT_EQ(scan.not_scanned, std::vector<std::string>{"large.bin"});
  ASSERT_EQ(scan.hits.size(), 2u);
  EXPECT_EQ(scan.hits[0].file, "bad.txt");
  EXPECT_EQ(scan.hits[0].line, 1u);
  EXPECT_EQ(scan.hits[1].file, "server.key");

  Site site;  // no profile at all: the tracked files are judged all the same
  const Findings findings = diagnose(site, &scan);
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_EQ(findings[0].rule, "secrets.tracked");
  EXPECT_EQ(findings[0].severity, Severity::kWarning);
  EXPECT_EQ(findings[1].file, "bad.txt");
  EXPECT_EQ(findings_text(findings).find(token("gh"
                                               "p_",
                                               30)),
            std::string::npos);  // never the secret itself
}

// Two megabytes without a line end, full of beginnings: one look at each, not one at the rest of the line for
// each.
TEST(Secrets, OneLongLineIsReadOnce) {
  const std::string begin = std::string("gh") + "p_";
  std::string line;
  while (line.size() < kSecretScanLimit) line += begin;
  EXPECT_EQ(kinds("a", line).size(), 1u);  // one long word, which could be a token
  std::string words;
  while (words.size() < kSecretScanLimit) words += begin + "x ";
  EXPECT_TRUE(kinds("a", words).empty());
  std::string names;
  while (names.size() < kSecretScanLimit) names += "secret ";
  EXPECT_TRUE(kinds("a", names).empty());
  EXPECT_EQ(kinds("a", "no\n" + words + "\n" + token(begin, 30)), Kinds{"3 a GitHub token"});
}

TEST(Secrets, WhatCannotBeListedIsNotClean) {
  const GitFolder folder;
  const SecretScan scan = scan_tracked_files(Repository(folder.path()));
  EXPECT_NE(scan.failure, "");
  EXPECT_TRUE(has_error(diagnose(Site{}, &scan)));
}

}  // namespace
}  // namespace spark::ops
