#include "tests/capi/support/policies.h"

#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The process owns its policies, so that none is a leak. */
typedef struct owned {
  kvevict_policy* policy;
  struct owned* next;
} owned;
static _Atomic(owned*) g_policies;

static kvevict_policy* Own(kvevict_policy* policy) {
  owned* one = malloc(sizeof *one);
  one->policy = policy;
  one->next = g_policies;
  while (!atomic_compare_exchange_weak(&g_policies, &one->next, one)) {
  }
  return policy;
}

kvevict_policy* test_policy(const char* text) {
  kvevict_policy* policy = NULL;
  EXPECT_OK(kvevict_policy_create(text, &policy));
  return Own(policy);
}

kvevict_policy* test_policy_copy(const kvevict_policy* policy) {
  kvevict_policy* copy = NULL;
  EXPECT_OK(kvevict_policy_copy(policy, &copy));
  return Own(copy);
}

static double RandomBudget(test_random* random) {
  switch (test_random_below(random, 4)) {
    case 0:
      return 1.0 - test_random_unit(random);
    case 1:
      return test_random_between(random, 2, 100);
    case 2:
      return test_random_between(random, 100, 100000);
    default:
      return 1.0 + exp(20.0 * test_random_unit(random));
  }
}

static uint32_t RandomCount(test_random* random,
                            const kvevict_parameter_info* row) {
  const double most = fmin(row->most, row->least + 80);
  return row->takes_zero && test_random_coin(random)
             ? 0
             : test_random_between(random, (uint32_t)row->least,
                                   (uint32_t)most);
}

static double RandomNumber(test_random* random,
                           const kvevict_parameter_info* row) {
  if (strcmp(row->key, "budget") == 0) return RandomBudget(random);
  const double least = fmax(row->least, -3.0);
  const double most = fmin(row->most, least + 300.0);
  return most - (most - least) * test_random_unit(random);
}

void test_random_word(test_random* random, const char* words, char* out) {
  uint32_t n = 1;
  for (const char* at = words; *at != 0; ++at) n += *at == '|';
  for (uint32_t skip = test_random_below(random, n); skip > 0; --skip) {
    words = strchr(words, '|') + 1;
  }
  const size_t length = strcspn(words, "|");
  memcpy(out, words, length);
  out[length] = 0;
}

void test_set_at_random(test_random* random, const kvevict_parameter_info* row,
                        kvevict_policy* policy) {
  char text[40];
  switch (row->type) {
    case KVEVICT_PARAMETER_NUMBER:
      EXPECT_OK(kvevict_policy_set_number(policy, row->key,
                                          RandomNumber(random, row)));
      return;
    case KVEVICT_PARAMETER_COUNT_OR_SHARE:
    case KVEVICT_PARAMETER_COUNT:
      EXPECT_OK(kvevict_policy_set_number(policy, row->key,
                                          RandomCount(random, row)));
      return;
    case KVEVICT_PARAMETER_SEED:
      snprintf(text, sizeof text, "%llu",
               (unsigned long long)test_random_u64(random));
      break;
    case KVEVICT_PARAMETER_POOL:
      test_random_word(random, "none|avg|max", text);
      if (text[0] != 'n') {
        snprintf(text + 3, sizeof text - 3, "%u",
                 2 * test_random_below(random, 20) + 1);
      }
      break;
    default:
      test_random_word(random, row->words, text);
      break;
  }
  EXPECT_OK(kvevict_policy_set(policy, row->key, text));
}

/* Parameters that conflict with many others are set less often. */
static uint32_t OneIn(const char* key) {
  static const char* const kRare[] = {"chunk", "rescue", "diverse_mass"};
  for (size_t i = 0; i < sizeof kRare / sizeof *kRare; ++i) {
    if (strcmp(key, kRare[i]) == 0) return 6;
  }
  return strcmp(key, "budget") == 0 ? 1 : 2;
}

enum { kMostKinds = 64, kMostParameters = 96 };

/* What the library lists for a policy, listed once: most random values do not go
 * together, so that many are drawn. */
typedef struct kind {
  const char* name;
  uint32_t n_rows;
  kvevict_parameter_info rows[kMostParameters];
} kind;

static uint32_t Kinds(const kind** out) {
  static _Thread_local kind kinds[kMostKinds];
  static _Thread_local uint32_t n_kinds = 0;
  kvevict_policy_info info = {.struct_size = sizeof info};
  for (; kvevict_policy_at(n_kinds, &info) == KVEVICT_OK; ++n_kinds) {
    kind* one = &kinds[n_kinds];
    one->name = info.name;
    kvevict_parameter_info row = {.struct_size = sizeof row};
    while (kvevict_parameter_at(info.name, one->n_rows, &row) == KVEVICT_OK) {
      one->rows[one->n_rows++] = row;
      cr_assert(one->n_rows < kMostParameters);
    }
    cr_assert(n_kinds + 1 < kMostKinds);
  }
  *out = kinds;
  return n_kinds;
}

/* Every parameter keeps its default half the time, so that many combinations
 * are valid. */
kvevict_policy* test_random_policy(test_random* random) {
  const kind* kinds;
  const uint32_t n_kinds = Kinds(&kinds);
  for (;;) {
    const kind* drawn = &kinds[test_random_below(random, n_kinds)];
    kvevict_policy* policy = NULL;
    EXPECT_OK(kvevict_policy_create(drawn->name, &policy));
    for (uint32_t i = 0; i < drawn->n_rows; ++i) {
      if (test_random_below(random, OneIn(drawn->rows[i].key)) == 0) {
        test_set_at_random(random, &drawn->rows[i], policy);
      }
    }
    if (kvevict_policy_validate(policy) == KVEVICT_OK) return Own(policy);
    kvevict_policy_destroy(policy);
  }
}

/* The value's text, or "" if the policy has no such parameter. */
static void Value(const kvevict_policy* policy, const char* key, char* text,
                  size_t capacity) {
  text[0] = 0;
  (void)kvevict_policy_get(policy, key, text, capacity, NULL);
}

bool test_same_policy(const kvevict_policy* a, const kvevict_policy* b) {
  if (oracle_policy_of(a).kind != oracle_policy_of(b).kind) return false;
  kvevict_parameter_info row = {.struct_size = sizeof row};
  for (uint32_t i = 0; kvevict_parameter_at(NULL, i, &row) == KVEVICT_OK; ++i) {
    char of_a[40];
    char of_b[40];
    Value(a, row.key, of_a, sizeof of_a);
    Value(b, row.key, of_b, sizeof of_b);
    if (strcmp(of_a, of_b) != 0) return false;
  }
  return true;
}
