#include "model/rank_table.h"

#include <gtest/gtest.h>

#include "common/file.h"
#include "common/json.h"

namespace spark::model {
namespace {

TEST(RankTable, IsTheOneInTheDocumentation) {
  const std::string source = SPARK_SOURCE_DIR;
  const std::string path = source + "/config/models/deepseek-v4.1-flash.json";
  const std::string tables = rank_tables_markdown(read_model_config(parse_json(read_file(path), path), path));
  const std::string page = read_file(source + "/docs/engine.md");
  const std::string begin =
      "<!-- generated: spark model ranks config/models/deepseek-v4.1-flash.json -->\n\n";
  const size_t at = page.find(begin);
  ASSERT_NE(at, std::string::npos);
  const size_t end = page.find("\n<!-- end -->", at);
  ASSERT_NE(end, std::string::npos);
  EXPECT_EQ(page.substr(at + begin.size(), end - at - begin.size()), tables)
      << "put the output of the command that the page names between the marks";
  EXPECT_NE(tables.find("4 ranks"), std::string::npos);
}

}  // namespace
}  // namespace spark::model
