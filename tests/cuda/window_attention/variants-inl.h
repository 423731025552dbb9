// The variants of the file KV_ATTENTION_LIST. KV_USE_MMA holds for all or none of them,
// and so does KV_FEW.
#if KV_FEW
#define KV_FIRST_PASS few_logits
#define KV_SECOND_PASS few_scores
#else
#define KV_FIRST_PASS window_lse
#define KV_SECOND_PASS window_scores
#endif

#define KV_ATTENTION_VARIANT(name, q, k, dim, window, group, paged, tile, out, \
                             ragged, rows, logit_heads)                        \
  namespace kvevict::cuda::name {                                              \
  void KV_FIRST_PASS(const ScoreParams&);                                      \
  void KV_SECOND_PASS(const ScoreParams&);                                     \
  }
#include KV_ATTENTION_LIST
#undef KV_ATTENTION_VARIANT

namespace kvevict::cuda {
namespace {

const std::vector<AttentionVariant> kVariants = {
#define KV_ATTENTION_VARIANT(name, q, k, dim, window, group, paged, tile, out, \
                             ragged, rows, logit_heads)                        \
  {#name,                                                                      \
   q,                                                                          \
   k,                                                                          \
   dim,                                                                        \
   window,                                                                     \
   group,                                                                      \
   paged,                                                                      \
   tile,                                                                       \
   out,                                                                        \
   ragged,                                                                     \
   KV_USE_MMA,                                                                 \
   KV_FEW,                                                                     \
   rows,                                                                       \
   logit_heads,                                                                \
   name::KV_FIRST_PASS,                                                        \
   name::KV_SECOND_PASS},
#include KV_ATTENTION_LIST
#undef KV_ATTENTION_VARIANT
};

}  // namespace
}  // namespace kvevict::cuda
