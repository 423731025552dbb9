/* Blocks of slots that stay for other reasons than their scores: rescued ones, and those
 * whose keys differ. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_BLOCKS_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_BLOCKS_H_

#include <stdbool.h>
#include <stdint.h>

#include "tests/capi/support/choice.h"

/* KVCrush as in OpenVINO GenAI (cache/kvcrush.cpp). Sets stays[n] for n_rescued of the
 * blocks that would go. The half of the slots with the highest marks[n] has bit 1. */
void test_rescue_blocks(const oracle_policy* policy, const float* marks,
                        uint32_t n, uint32_t n_rescued, uint8_t* stays);

/* Adaptive R-KV as in OpenVINO GenAI (cache/cache_eviction.cpp). Writes which slots of a
 * head stay if n_keep do. False if rounding may decide. Sets *by_keys if keys,
 * not mass alone, decided. */
bool test_keep_diverse_blocks(const test_model* model, uint32_t layer,
                              uint32_t head, const test_choice_head* choice,
                              uint32_t n_keep, uint8_t* stays, bool* by_keys);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_BLOCKS_H_ */
