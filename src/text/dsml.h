// The markup of tool calls in the model's output, in one place for its writers and readers.
#pragma once

#include <string_view>

namespace spark::text::dsml {

inline constexpr std::string_view kOpenCalls = "<｜DSML｜ calls>";
inline constexpr std::string_view kCloseCalls = "</｜DSML｜ calls>";
inline constexpr std::string_view kOpenCall = "<｜DSML｜ invoke name=\"";
inline constexpr std::string_view kCloseCall = "</｜DSML｜ invoke>";
inline constexpr std::string_view kOpenParameter = "<｜DSML｜ parameter name=\"";
inline constexpr std::string_view kCloseParameter = "</｜DSML｜ parameter>";

// Up to two line breaks before the block belong to it, not to the content.
inline constexpr std::string_view kBreakBeforeCalls = "\n\n";

}  // namespace spark::text::dsml
