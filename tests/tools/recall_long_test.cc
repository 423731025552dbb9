// Longer prompts, up to the demo's own length.
#include "tests/tools/recall_table.h"

namespace kvevict::tools {
namespace {

Test(recall_long, recalls_4096_tokens) {
  ExpectRecall(4096, KVEVICT_DTYPE_F32,
               {{"none", 1.00, 1.00, 1},
                {"snapkv:budget=512", 1.00, {}, 8},
                {"snapkv:budget=256", 1.00, {}, 16},
                {"streaming-llm:budget=512", 0.13, {}, 8},
                {"streaming-llm:budget=256", 0.06, {}, 16}});
}

Test(recall_long, recalls_16384_tokens_in_bf16) {
  ExpectRecall(16384, KVEVICT_DTYPE_BF16,
               {{"none", 1.00, 1.00, 1}, {"snapkv:budget=2048", 1.00, {}, 8}});
}

Test(recall_long, recalls_16384_tokens) {
  ExpectRecall(16384, KVEVICT_DTYPE_F32,
               {{"none", 1.00, 1.00, 1},
                {"snapkv:budget=2048", 1.00, 0.15, 8},
                {"snapkv:budget=1024", 1.00, 0.06, 16},
                {"snapkv:budget=512", 1.00, 0.03, 32},
                {"streaming-llm:budget=2048", 0.13, 0.12, 8},
                {"streaming-llm:budget=1024", 0.06, 0.06, 16},
                {"streaming-llm:budget=512", 0.04, 0.02, 32},
                {"pyramidkv:budget=2048,alpha=0.325428194993", 1.00, 0.06, 8},
                {"pyramidkv:budget=1024,alpha=0.317333333333", 1.00, 0.03, 16},
                {"pyramidkv:budget=512,alpha=0.300546448087", 1.00, 0.00, 32}});
}

}  // namespace
}  // namespace kvevict::tools
