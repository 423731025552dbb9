#define KV_VARIANT step5
#define KV_STEP 5
#include "tests/rig/simt/variant.cu"
