/* Saved sequences: what the bytes are. Damaged, cut and foreign bytes are refused
 * and change nothing. */
#include <stdlib.h>

#include "kvevict/batch.h"
#include "tests/capi/support/copies.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"

enum { kHeader = 48, kLayer = 20 };

static const uint32_t kBudgets[4] = {20, 60, 30, 30};

static test_model* ModelOf(const char* policy, const uint32_t* head_budgets) {
  test_model_spec spec = test_small_model(policy);
  spec.head_budgets = head_budgets;
  return test_model_create(&spec, (test_random){1});
}

/* Every field of the saved bytes has something to say. */
static test_model* Evicted(const char* policy, const uint32_t* head_budgets) {
  test_model* m = ModelOf(policy, head_budgets);
  test_model_step(m, 100);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  test_model_step(m, 7);
  return m;
}

/* The same with scores, of which the last tokens have none. */
static test_model* Scored(const char* policy) {
  test_model* m = ModelOf(policy, NULL);
  EXPECT_OK(test_model_give_scores(m, 0, 100));
  test_model_append(m, 100);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  EXPECT_OK(test_model_give_scores(m, 100, 5));
  test_model_append(m, 7);
  return m;
}

/* Computes CRC-32 bit by bit as the standard does. */
static uint32_t Crc32(const uint8_t* bytes, size_t n) {
  uint32_t crc = 0xFFFFFFFFu;
  for (size_t i = 0; i < n; ++i) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320u : 0);
    }
  }
  return crc ^ 0xFFFFFFFFu;
}

static void PutU32(uint8_t* at, uint32_t value) {
  for (int i = 0; i < 4; ++i) at[i] = (uint8_t)(value >> (8 * i));
}

static void Seal(test_saved* s) {
  PutU32(s->data + 16, (uint32_t)s->n_bytes);
  PutU32(s->data + 12, Crc32(s->data + 16, s->n_bytes - 16));
}

static kvevict_status Load(test_model* m, const test_saved* s) {
  return kvevict_sequence_load(m->sequence, s->data, s->n_bytes, NULL);
}

/* The sequence is still what it was when saved. */
static void ExpectUnchanged(const test_model* m, const test_saved* before) {
  const test_saved now = test_save(m->sequence);
  EXPECT(now.n_bytes == before->n_bytes &&
             memcmp(now.data, before->data, now.n_bytes) == 0,
         "the sequence changed");
  free(now.data);
}

Test(sequence_saved, the_bytes_are_these_on_any_machine) {
  test_model* m = ModelOf("streaming-llm:budget=5,sink=2,every=2", NULL);
  test_model_append(m, 4);
  EXPECT_OK(kvevict_sequence_end_prompt(m->sequence));
  test_model_append(m, 4);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  test_model_append(m, 1);
  uint8_t expected[] = {
      'K', 'V', 'E', 'V', 'S', 'E', 'Q', 0x1A, 1, 0, 0, 0, 0, 0, 0, 0, /* */
      136, 0,   0,   0,   0,   0,   0,   0,    2, 0, 0, 0, 9, 0, 0, 0, /* */
      4,   0,   0,   0,   2,   0,   0,   0,                            /* */
      255, 255, 255, 255, 0,   0,   0,   0,                            /* */
      0,   0,   0,   0,   1,   0,   0,   0,    8, 0, 0, 0, 0, 0, 0, 0, /* */
      4,   0,   0,   0,                                                /* */
      5,   0,   0,   0,   0,   0,   0,   0,    1, 0, 0, 0, 5, 0, 0, 0, /* */
      6,   0,   0,   0,   7,   0,   0,   0,                            /* */
      1,   0,   0,   0,   1,   0,   0,   0,    8, 0, 0, 0, 0, 0, 0, 0, /* */
      4,   0,   0,   0,                                                /* */
      5,   0,   0,   0,   0,   0,   0,   0,    1, 0, 0, 0, 5, 0, 0, 0, /* */
      6,   0,   0,   0,   7,   0,   0,   0};
  test_saved saved = test_save(m->sequence);
  cr_assert_eq(saved.n_bytes, sizeof expected);
  PutU32(expected + 12, Crc32(expected + 16, sizeof expected - 16));
  cr_expect_eq(Crc32((const uint8_t*)"123456789", 9), 0xCBF43926u);
  for (size_t i = 0; i < sizeof expected; ++i) {
    cr_expect_eq(saved.data[i], expected[i], "byte %zu", i);
  }
  free(saved.data);
  test_model_destroy(m);
}

