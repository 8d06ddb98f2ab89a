#include "ops/remote/protocol.h"

#include <gtest/gtest.h>

#include "common/process.h"
#include "ops/remote/transport_fault.h"

namespace spark::ops {
namespace {

const std::string kStart = "\036spark-start n1\n";

TEST(Protocol, Base64OfEveryRemainder) {
  EXPECT_EQ(base64_text(""), "");
  EXPECT_EQ(base64_text("f"), "Zg==");
  EXPECT_EQ(base64_text("fo"), "Zm8=");
  EXPECT_EQ(base64_text("foo"), "Zm9v");
  EXPECT_EQ(base64_text(std::string("\0\xff\x80", 3)), "AP+A");
}

TEST(Protocol, MarksSplitNoiseFromText) {
  const MarkedText text = split_marked("banner\n" + kStart + "a\nb", "n1");
  EXPECT_TRUE(text.started);
  EXPECT_EQ(text.before, "banner\n");
  EXPECT_EQ(text.text, "a\nb");
  EXPECT_FALSE(text.exit_code);
}

TEST(Protocol, EndMarkCarriesTheExitCode) {
  const MarkedText text = split_marked(kStart + "oops\n\036spark-end n1 42\nlate", "n1");
  EXPECT_EQ(text.exit_code, 42);
  EXPECT_EQ(text.text, "oops\nlate");
}

TEST(Protocol, MarksOfAnotherCallAndCutMarksAreText) {
  EXPECT_FALSE(split_marked(kStart, "n2").started);
  EXPECT_FALSE(split_marked(kStart + "\036spark-end n1 4", "n1").exit_code);
  EXPECT_FALSE(split_marked(kStart + "\036spark-end n1 x\n", "n1").exit_code);
}

TEST(Protocol, CommandLineIsOneLineAndHasNoQuotesThatShellsDisagreeOn) {
  const std::string line = remote_command_line("n1", 1.5, true);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(line.find('!' + std::string("!")), std::string::npos);
  EXPECT_NE(line.find(" spark n1 4 root "), std::string::npos);
}

TEST(Protocol, TruncatedScriptIsNotBegun) {
  const std::string input = remote_input("echo harm", "");
  for (size_t length : {size_t{0}, size_t{5}, input.find('\n'), input.size() - 1}) {
    const ProcessResult result =
        run_process({"sh", "-c", remote_command_line("n1", 5, false)}, {.input = input.substr(0, length)});
    EXPECT_EQ(result.output, "") << length;
    EXPECT_NE(result.exit_code, 0) << length;
  }
}

TEST(TransportFaults, AreReadFromTheClientsWords) {
  const auto fault = [](const char* text) {
    return std::string(transport_fault_name(transport_fault(text)));
  };
  EXPECT_EQ(fault("ssh: Could not resolve hostname nodeX: Name or service not known"), "unknown-host");
  EXPECT_EQ(fault("ssh: connect to host a port 22: Connection refused"), "refused");
  EXPECT_EQ(fault("ssh: connect to host a port 22: No route to host"), "no-route");
  EXPECT_EQ(fault("ssh: connect to host a port 22: Connection timed out"), "timeout");
  EXPECT_EQ(fault("Timeout, server a not responding."), "timeout");
  EXPECT_EQ(fault("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed."),
            "host-key");
  EXPECT_EQ(fault("u@a: Permission denied (publickey)."), "authentication");
  EXPECT_EQ(fault("kex_exchange_identification: read: Connection reset by peer"), "closed");
  EXPECT_EQ(fault("/x/config: line 1: Bad configuration option: foo"), "configuration");
  EXPECT_EQ(fault("something new"), "other");
}

}  // namespace
}  // namespace spark::ops
