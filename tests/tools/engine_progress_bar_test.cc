#include <criterion/criterion.h>

#include "tools/engine/progress_bar.h"

namespace kvevict::tools {
namespace {

Test(engine_progress_bar, tells_the_time_that_is_left) {
  const std::string quarter = ProgressBar::Line("prefill", 0.25, 3);
  cr_expect(quarter ==
                "prefill [=======                       ]  25 % 3.0 s, 9.0 s "
                "left",
            "%s", quarter.c_str());
  const std::string nothing = ProgressBar::Line("prefill", 0, 1.5);
  cr_expect(nothing == "prefill [                              ]   0 % 1.5 s",
            "%s", nothing.c_str());
}

}  // namespace
}  // namespace kvevict::tools