Test(sequence_saved, scores_follow_the_layers) {
  test_model* m = ModelOf("custom:budget=2,sink=0", NULL);
  test_model_append(m, 4);
  const test_saved without = test_save(m->sequence);
  cr_expect_eq(without.n_bytes, kHeader + 2 * (kLayer + 8));
  cr_expect_eq(without.data[kHeader - 4], 0);
  EXPECT_OK(test_model_give_scores(m, 0, 4));
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  EXPECT_OK(test_model_give_scores(m, 4, 3)); /* two are of tokens to come */
  test_model_append(m, 1);
  const test_saved saved = test_save(m->sequence);
  const size_t layers = kHeader + 2 * (kLayer + 2 * (4 + 2 * 4));
  cr_assert_eq(saved.n_bytes, layers + 2 * (8 + 2 * 3 * 4));
  cr_expect_eq(saved.data[kHeader - 4], 1);
  const uint8_t* at = saved.data + layers;
  for (uint32_t l = 0; l < 2; ++l) {
    const uint8_t fields[8] = {2, 0, 0, 0, 5, 0, 0, 0};
    cr_expect(memcmp(at, fields, 8) == 0, "layer %u", l);
    at += 8;
    for (uint32_t h = 0; h < 2; ++h) {
      int32_t positions[3];
      test_model_positions(m, l, h, positions);
      for (uint32_t i = 0; i < 3; ++i, at += 4) {
        const float score = test_model_score(l, h, (uint32_t)positions[i]);
        uint32_t bits;
        memcpy(&bits, &score, 4);
        uint8_t expected[4];
        PutU32(expected, bits);
        cr_expect(memcmp(at, expected, 4) == 0, "layer %u, head %u, %u", l, h,
                  i);
      }
    }
  }
  EXPECT_OK(Load(m, &saved));
  ExpectUnchanged(m, &saved);
  EXPECT_OK(Load(m, &without));
  ExpectUnchanged(m, &without);
  free(without.data);
  free(saved.data);
  test_model_destroy(m);
}

Test(sequence_saved, save_says_how_much_and_refuses_less) {
  test_model* m = Evicted("snapkv:budget=60,window=8,scope=head", NULL);
  const test_saved saved = test_save(m->sequence);
  size_t n = 0;
  uint8_t* room = malloc(saved.n_bytes + 5);
  memset(room, TEST_GUARD, saved.n_bytes + 5);
  char text[40];
  snprintf(text, sizeof text, "length %zu", saved.n_bytes);
  EXPECT_INVALID(
      kvevict_sequence_save(m->sequence, room, saved.n_bytes - 1, &n),
      "data_capacity", text);
  cr_expect_eq(n, 0);
  cr_expect(test_is_filled(room, saved.n_bytes));
  EXPECT_INVALID(kvevict_sequence_save(m->sequence, NULL, 9999, &n), "data");
  EXPECT_INVALID(kvevict_sequence_save(NULL, room, 1, &n), "sequence");
  EXPECT_OK(kvevict_sequence_save(m->sequence, room, saved.n_bytes + 5, NULL));
  cr_expect(test_is_filled(room + saved.n_bytes, 5));
  EXPECT_OK(kvevict_sequence_save(m->sequence, NULL, 0, NULL));
  /* Saved bytes may have any alignment. */
  memmove(room + 3, room, saved.n_bytes);
  EXPECT_OK(kvevict_sequence_load(m->sequence, room + 3, saved.n_bytes, NULL));
  ExpectUnchanged(m, &saved);
  EXPECT_INVALID(kvevict_sequence_load(m->sequence, NULL, 0, NULL), "data");
  EXPECT_INVALID(kvevict_sequence_load(NULL, room, 9, NULL), "sequence");
  free(room);
  free(saved.data);
  test_model_destroy(m);
}

static void ExpectDamageSeen(test_model* m, test_model* other) {
  test_model_append(other, 33);
  const test_saved before = test_save(other->sequence);
  test_saved saved = test_save(m->sequence);
  for (size_t bit = 0; bit < 8 * saved.n_bytes; ++bit) {
    saved.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    const char* what = bit / 8 < 8    ? "magic"
                       : bit / 8 < 12 ? "version"
                       : bit / 8 < 16 ? "CRC-32"
                       : bit / 8 < 24 ? "data_len"
                                      : "CRC-32";
    EXPECT_INVALID(Load(other, &saved), what);
    if (bit % 64 == 5) ExpectUnchanged(other, &before);
    saved.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
  }
  for (size_t i = 0; i < saved.n_bytes; ++i) { /* damages whole bytes */
    saved.data[i] = (uint8_t)~saved.data[i];
    EXPECT_INVALID(Load(other, &saved), "");
    saved.data[i] = (uint8_t)~saved.data[i];
  }
  ExpectUnchanged(other, &before);
  EXPECT_OK(Load(other, &saved));
  ExpectUnchanged(other, &saved);
  free(before.data);
  free(saved.data);
  test_model_destroy(other);
  test_model_destroy(m);
}

