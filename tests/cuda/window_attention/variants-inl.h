// The variants of the file KV_ATTENTION_LIST. KV_USE_MMA holds for all or none of them.

#define KV_ATTENTION_VARIANT(name, q, k, dim, window, group, paged, tile, out, \
                             ragged, rows, logit_heads)                        \
  namespace kvevict::cuda::name {                                              \
  void window_lse(const ScoreParams&);                                         \
  void window_scores(const ScoreParams&);                                      \
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
   rows,                                                                       \
   logit_heads,                                                                \
   name::window_lse,                                                           \
   name::window_scores},
#include KV_ATTENTION_LIST
#undef KV_ATTENTION_VARIANT
};

const AttentionVariant& FindVariant(const char* name) {
  for (const AttentionVariant& v : kVariants) {
    if (std::strcmp(v.name, name) == 0) return v;
  }
  std::fprintf(stderr, "no variant %s\n", name);
  std::exit(1);
}

}  // namespace
}  // namespace kvevict::cuda
