// The tests' temporary folder under the engine's names.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "unit/temporary_folder.h"

namespace spark::engine {

using test::TemporaryFolder;

}  // namespace spark::engine