Test(sequence_saved, every_damaged_bit_is_seen) {
  static const char* const kPlain = "streaming-llm:budget=60,sink=4";
  static const char* const kScored = "custom:budget=20,sink=2";
  ExpectDamageSeen(Evicted(kPlain, kBudgets), ModelOf(kPlain, kBudgets));
  ExpectDamageSeen(Scored(kScored), ModelOf(kScored, NULL));
}

static void ExpectTruncationSeen(test_model* m) {
  const test_saved saved = test_save(m->sequence);
  for (size_t n = 0; n <= saved.n_bytes + 8; ++n) {
    if (n == saved.n_bytes) continue;
    /* The memory has just this size, so that a sanitizer sees reads beyond. */
    uint8_t* cut = calloc(n + 1, 1);
    memcpy(cut, saved.data, n < saved.n_bytes ? n : saved.n_bytes);
    char text[40];
    snprintf(text, sizeof text, "data_len %zu", n);
    EXPECT_INVALID(kvevict_sequence_load(m->sequence, cut, n, NULL), text);
    free(cut);
  }
  ExpectUnchanged(m, &saved);
  free(saved.data);
  test_model_destroy(m);
}

Test(sequence_saved, every_truncation_is_seen) {
  ExpectTruncationSeen(Evicted("streaming-llm:budget=60,sink=4", kBudgets));
  ExpectTruncationSeen(Scored("custom:budget=20,sink=2"));
}

Test(sequence_saved, what_does_not_fit_the_plan_is_named) {
  test_model* m = Evicted("snapkv:budget=60,window=8,scope=head", NULL);
  test_saved saved = test_save(m->sequence);
  /* The layers' fields begin after the header. */
  const size_t layer_bytes = (saved.n_bytes - kHeader) / 2;
  uint8_t* const first = saved.data + kHeader;
  uint8_t* const second = first + layer_bytes;
#define CHANGED(at, value, ...)                   \
  do {                                            \
    uint8_t old[4];                               \
    memcpy(old, at, 4);                           \
    PutU32(at, value);                            \
    Seal(&saved);                                 \
    EXPECT_INVALID(Load(m, &saved), __VA_ARGS__); \
    memcpy(at, old, 4);                           \
    Seal(&saved);                                 \
  } while (0)
  CHANGED(saved.data + 24, 3, "3 layers", "plan has 2");
  CHANGED(saved.data + 28, 1u << 31, "logical length 2147483648");
  CHANGED(saved.data + 32, 108, "a prompt of 108 tokens", "logical length 107");
  CHANGED(saved.data + 28, 99,
          "layer 0 contradicts itself"); /* the tail is 100 */
  CHANGED(saved.data + 28, 141, "layer 0: list 0", "101 slots",
          "max_tokens 100");
  CHANGED(saved.data + 8, 2, "version 2", "reads 1");
  CHANGED(saved.data + 40, 107, "edited from position 107 >=", "length 107");
  CHANGED(saved.data + 44, 2, "2 in place of 0 or 1 for scores");
  CHANGED(second, 5, "layer 5", "layer 1");
  CHANGED(second + 4, 1, "layer 1 has 1 lists", "plan's has 2");
  CHANGED(second + 8, 98, "layer 1 contradicts itself"); /* 99 is listed */
  CHANGED(second + 12, 4, "layer 1 contradicts itself");
  CHANGED(first + 12, 2, "layer 0 contradicts itself");
  CHANGED(second + 20, 61, "layer 1 contradicts itself");
  CHANGED(second + 20, UINT32_MAX, "layer 1 contradicts itself");
  CHANGED(second + 20, 59, "does not end with its last");
  CHANGED(second + 28, 3, "layer 1: list 0: positions[1]");
  CHANGED(second + 28, UINT32_MAX, "layer 1: list 0: positions[0] -1");
  EXPECT_OK(Load(m, &saved));
  free(saved.data);
  test_model_destroy(m);
  m = Scored("custom:budget=20,sink=2");
  saved = test_save(m->sequence);
  /* A head's list has 20 tokens, and 25 scores. */
  uint8_t* const scores =
      saved.data + kHeader + 2 * (kLayer + 2 * (4 + 20 * 4));
  uint8_t* const last = scores + 8 + 2 * 25 * 4;
  CHANGED(saved.data + 44, 0, "does not end with its last layer");
  CHANGED(scores, 1, "layer 0 has scores of 1 KV heads", "plan's has 2");
  CHANGED(last, 0, "layer 1 has scores of 0 KV heads");
  CHANGED(scores + 4, 0, "layer 0 contradicts itself");
  CHANGED(last + 4, 99, "layer 1 contradicts itself"); /* the tail is 100 */
  CHANGED(last + 4, 108, "layer 1 contradicts itself");
  CHANGED(last + 4, 106, "layer 1 contradicts itself"); /* cut off */
  CHANGED(last + 4, 104, "does not end with its last layer");
#undef CHANGED
  EXPECT_OK(Load(m, &saved));
  ExpectUnchanged(m, &saved);
  free(saved.data);
  test_model_destroy(m);
}

