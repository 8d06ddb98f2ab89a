#include "ops/fabric/drawing.h"

#include <array>
#include <map>

#include "common/units.h"

namespace spark::ops {
namespace {

constexpr double kBoxWidth = 220;
constexpr double kBoxHeight = 110;
constexpr double kWidth = 900;
constexpr double kLegendTop = 520;
constexpr double kLegendLine = 22;
constexpr std::array<const char*, 4> kColours = {"#0b61a4", "#b34700", "#2e7d32", "#7b1fa2"};

struct Point {
  double x = 0;
  double y = 0;
};

std::string number(double value) {
  return format_fixed(value, 0);
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string text_at(Point at, const std::string& text, const char* style = "") {
  return "  <text x=\"" + number(at.x) + "\" y=\"" + number(at.y) + "\" " + style + ">" + escaped(text) +
         "</text>\n";
}

// Top left corners of the machines, clockwise from rank 0.
Point corner(FabricShape shape, int64_t rank) {
  if (shape == FabricShape::kTriangle) {
    constexpr std::array<Point, 3> kAt = {{{340, 70}, {600, 350}, {80, 350}}};
    return kAt[static_cast<size_t>(rank)];
  }
  constexpr std::array<Point, 4> kAt = {{{80, 70}, {600, 70}, {600, 350}, {80, 350}}};
  return kAt[static_cast<size_t>(rank)];
}

// Middle of a port's square. An end whose port is unknown is drawn where the convention puts it.
Point port_at(FabricShape shape, const CableEnd& end, int conventional) {
  const Point box = corner(shape, end.rank);
  const int port = end.port < 0 ? conventional : end.port;
  return {box.x + (port == 0 ? 60 : kBoxWidth - 60), box.y + kBoxHeight - 30};
}

std::string machine(FabricShape shape, const CableEnd& end) {
  const Point at = corner(shape, end.rank);
  std::string svg = "  <rect x=\"" + number(at.x) + "\" y=\"" + number(at.y) + "\" width=\"" +
                    number(kBoxWidth) + "\" height=\"" + number(kBoxHeight) +
                    "\" rx=\"10\" fill=\"#f4f4f0\" stroke=\"#444\"/>\n";
  svg += text_at({at.x + 14, at.y + 28}, end.node, "font-weight=\"bold\" font-size=\"18\"");
  svg +=
      text_at({at.x + 14, at.y + 48}, "rank " + std::to_string(end.rank) + (end.rank == 0 ? ", head" : ""));
  for (const int port : {0, 1}) {
    const double x = at.x + (port == 0 ? 60 : kBoxWidth - 60);
    const double y = at.y + kBoxHeight - 30;
    svg += "  <rect x=\"" + number(x - 30) + "\" y=\"" + number(y - 14) +
           "\" width=\"60\" height=\"28\" rx=\"3\" fill=\"#fff\" stroke=\"#444\"/>\n";
    svg += text_at({x, y + 5}, "port " + std::to_string(port), "text-anchor=\"middle\"");
  }
  return svg;
}

std::string end_text(const CableEnd& end) {
  return end.node + (end.port < 0 ? "" : " port " + std::to_string(end.port));
}

}  // namespace

std::string layout_svg(const FabricLayout& layout) {
  size_t lines = 0;
  for (const Cable& cable : layout.cables) lines += 1 + cable.paths.size();
  const double height = kLegendTop + kLegendLine * static_cast<double>(lines + 1);
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + number(kWidth) + " " +
                    number(height) + "\" font-family=\"sans-serif\" font-size=\"14\">\n";
  svg += "  <title>Fabric cables</title>\n  <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
  svg += text_at({80, 36},
                 layout.shape == FabricShape::kRing4
                     ? "Ring of four: each machine to the one before and the one after"
                     : "Triangle of three: every pair of machines",
                 "font-size=\"20\"");
  for (const Cable& cable : layout.cables) svg += machine(layout.shape, cable.a);
  for (size_t i = 0; i < layout.cables.size(); ++i) {
    const Cable& cable = layout.cables[i];
    const Point from = port_at(layout.shape, cable.a, 0);
    const Point to = port_at(layout.shape, cable.b, 1);
    // Ports lie low on the machines; the bow keeps a cable off the boxes and off its neighbours.
    const Point bow = {(from.x + to.x) / 2 + (450 - (from.x + to.x) / 2) * 0.3,
                       (from.y + to.y) / 2 + (cable.a.rank == 0 && from.y == to.y ? 90 : 50)};
    svg += "  <path d=\"M " + number(from.x) + " " + number(from.y + 14) + " Q " + number(bow.x) + " " +
           number(bow.y) + " " + number(to.x) + " " + number(to.y + 14) + "\" fill=\"none\" stroke=\"" +
           kColours[i % kColours.size()] + "\" stroke-width=\"4\"/>\n";
    const Point middle = {(from.x + 2 * bow.x + to.x) / 4, (from.y + 2 * bow.y + to.y) / 4 + 14};
    svg += "  <circle cx=\"" + number(middle.x) + "\" cy=\"" + number(middle.y) + "\" r=\"13\" fill=\"" +
           kColours[i % kColours.size()] + "\"/>\n";
    svg += text_at({middle.x, middle.y + 5}, std::to_string(i + 1),
                   "text-anchor=\"middle\" fill=\"#fff\" font-weight=\"bold\"");
  }
  double y = kLegendTop;
  for (size_t i = 0; i < layout.cables.size(); ++i) {
    const Cable& cable = layout.cables[i];
    svg += text_at({80, y},
                   "Cable " + std::to_string(i + 1) + ": " + end_text(cable.a) + " to " + end_text(cable.b),
                   "font-weight=\"bold\"");
    y += kLegendLine;
    for (const CablePath& path : cable.paths) {
      const auto side = [](const StripeEnd& end) {
        const std::string name = end.netdev.empty() ? end.device : end.netdev;
        return name + (end.address.empty() ? "" : " " + end.address);
      };
      svg += text_at({104, y},
                     "path " + std::to_string(path.stripe + 1) + ": " + side(path.a) + " to " + side(path.b));
      y += kLegendLine;
    }
  }
  return svg + "</svg>\n";
}

}  // namespace spark::ops
