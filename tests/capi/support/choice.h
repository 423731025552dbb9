/* What an eviction must leave of a model by the oracle: how many tokens of each head,
 * and which. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_CHOICE_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_CHOICE_H_

#include <stdbool.h>
#include <stdint.h>

#include "tests/capi/support/model.h"

enum { TEST_CHOICE_HEADS = 4, TEST_CHOICE_TOKENS = 400 };

/* Scores and weights that an eviction is given. */
typedef struct test_given {
  float scores[TEST_MAX_LAYERS][TEST_CHOICE_HEADS][TEST_CHOICE_TOKENS];
  float weights[TEST_MAX_LAYERS][TEST_CHOICE_HEADS][TEST_CHOICE_TOKENS];
  /* Observed sums. Scores may be their means. */
  float sums[TEST_MAX_LAYERS][TEST_CHOICE_HEADS][TEST_CHOICE_TOKENS];
  kvevict_plane planes[TEST_MAX_LAYERS]; /* the weights' */
  test_inputs inputs;
} test_given;

/* Draws scores with or without ties, some NaN and infinite, and weights. */
void test_draw_given(test_random* random, test_given* given);

/* Gives both. They are read when the eviction is called. */
void test_give(test_given* given, uint32_t n_layers,
               kvevict_evict_options* options);

/* A head before an eviction. */
typedef struct test_choice_head {
  uint32_t n;
  int32_t positions[TEST_CHOICE_TOKENS];
  uint8_t forced[TEST_CHOICE_TOKENS];
  int32_t ranks[TEST_CHOICE_TOKENS];
  double scores[TEST_CHOICE_TOKENS]; /* of its list */
  uint32_t n_kept;                   /* what it must keep */
  uint32_t n_rescued;                /* how many blocks of n_kept are rescued */
} test_choice_head;

typedef struct test_choice {
  bool
      is_exact; /* scores are the library's own; else f32 may differ from them */
  uint32_t slack;     /* how far counts may be off, as f32 decides */
  uint32_t n_asked;   /* must stay in a list, held or not */
  uint32_t n_by_keys; /* lists that keep what they must, some blocks by keys */
  uint32_t n_rescues; /* lists that keep what they must, some blocks rescued */
  test_choice_head heads[TEST_MAX_LAYERS][TEST_CHOICE_HEADS];
  /* What every head of a layer must keep of its chunks, if the policy has any. */
  uint32_t of_chunks[TEST_MAX_LAYERS][TEST_CHOICE_TOKENS];
} test_choice;

/* The prompt of a sequence. Without one, all is 0. */
typedef struct test_prompt {
  bool has_ended;
  uint32_t n_tokens;
  uint32_t slots[TEST_MAX_LAYERS]; /* held when it ended */
} test_prompt;

/* Finds the choice by what the model holds. Policy custom has `given` scores, h2o given
 * sums, StreamingLLM none. Those of windows and reference queries are the oracle's, and
 * those of other signals come from kvevict_score(). NULL prompt: none. */
void test_choose(const test_model* model, const kvevict_evict_options* options,
                 const test_given* given, const test_prompt* prompt,
                 test_choice* choice);

/* Expects that everything stays. */
void test_choose_all(const test_model* model, test_choice* choice);

/* Fails unless the model holds what was chosen. */
void test_expect_chosen(const test_model* model, const test_given* given,
                        test_choice* choice, const char* what);

/* The end of the chunk that begins at a slot of n. All n are one if the policy has none. */
uint32_t test_chunk_end(const oracle_policy* policy, uint32_t begin,
                        uint32_t n);
/* How many tokens at the end the policy always keeps. */
uint32_t test_last_of(const oracle_policy* policy);
float test_refine(const oracle_policy* policy, float score, float weight);
kvevict_tie test_tie_of(const oracle_policy* policy);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_CHOICE_H_ */