/* After any change the checksum is made good: the result is an error, or a sequence that
 * fits its plan. */
Test(sequence_saved, forged_bytes_are_errors_or_make_sense) {
  test_random random = test_random_start("forged sequences");
  uint32_t n_loaded = 0;
  for (int kind = 0; kind < 4; ++kind) {
    test_model* m =
        kind == 0   ? Evicted("streaming-llm:budget=60,sink=4", kBudgets)
        : kind == 3 ? Scored("custom:budget=9,sink=2")
        : kind == 1 ? Evicted("snapkv:budget=60,window=8,scope=model", NULL)
                    : Evicted("snapkv:budget=60,window=8,scope=layer", NULL);
    const test_saved saved = test_save(m->sequence);
    for (int i = 0; i < 4000; ++i) {
      test_saved forged = {malloc(saved.n_bytes), saved.n_bytes};
      memcpy(forged.data, saved.data, saved.n_bytes);
      const uint32_t n_changes = test_random_between(&random, 1, 3);
      for (uint32_t c = 0; c < n_changes; ++c) {
        uint8_t* at = forged.data +
                      4 * test_random_between(
                              &random, 6, (uint32_t)(saved.n_bytes / 4 - 1));
        /* The change is small or arbitrary. */
        PutU32(at, test_random_coin(&random)
                       ? at[0] + test_random_below(&random, 5) - 2
                       : (uint32_t)test_random_u64(&random) >>
                             test_random_below(&random, 32));
      }
      if (test_random_below(&random, 4) == 0) {
        forged.n_bytes -= 4 * test_random_below(&random, 8);
      }
      Seal(&forged);
      if (Load(m, &forged) == KVEVICT_OK) {
        ++n_loaded;
        test_model copy = *m;
        EXPECT_OK(kvevict_sequence_logical_length(m->sequence, &copy.n_seen));
        for (uint32_t l = 0; l < 2; ++l) {
          int32_t positions[100];
          test_model_positions(m, l, 1, positions);
          EXPECT(test_model_stored(m, l) <= 100, "more than max_tokens");
          for (uint32_t s = 1; s < test_model_stored_of(m, l, 1); ++s) {
            EXPECT(positions[s] > positions[s - 1], "not ascending");
          }
        }
        (void)test_exact_prefix(m->sequence);
      }
      free(forged.data);
    }
    EXPECT_OK(Load(m, &saved));
    test_model_check(m, "after forged ones");
    free(saved.data);
    test_model_destroy(m);
  }
  cr_expect_gt(n_loaded, 20); /* else nothing was tested */
}

/* The other plan has another policy, and more or less room. */
Test(sequence_saved, other_plans_of_the_model_load_it) {
  test_model* m = Evicted("snapkv:budget=60,window=8,scope=head", NULL);
  const test_saved saved = test_save(m->sequence);
  test_model_spec spec = test_small_model("knorm:sink=0,budget=20,scope=head");
  spec.max_tokens = 67;
  test_model* small = test_model_create(&spec, (test_random){1});
  EXPECT_OK(Load(small, &saved));
  small->n_seen = m->n_seen;
  test_expect_same_tokens(m, small, "another policy");
  EXPECT_INVALID(kvevict_sequence_append(small->sequence, 1, NULL),
                 "67 stored > max_tokens 67");
  EXPECT_OK(test_model_evict(small, NULL, NULL));
  cr_expect_eq(test_model_stored(small, 1), 20);
  spec.max_tokens = 66;
  test_model* smaller = test_model_create(&spec, (test_random){1});
  EXPECT_INVALID(Load(smaller, &saved), "67 slots", "max_tokens 66");
  spec = test_small_model("knorm:sink=0,budget=20,scope=layer");
  test_model* by_layer = test_model_create(&spec, (test_random){1});
  EXPECT_INVALID(Load(by_layer, &saved), "2 lists", "has 1");
  free(saved.data);
  test_model_destroy(small);
  test_model_destroy(smaller);
  test_model_destroy(by_layer);
  test_model_destroy(m);
}

