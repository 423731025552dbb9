#define KV_VARIANT step3
#define KV_STEP 3
#include "tests/rig/simt/variant.cu"
