// Attention of 16 queries of an 8B model: 32/8 heads of 128, bf16.
#define KV_VARIANT traffic
#define KV_Q_DTYPE 3
#define KV_K_DTYPE 3
#define KV_V_DTYPE 3
#define KV_HEAD_DIM 128
#define KV_V_DIM 128
#define KV_ROW_WARPS 4
#include "cuda/kernels/attention_mma.cu"
