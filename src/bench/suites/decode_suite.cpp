#include "bench/suites/decode_suite.h"

#include <algorithm>
#include <random>

#include "common/units.h"

namespace spark::bench {
namespace {

constexpr double kShortRequest_s = 10;

DecodeSample take_sample(const HttpClient& client, const std::string& model, const Case& item,
                         const DecodePoint& point, WaveOptions options,
                         std::vector<DiscardedSample>& discarded) {
  std::vector<std::string> payloads;
  for (int stream = 0; stream < point.concurrency; ++stream)
    payloads.push_back(chat_payload(item, model, stream));
  options.stream.max_tokens = item.max_tokens;
  Wave wave = run_wave(client, point.name(), payloads, options, discarded);
  std::vector<StreamTiming> timing;
  for (const Receipt& r : wave.receipts)
    timing.push_back({r.ok, r.start_s, r.first_s, r.last_s, r.completion_tokens});
  DecodeSample sample;
  sample.metrics = sample_metrics(timing, wave.wall_s);
  if (wave.delta.drafts > 0) sample.tokens_per_step = 1 + wave.delta.accepted_tokens / wave.delta.drafts;
  sample.receipts = std::move(wave.receipts);
  return sample;
}

Description describe_rate(const DecodePoint& point) {
  std::vector<double> values;
  for (const DecodeSample& sample : point.samples) {
    if (sample.complete() && sample.metrics.decode_window_tps)
      values.push_back(*sample.metrics.decode_window_tps);
  }
  Description result = describe(values);
  result.n = point.samples.size();  // failed samples count towards the maximum
  return result;
}

// std::shuffle's order is not specified across libraries; a report's seed must mean one order.
void shuffle(std::vector<size_t>& order, std::mt19937_64& random) {
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
}

}  // namespace

std::string served_model(const HttpClient& client, const std::string& wanted) {
  const HttpReply reply = client.get("/v1/models", kShortRequest_s);
  if (!reply.error.empty()) {
    throw Unreachable("does not answer: " + reply.error, client.base_url(),
                      "check the address and the service");
  }
  if (!reply.ok()) {
    throw Error("answers with HTTP " + std::to_string(reply.status), client.base_url() + "/v1/models",
                reply.status == 401 ? "give the service's key with --api-key-file"
                                    : "is this the address of an OpenAI-compatible service?");
  }
  const Json json = parse_json(reply.body, "/v1/models");
  Faults faults;
  std::vector<std::string> names;
  for (const JsonReader& model : JsonReader(json, "", faults).field("data").items()) {
    names.push_back(model.field("id").string());
  }
  throw_if_any(faults, "/v1/models");
  if (names.empty()) throw Error("lists no model", client.base_url() + "/v1/models");
  if (wanted.empty()) return names.front();
  if (std::find(names.begin(), names.end(), wanted) != names.end()) return wanted;
  std::string known;
  for (const std::string& name : names) known += (known.empty() ? "" : ", ") + name;
  throw Error("does not serve \"" + wanted + "\"", client.base_url(), "it serves: " + known);
}

std::string served_version(const HttpClient& client) {
  const HttpReply reply = client.get("/version", kShortRequest_s);
  if (!reply.ok()) return {};
  try {
    const Json json = parse_json(reply.body, "/version");
    return json.is_object() && json.contains("version") && json["version"].is_string()
               ? json["version"].get<std::string>()
               : std::string();
  } catch (const Error&) {
    return {};  // the version is a courtesy; servers without one are measured all the same
  }
}

void run_decode_suite(const HttpClient& client, const std::string& model, const DecodeSuiteOptions& options,
                      Report& report, const std::function<void(const std::string&)>& progress) {
  const size_t first = report.points.size();
  std::vector<const Case*> case_of;
  for (const Case& item : options.cases) {
    for (const int concurrency : options.concurrency) {
      report.points.push_back({item.name, concurrency, {}});
      case_of.push_back(&item);
    }
  }
  std::mt19937_64 random(options.seed);
  std::vector<size_t> open(case_of.size());
  for (size_t i = 0; i < open.size(); ++i) open[i] = i;
  shuffle(open, random);
  progress("warm-up: one sample of each of " + std::to_string(open.size()) + " points");
  for (const size_t i : open) {
    take_sample(client, model, *case_of[i], report.points[first + i], options.wave, report.discarded);
  }
  for (int round = 1; !open.empty(); ++round) {
    shuffle(open, random);
    for (const size_t i : open) {
      DecodePoint& point = report.points[first + i];
      point.samples.push_back(take_sample(client, model, *case_of[i], point, options.wave, report.discarded));
    }
    std::string line = "round " + std::to_string(round) + ":";
    std::vector<size_t> still_open;
    for (const size_t i : open) {
      const Description rate = describe_rate(report.points[first + i]);
      line += " " + report.points[first + i].name() + " " + format_fixed(rate.mean, 1) + " tok/s" +
              interval_text(rate.n, rate.ci95_pct);
      if (!converged(rate, options.min_samples, options.max_samples, options.precision_pct))
        still_open.push_back(i);
    }
    progress(line);
    open = std::move(still_open);
    std::sort(open.begin(), open.end());
  }
}

}  // namespace spark::bench
