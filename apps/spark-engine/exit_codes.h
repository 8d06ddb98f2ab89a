// How spark-engine ends.
#pragma once

namespace spark::app {

inline constexpr int kFailed = 1;         // it could not start, or a rank was lost
inline constexpr int kUsage = 2;          // flags that make no sense
inline constexpr int kInterrupted = 130;  // told twice to stop, or while it was loading

}  // namespace spark::app
