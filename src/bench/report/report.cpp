#include "bench/report/report.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "common/printable.h"
#include "common/table.h"
#include "common/units.h"

namespace spark::bench {
namespace {

double rounded(double value, int digits) {
  const double factor = std::pow(10, digits);
  return std::round(value * factor) / factor;
}

Json optional_number(const std::optional<double>& value, int digits) {
  return value ? Json(rounded(*value, digits)) : Json(nullptr);
}

Json describe_json(const std::vector<double>& values) {
  const Description d = describe(values);
  Json json{{"n", d.n}};
  if (d.n == 0) return json;
  json["mean"] = rounded(d.mean, 4);
  json["median"] = rounded(d.median, 4);
  json["min"] = rounded(d.min, 4);
  json["max"] = rounded(d.max, 4);
  json["sd"] = optional_number(d.sd, 4);
  json["ci95"] = optional_number(d.ci95, 4);
  json["ci95_pct"] = optional_number(d.ci95_pct, 2);
  return json;
}

using Metric = std::function<std::optional<double>(const DecodeSample&)>;

std::vector<double> values_of(const DecodePoint& point, const Metric& metric) {
  std::vector<double> values;
  for (const DecodeSample& sample : point.samples) {
    if (!sample.complete()) continue;
    if (const auto value = metric(sample)) values.push_back(*value);
  }
  return values;
}

Json receipt_json(const Receipt& receipt, double origin_s) {
  Json json{{"ok", receipt.ok},
            {"ttft_s", rounded(receipt.first_s - receipt.start_s, 6)},
            {"first_s", rounded(receipt.first_s - origin_s, 6)},
            {"last_s", rounded(receipt.last_s - origin_s, 6)},
            {"prompt_tokens", receipt.prompt_tokens},
            {"completion_tokens", receipt.completion_tokens},
            {"finish_reason", receipt.finish_reason},
            {"output_sha256", receipt.output_sha256},
            {"reasoning_chars", receipt.reasoning_chars},
            {"content_chars", receipt.content_chars}};
  if (!receipt.error.empty()) json["error"] = receipt.error;
  return json;
}

const Receipt* first_failure(const DecodePoint& point) {
  for (const DecodeSample& sample : point.samples) {
    for (const Receipt& receipt : sample.receipts) {
      if (!receipt.ok) return &receipt;
    }
  }
  return nullptr;
}

Json point_json(const DecodePoint& point) {
  Json json;
  json["case"] = point.case_name;
  json["concurrency"] = point.concurrency;
  json["tps"] =
      describe_json(values_of(point, [](const DecodeSample& s) { return std::optional(s.metrics.tps); }));
  json["decode_window_tps"] =
      describe_json(values_of(point, [](const DecodeSample& s) { return s.metrics.decode_window_tps; }));
  json["per_stream_tps"] =
      describe_json(values_of(point, [](const DecodeSample& s) { return s.metrics.per_stream_tps; }));
  json["ttft_s"] = describe_json(values_of(point, [](const DecodeSample& s) { return s.metrics.ttft_s; }));
  json["tokens_per_step"] =
      describe_json(values_of(point, [](const DecodeSample& s) { return s.tokens_per_step; }));
  json["failed_requests"] = point.failed_requests();
  if (const Receipt* failure = first_failure(point)) json["first_error"] = failure->error;
  std::set<std::string> outputs;
  for (const DecodeSample& sample : point.samples) {
    for (const Receipt& receipt : sample.receipts) outputs.insert(receipt.output_sha256);
  }
  json["distinct_outputs"] = outputs.size();
  return json;
}

Json samples_json(const DecodePoint& point) {
  Json list = Json::array();
  for (const DecodeSample& sample : point.samples) {
    double origin_s = sample.receipts.empty() ? 0 : sample.receipts[0].start_s;
    for (const Receipt& receipt : sample.receipts) origin_s = std::min(origin_s, receipt.start_s);
    Json json{{"tps", rounded(sample.metrics.tps, 3)},
              {"decode_window_tps", optional_number(sample.metrics.decode_window_tps, 3)},
              {"per_stream_tps", optional_number(sample.metrics.per_stream_tps, 3)},
              {"ttft_s", optional_number(sample.metrics.ttft_s, 6)},
              {"tokens_per_step", optional_number(sample.tokens_per_step, 4)},
              {"receipts", Json::array()}};
    for (const Receipt& receipt : sample.receipts)
      json["receipts"].push_back(receipt_json(receipt, origin_s));
    list.push_back(std::move(json));
  }
  return list;
}

std::string cell(const JsonReader& description, double factor, int digits, bool with_interval) {
  const auto mean = description.field("mean").optional_number();
  if (!mean) return "-";
  std::string text = format_fixed(*mean * factor, digits);
  const Json* ci = description.field("ci95_pct").json();
  if (with_interval && ci != nullptr && ci->is_number())
    text += interval_text(static_cast<size_t>(description.field("n").integer(0)), ci->get<double>());
  return text;
}

}  // namespace

bool DecodeSample::complete() const {
  return std::all_of(receipts.begin(), receipts.end(), [](const Receipt& receipt) { return receipt.ok; });
}

size_t DecodePoint::failed_requests() const {
  size_t count = 0;
  for (const DecodeSample& sample : samples) {
    count += static_cast<size_t>(std::count_if(sample.receipts.begin(), sample.receipts.end(),
                                               [](const Receipt& receipt) { return !receipt.ok; }));
  }
  return count;
}

bool Report::failed() const {
  return !aborted.empty() || std::any_of(points.begin(), points.end(), [](const DecodePoint& point) {
    return point.failed_requests() > 0;
  });
}

Json report_json(const Report& report) {
  Json json{{"schema", kReportSchema},
            {"started_utc", report.started_utc},
            {"finished_utc", report.finished_utc},
            {"identity",
             {{"model", report.model},
              {"server_version", report.server_version},
              {"client_version", report.client_version},
              {"client_host", report.host}}},
            {"workload",
             {{"url", report.url},
              {"prompt_set", report.prompt_set},
              {"precision_pct", report.precision_pct},
              {"min_samples", report.min_samples},
              {"max_samples", report.max_samples},
              {"seed", report.seed}}}};
  if (report.deployment.is_object()) json["identity"].update(report.deployment);
  Json points = Json::object();
  Json samples = Json::object();
  for (const DecodePoint& point : report.points) {
    points[point.name()] = point_json(point);
    samples[point.name()] = samples_json(point);
  }
  json["suites"]["decode"] = {{"points", std::move(points)}, {"samples", std::move(samples)}};
  json["discarded_samples"] = Json::array();
  for (const DiscardedSample& sample : report.discarded) {
    json["discarded_samples"].push_back({{"label", sample.label},
                                         {"attempt", sample.attempt},
                                         {"reason", sample.reason},
                                         {"foreign", sample.foreign}});
  }
  if (!report.aborted.empty()) json["aborted"] = report.aborted;
  return json;
}

std::string report_table(const Json& report, const std::string& source) {
  Faults faults;
  const JsonReader root(report, "", faults);
  root.field("schema").integer(kReportSchema, kReportSchema);
  Table table({{"point", Align::kLeft},
               {"n", Align::kRight},
               {"decode tok/s", Align::kRight},
               {"per stream tok/s", Align::kRight},
               {"TTFT ms", Align::kRight},
               {"tokens/step", Align::kRight},
               {"failed", Align::kRight}});
  std::string failures;
  for (const auto& [name, point] : root.field("suites").field("decode").field("points").members()) {
    table.add({name, std::to_string(point.field("tps").field("n").integer(0)),
               cell(point.field("decode_window_tps"), 1, 1, true),
               cell(point.field("per_stream_tps"), 1, 1, true), cell(point.field("ttft_s"), 1000, 1, true),
               cell(point.field("tokens_per_step"), 1, 2, false),
               std::to_string(point.field("failed_requests").integer(0))});
    if (const auto error = point.field("first_error").optional_string()) {
      failures += "\nFAIL: " + one_line(name) + ": a request failed: " + one_line(*error);
    }
  }
  const std::string model = root.field("identity").field("model").string();
  const std::string url = root.field("workload").field("url").string();
  const std::string prompt_set = root.field("workload").field("prompt_set").string();
  const auto aborted = root.field("aborted").optional_string();
  throw_if_any(faults, source, "this is no bench.json of schema " + std::to_string(kReportSchema));
  std::string text = one_line(model) + " at " + one_line(url) + ", prompt set " + one_line(prompt_set) +
                     "; means with the half-width of their 95 % interval\n\n" + table.text();
  if (!failures.empty()) text += failures + "\n";
  if (aborted) text += "\nFAIL: stopped early: " + fit_lines(*aborted, "  ") + "\n";
  return text;
}

}  // namespace spark::bench
