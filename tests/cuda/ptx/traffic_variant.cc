// The scorer of an 8B model: 32/8 heads of 128, a window of 64, bf16.
#define KV_VARIANT traffic
#define KV_Q_DTYPE 3
#define KV_K_DTYPE 3
#define KV_HEAD_DIM 128
#define KV_WINDOW 64
#define KV_GROUP 4
#define KV_PAGED 0
#define KV_RAGGED 0
#define KV_OUT 0
#define KV_TILE_KEYS 128
#define KV_USE_MMA 1
#include "cuda/kernels/window_attention.cu"
