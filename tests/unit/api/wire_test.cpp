#include <gtest/gtest.h>

#include <cmath>

#include "api/json_text.h"
#include "api/prometheus.h"
#include "api/response.h"
#include "api/sse.h"
#include "common/error.h"

namespace spark::api {
namespace {

TEST(Sse, ReadsAStreamCutAnywhere) {
  const std::string stream =
      "\xEF\xBB\xBF: hello\r\n\r\ndata: {\"a\":1}\r\n\r\nevent: x\nid: 7\ndata: one\ndata:two\ndata\n\ndata: "
      "[DONE]\r\rdata: cut";
  for (size_t cut = 1; cut < stream.size(); ++cut) {
    SseReader reader;
    std::vector<SseEvent> events;
    const auto keep = [&](const SseEvent& event) { events.push_back(event); };
    reader.feed(std::string_view(stream).substr(0, cut), keep);
    reader.feed(std::string_view(stream).substr(cut), keep);
    ASSERT_EQ(events.size(), 3u) << cut;
    EXPECT_EQ(events[0].data, "{\"a\":1}");
    EXPECT_EQ(events[0].event, "");
    EXPECT_EQ(events[1].data, "one\ntwo\n");
    EXPECT_EQ(events[1].event, "x");
    EXPECT_EQ(events[1].id, "7");
    EXPECT_EQ(events[2].data, kSseDone);
    EXPECT_TRUE(reader.inside_event());
  }
}

TEST(Sse, ReadsWhatItWrites) {
  SseReader reader;
  std::string seen;
  reader.feed(sse_comment("keep-alive") + sse_data("x") + sse_data("") + sse_data("y"),
              [&](const SseEvent& event) { seen += event.data + "|"; });
  EXPECT_EQ(seen, "x||y|");
  EXPECT_FALSE(reader.inside_event());
}

TEST(Sse, BoundsAnEvent) {
  SseReader reader(10);
  EXPECT_THROW(reader.feed("data: 12345678901", [](const SseEvent&) {}), Error);
}

TEST(Metrics, WhatIsWrittenIsRead) {
  Histogram latency({0.1, 1.0});
  for (const double value : {0.05, 0.1, 0.5, 7.0}) latency.observe(value);
  MetricsWriter page;
  page.family("a_total", "counter", "One\nline.");
  page.sample("a_total", {{"m", "x\"\\\n y{}"}, {"reason", "stop"}}, 3);
  page.sample("a_total", {{"m", "z"}, {"reason", "length"}}, 0.1);
  page.sample("a_total_more", {}, 100);
  page.histogram("t_seconds", {{"m", "x"}}, latency);
  const MetricsPage seen = parse_metrics(page.text());
  EXPECT_DOUBLE_EQ(seen.sum("a_total").value(), 3.1);
  EXPECT_EQ(seen.sum("a_total_more"), 100);
  EXPECT_EQ(seen.sum("a"), std::nullopt);
  EXPECT_EQ(seen.sum_where("a_total", "m", "x\"\\\n y{}"), 3);
  EXPECT_EQ(seen.sum_where("t_seconds_bucket", "le", "0.1"), 2);
  EXPECT_EQ(seen.sum_where("t_seconds_bucket", "le", "1"), 3);
  EXPECT_EQ(seen.sum_where("t_seconds_bucket", "le", "+Inf"), 4);
  EXPECT_EQ(seen.sum("t_seconds_count"), 4);
  EXPECT_DOUBLE_EQ(seen.sum("t_seconds_sum").value(), 7.65);
}

TEST(Metrics, ReadsOtherServersPages) {
  const MetricsPage seen = parse_metrics(
      "# TYPE x gauge\r\n\nx{a=\"1\",} 1.5e3 1700000000000\n  y NaN\nz{ a = \"q\" } +Inf\nx 1\n");
  EXPECT_EQ(seen.sum("x"), 1501);
  EXPECT_TRUE(std::isnan(seen.sum("y").value()));
  EXPECT_TRUE(std::isinf(seen.sum("z").value()));
}

TEST(Metrics, NamesTheLineThatIsNoSample) {
  for (const char* bad : {"x", "x y", "x{a=1} 2", "x{a=\"1} 2", "{a=\"1\"} 2", "x{a", "x{a=\"\\", "x 1z"}) {
    try {
      parse_metrics(std::string("ok 1\n") + bad);
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("line 2"), std::string::npos) << error.what();
    }
  }
}

TEST(ChatResponse, SurvivesTheWire) {
  ChatResponse chunk;
  chunk.id = "chatcmpl-1";
  chunk.created = 5;
  chunk.model = "m";
  chunk.is_chunk = true;
  ChatChoice choice;
  choice.role = "assistant";
  choice.content = "h\xC3";  // half a character
  choice.reasoning = "why";
  choice.logprobs = {{{"h", "h", -0.5}, {{"h", "h", -0.5}, {"j", "j", -1.5}}}};
  choice.finish_reason = kFinishStop;
  choice.stop_reason = 7;
  choice.token_ids = {{3, 4}};
  chunk.choices = {choice};
  chunk.usage = Usage{.prompt_tokens = 3,
                      .completion_tokens = 2,
                      .cached_tokens = 1,
                      .reasoning_tokens = {},
                      .accepted_prediction_tokens = {},
                      .rejected_prediction_tokens = {}};
  const ChatResponse back = parse_chat_response(json_text(chunk.json()));
  EXPECT_TRUE(back.is_chunk);
  EXPECT_EQ(back.choices.at(0).content, "h\xEF\xBF\xBD");
  EXPECT_EQ(back.choices.at(0).reasoning, "why");
  EXPECT_EQ(back.choices.at(0).logprobs->at(0).top.at(1).token, "j");
  EXPECT_EQ(back.choices.at(0).logprobs->at(0).top.at(1).bytes, "j");
  EXPECT_EQ(back.choices.at(0).stop_reason, Json(7));
  EXPECT_EQ(back.choices.at(0).token_ids, (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(back.usage->cached_tokens, 1);
  EXPECT_EQ(json_text(back.json()), json_text(chunk.json()));
}

TEST(CompletionResponse, SurvivesTheWire) {
  CompletionResponse whole;
  CompletionChoice choice;
  choice.text = "\xC3\xA9!";
  choice.text_offset = 10;
  choice.logprobs = {{{"\xC3\xA9", "", -1}, {}}, {{"!", "", -2}, {{"?", "", -1.5}}}};
  choice.finish_reason = kFinishLength;
  whole.choices = {choice};
  const Json json = whole.json();
  EXPECT_EQ(json["choices"][0]["logprobs"]["text_offset"], Json::array({10, 11}));
  EXPECT_EQ(json["choices"][0]["logprobs"]["top_logprobs"][1].size(), 2u);
  const CompletionResponse back = parse_completion_response(json_text(json));
  EXPECT_EQ(back.choices.at(0).text, choice.text);
  EXPECT_EQ(back.choices.at(0).logprobs->at(1).chosen.logprob, -2);
}

TEST(Responses, ClientsTakeWhatIsThere) {
  EXPECT_EQ(parse_chat_response("{}").choices.size(), 0u);
  EXPECT_EQ(parse_chat_response(R"({"choices":[1,{"delta":{"reasoning":"r"}}],"usage":null})")
                .choices.at(0)
                .reasoning,
            "r");
  EXPECT_THROW(parse_chat_response("[]"), Error);
  EXPECT_THROW(parse_completion_response("{"), Error);
}

}  // namespace
}  // namespace spark::api
