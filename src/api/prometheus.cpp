#include "api/prometheus.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "common/error.h"

namespace spark::api {
namespace {

// Shortest text that reads back as the same double.
std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char buffer[40];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  (void)error;  // 40 characters hold every double
  return std::string(buffer, end);
}

std::string escaped(std::string_view text, bool is_label) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '"' && is_label) {
      out += "\\\"";
    } else {
      out += c;
    }
  }
  return out;
}

// One line being read.
class LineReader {
 public:
  LineReader(std::string_view line, size_t number) : line_(line), number_(number) {}

  MetricSample sample() {
    MetricSample out;
    out.name = take_until("{ \t");
    if (out.name.empty()) fail("has no name");
    if (next() == '{') labels(out.labels);
    skip_blanks();
    out.value = number(take_until(" \t"));
    return out;  // a timestamp may follow; nobody here reads it
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error("line " + std::to_string(number_) + " " + what, "metrics");
  }
  char next() const { return at_ < line_.size() ? line_[at_] : '\0'; }
  void skip_blanks() {
    while (next() == ' ' || next() == '\t') ++at_;
  }
  std::string take_until(std::string_view stops) {
    const size_t end = std::min(line_.find_first_of(stops, at_), line_.size());
    std::string out(line_.substr(at_, end - at_));
    at_ = end;
    return out;
  }

  void labels(MetricLabels& out) {
    ++at_;
    for (;;) {
      while (next() == ' ' || next() == '\t' || next() == ',') ++at_;
      if (next() == '}') break;
      std::string key = take_until("= \t");
      skip_blanks();
      at_ += 1;
      skip_blanks();
      if (next() != '"') fail("has a label without a quoted value");
      ++at_;
      out.emplace_back(std::move(key), quoted());
    }
    ++at_;
  }

  std::string quoted() {
    std::string out;
    for (; next() != '"'; ++at_) {
      if (at_ >= line_.size()) fail("has a label whose quotes do not end");
      if (next() != '\\') {
        out += next();
        continue;
      }
      ++at_;
      out += next() == 'n' ? '\n' : next();
    }
    ++at_;
    return out;
  }

  double number(const std::string& text) const {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);  // reads +Inf and NaN, too
    if (text.empty() || end != text.c_str() + text.size()) fail("has \"" + text + "\" for a value");
    return value;
  }

  std::string_view line_;
  size_t number_;
  size_t at_ = 0;
};

}  // namespace

void Histogram::observe(double value) {
  const auto bound = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  ++counts_[static_cast<size_t>(bound - bounds_.begin())];
  ++count_;
  sum_ += value;
}

void MetricsWriter::family(std::string_view name, std::string_view type, std::string_view help) {
  text_.append("# HELP ").append(name).append(" ").append(escaped(help, false)).append("\n");
  text_.append("# TYPE ").append(name).append(" ").append(type).append("\n");
}

void MetricsWriter::sample(std::string_view name, const MetricLabels& labels, double value) {
  text_.append(name);
  for (size_t i = 0; i < labels.size(); ++i) {
    text_.append(i == 0 ? "{" : ",").append(labels[i].first).append("=\"");
    text_.append(escaped(labels[i].second, true)).append("\"");
  }
  if (!labels.empty()) text_.append("}");
  text_.append(" ").append(number_text(value)).append("\n");
}

void MetricsWriter::histogram(std::string_view name, const MetricLabels& labels, const Histogram& histogram) {
  const std::string base(name);
  uint64_t below = 0;
  for (size_t i = 0; i < histogram.counts().size(); ++i) {
    below += histogram.counts()[i];
    MetricLabels with_bound = labels;
    with_bound.emplace_back("le",
                            i < histogram.bounds().size() ? number_text(histogram.bounds()[i]) : "+Inf");
    sample(base + "_bucket", with_bound, static_cast<double>(below));
  }
  sample(base + "_sum", labels, histogram.sum());
  sample(base + "_count", labels, static_cast<double>(histogram.count()));
}

std::optional<std::string> MetricSample::label(std::string_view wanted) const {
  for (const auto& [key, value_text] : labels) {
    if (key == wanted) return value_text;
  }
  return std::nullopt;
}

std::optional<double> MetricsPage::sum(std::string_view name) const {
  std::optional<double> total;
  for (const MetricSample& sample : samples) {
    if (sample.name == name) total = total.value_or(0) + sample.value;
  }
  return total;
}

std::optional<double> MetricsPage::sum_where(std::string_view name, std::string_view label,
                                             std::string_view value) const {
  std::optional<double> total;
  for (const MetricSample& sample : samples) {
    if (sample.name == name && sample.label(label) == value) total = total.value_or(0) + sample.value;
  }
  return total;
}

MetricsPage parse_metrics(std::string_view text) {
  MetricsPage page;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    const size_t first = line.find_first_not_of(" \t");
    if (first == std::string_view::npos || line[first] == '#') continue;
    page.samples.push_back(LineReader(line.substr(first), number).sample());
  }
  return page;
}

}  // namespace spark::api
