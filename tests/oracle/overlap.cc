#include "tests/oracle/overlap.h"

#include <algorithm>
#include <vector>

#include "tests/oracle/compact.h"

namespace {

std::vector<const uint8_t*> Bytes(const kvevict_view* view,
                                  const kvevict_plane* plane,
                                  uint32_t n_tokens) {
  std::vector<const uint8_t*> bytes;
  if (plane->data == 0) return bytes;
  for (uint32_t t = 0; t < n_tokens; ++t) {
    for (uint32_t h = 0; h < view->n_kv_heads; ++h) {
      for (uint32_t b = 0; b < oracle_row_bytes(plane); ++b) {
        bytes.push_back(oracle_row_byte(view, plane, t, h, b));
      }
    }
  }
  std::sort(bytes.begin(), bytes.end());
  return bytes;
}

}  // namespace

bool oracle_planes_overlap(const kvevict_view* a, const kvevict_plane* p,
                           uint32_t a_tokens, const kvevict_view* b,
                           const kvevict_plane* q, uint32_t b_tokens) {
  std::vector<const uint8_t*> both;
  const auto mine = Bytes(a, p, a_tokens), other = Bytes(b, q, b_tokens);
  std::set_intersection(mine.begin(), mine.end(), other.begin(), other.end(),
                        std::back_inserter(both));
  return !both.empty();
}
