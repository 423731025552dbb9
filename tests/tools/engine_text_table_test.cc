#include <criterion/criterion.h>

#include "tools/engine/text_table.h"

namespace kvevict::tools {
namespace {

Test(engine_text_table, columns_are_as_wide_as_their_widest_cell) {
  TextTable table({{"name", TextTable::Align::kLeft}, {"n"}, {"long title"}});
  table.AddRow({"a", "1000", "2"});
  table.AddRow({"longer", "1", ""});
  const char* expected =
      "name       n  long title\n"
      "------  ----  ----------\n"
      "a       1000           2\n"
      "longer     1\n";
  cr_expect(table.ToString() == expected, "%s", table.ToString().c_str());
}

}  // namespace
}  // namespace kvevict::tools