Test(sequence_saved, uneven_lists_need_a_plan_that_has_such) {
  test_model* m = Evicted("streaming-llm:budget=60,sink=4", kBudgets);
  const test_saved saved = test_save(m->sequence);
  test_model* even = ModelOf("snapkv:budget=60,window=8,scope=head", NULL);
  test_model* adaptive =
      ModelOf("snapkv:budget=60,window=8,heads=adaptive", NULL);
  EXPECT_INVALID(Load(even, &saved), "layer 0: list 1", "60", "20",
                 "heads that are not equal");
  EXPECT_OK(Load(adaptive, &saved));
  test_expect_same_tokens(m, adaptive, "adaptive");
  free(saved.data);
  test_model_destroy(even);
  test_model_destroy(adaptive);
  test_model_destroy(m);
}

/* Nothing is evicted, so budgets of heads do not matter. */
Test(sequence_saved, policy_none_has_one_list_whatever_heads_would_keep) {
  test_model* m = ModelOf("none", kBudgets);
  test_model_append(m, 33);
  const test_saved saved = test_save(m->sequence);
  test_model* other = ModelOf("none", kBudgets);
  EXPECT_OK(Load(other, &saved));
  EXPECT_OK(kvevict_sequence_reset(other->sequence, NULL));
  EXPECT_OK(test_start_as(other->sequence, m->plan, m->sequence));
  kvevict_sequence* fork = test_copy(m->plan, m->sequence, TEST_COPY_FORK);
  uint32_t n = 0;
  EXPECT_OK(kvevict_sequence_stored_length(fork, 0, 1, &n));
  EXPECT(n == 33, "%u slots", n);
  kvevict_sequence_destroy(fork);
  free(saved.data);
  test_model_destroy(other);
  test_model_destroy(m);
}

Test(sequence_saved, one_list_of_the_model_is_saved_once) {
  test_model* model = Evicted("snapkv:budget=60,window=8,scope=model", NULL);
  test_model* layer = ModelOf("snapkv:budget=60,window=8,scope=layer", NULL);
  const test_saved saved = test_save(model->sequence);
  cr_expect_eq(saved.n_bytes, kHeader + 2 * kLayer + 4 + 60 * 4);
  EXPECT_OK(Load(layer, &saved));
  test_expect_same_tokens(model, layer, "scope layer");
  layer->n_seen = 107;
  const test_saved of_layers = test_save(layer->sequence);
  cr_expect_eq(of_layers.n_bytes, saved.n_bytes);
  EXPECT_OK(Load(model, &of_layers));
  ExpectUnchanged(model, &saved);
  /* The layers differ from here on. */
  test_model_step(layer, 20);
  EXPECT_OK(test_model_evict(layer, NULL, NULL));
  free(of_layers.data);
  const test_saved apart = test_save(layer->sequence);
  EXPECT_INVALID(Load(model, &apart), "scope model", "layer 1");
  ExpectUnchanged(model, &saved);
  free(apart.data);
  free(saved.data);
  test_model_destroy(layer);
  test_model_destroy(model);
}

/* A load drops the tokens and observations of before. The bound of trims stays. */
Test(sequence_saved, a_load_replaces_all_but_the_query_memory) {
  test_model* m = Evicted("snapkv:budget=60,window=8,keep_window=yes", NULL);
  test_model* other = Evicted("snapkv:budget=60,window=8", NULL);
  const test_saved saved = test_save(m->sequence);
  test_model_step(other, 30);
  EXPECT_OK(Load(other, &saved));
  kvevict_evict_report report = {.struct_size = sizeof report};
  EXPECT_OK(kvevict_sequence_report(other->sequence, &report, NULL, 0));
  cr_expect_eq(report.tokens_before, 0);
  EXPECT_INVALID(test_model_evict(other, NULL, NULL), "observed", "[99, 107)");
  EXPECT_INVALID(kvevict_sequence_trim_to(other->sequence, 99, NULL),
                 "from 100 on");
  EXPECT_OK(kvevict_sequence_trim_to(other->sequence, 100, NULL));
  other->n_seen = 100;
  test_model_observe(other, 92, 8);
  EXPECT_OK(test_model_evict(other, NULL, NULL));
  free(saved.data);
  test_model_destroy(other);
  test_model_destroy(m);
}
