/* Sets and reads every parameter that kvevict_parameter_at() lists, within its
 * bounds and beyond. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/policies.h"

/* docs/parameters.md, which tools_program compares with the library, says
 * again what each parameter may be, who has it, and with which defaults. */
enum { kMostKeys = 128 };

/* The n-th policy's name; NULL beyond the last. */
static const char* PolicyAt(uint32_t n) {
  kvevict_policy_info info = {.struct_size = sizeof info};
  return kvevict_policy_at(n, &info) == KVEVICT_OK ? info.name : NULL;
}

static size_t CommonPrefix(const char* a, const char* b) {
  size_t n = 0;
  while (a[n] != 0 && a[n] == b[n]) ++n;
  return n;
}

/* What a message says of a policy's keys if `key` is none of them. */
static const char* KeysLike(const char* policy, const char* key, char* words,
                            size_t size) {
  kvevict_parameter_info row = {.struct_size = sizeof row};
  size_t longest = 1;
  uint32_t n = 0;
  for (; kvevict_parameter_at(policy, n, &row) == KVEVICT_OK; ++n) {
    const size_t prefix = CommonPrefix(key, row.key);
    if (prefix > longest) longest = prefix;
  }
  char alike[200] = "";
  for (uint32_t i = 0; i < n; ++i) {
    EXPECT_OK(kvevict_parameter_at(policy, i, &row));
    if (CommonPrefix(key, row.key) < longest) continue;
    const size_t length = strlen(alike);
    snprintf(alike + length, sizeof alike - length, "%s%s",
             length == 0 ? "; keys that begin alike: " : ", ", row.key);
  }
  snprintf(words, size, "%s; kvevict_parameter_at() lists its %u keys", alike,
           n);
  return words;
}

static bool Has(const char* policy, const char* key) {
  kvevict_parameter_info row = {.struct_size = sizeof row};
  for (uint32_t i = 0; kvevict_parameter_at(policy, i, &row) == KVEVICT_OK;
       ++i) {
    if (strcmp(row.key, key) == 0) return true;
  }
  return false;
}

/* What a message says of the values that a parameter takes. */
static const char* ValuesOf(const kvevict_parameter_info* row, char* text,
                            size_t size) {
  switch (row->type) {
    case KVEVICT_PARAMETER_NUMBER:
      if (row->most == DBL_MAX) {
        snprintf(text, size, "a finite number > %.17g", row->least);
      } else {
        snprintf(text, size, "a number in %c%.17g, %.17g]",
                 row->excludes_least ? '(' : '[', row->least, row->most);
      }
      break;
    case KVEVICT_PARAMETER_COUNT:
      snprintf(text, size, "%sa count in [%.0f, %.0f]",
               row->takes_zero ? "0 or " : "", row->least, row->most);
      break;
    case KVEVICT_PARAMETER_COUNT_OR_SHARE:
      snprintf(text, size,
               "a count in [%.0f, %.0f] or a share of the budget below 1",
               row->least, row->most);
      break;
    case KVEVICT_PARAMETER_SEED:
      snprintf(text, size, "a whole number below 2^64");
      break;
    case KVEVICT_PARAMETER_POOL:
      snprintf(text, size, "none, avgN or maxN with an odd N up to 1023");
      break;
    default:
      snprintf(text, size, "one of %s", row->words);
      break;
  }
  return text;
}

/* The value of a key in "key=value,key=value"; NULL if it is not there. */
static const char* ValueIn(const char* pairs, const char* key, char* value) {
  char wanted[40], padded[256];
  snprintf(wanted, sizeof wanted, ",%s=", key);
  snprintf(padded, sizeof padded, ",%s", pairs);
  const char* at = strstr(padded, wanted);
  if (at == NULL) return NULL;
  at += strlen(wanted);
  snprintf(value, TEST_VALUE_TEXT, "%.*s", (int)strcspn(at, ","), at);
  return value;
}

static const char* Get(const kvevict_policy* policy, const char* key,
                       char* value) {
  size_t length = 0;
  EXPECT_OK(kvevict_policy_get(policy, key, value, TEST_VALUE_TEXT, &length));
  EXPECT(length == strlen(value), "%s: length %zu", key, length);
  return value;
}

/* ---- The table ---- */

Test(policy_parameters, have_words_and_stand_once_in_the_order_of_all) {
  kvevict_parameter_info row = {.struct_size = sizeof row};
  const char* keys[kMostKeys];
  uint32_t n = 0;
  for (; kvevict_parameter_at(NULL, n, &row) == KVEVICT_OK; ++n) {
    EXPECT(strlen(row.doc) > 20, "%s: %s", row.key, row.doc);
    for (uint32_t i = 0; i < n; ++i) {
      EXPECT(strcmp(keys[i], row.key) != 0, "%s is there twice", row.key);
    }
    EXPECT(n < kMostKeys, "more than %d parameters", kMostKeys);
    keys[n] = row.key;
  }
  EXPECT_INVALID(kvevict_parameter_at(NULL, n, &row), "index");
  const char* name;
  for (uint32_t k = 0; (name = PolicyAt(k)) != NULL; ++k) {
    uint32_t at = 0;
    for (uint32_t i = 0; kvevict_parameter_at(name, i, &row) == KVEVICT_OK;
         ++i) {
      while (at < n && strcmp(keys[at], row.key) != 0) ++at;
      EXPECT(at++ < n, "%s: %s is not in order", name, row.key);
    }
  }
}

/* The defaults of a policy, or of a preset, are its values. */
static uint32_t ExpectDefaults(const char* name) {
  const kvevict_policy* policy = test_policy(name);
  kvevict_parameter_info row = {.struct_size = sizeof row};
  uint32_t n = 0;
  for (; kvevict_parameter_at(name, n, &row) == KVEVICT_OK; ++n) {
    char value[TEST_VALUE_TEXT];
    EXPECT(strcmp(row.default_text, Get(policy, row.key, value)) == 0,
           "%s: %s=%s", name, row.key, row.default_text);
  }
  return n;
}

Test(policy_parameters, of_a_policy_begin_with_its_defaults) {
  const char* name;
  for (uint32_t k = 0; (name = PolicyAt(k)) != NULL; ++k) {
    kvevict_policy_info info = {.struct_size = sizeof info};
    EXPECT_OK(kvevict_policy_at(k, &info));
    kvevict_parameter_info row = {.struct_size = sizeof row}, all = row;
    for (uint32_t i = 0; kvevict_parameter_at(name, i, &row) == KVEVICT_OK;
         ++i) {
      char own[TEST_VALUE_TEXT];
      const char* expected = ValueIn(info.defaults, row.key, own);
      for (uint32_t r = 0; expected == NULL; ++r) {
        EXPECT_OK(kvevict_parameter_at(NULL, r, &all));
        if (strcmp(row.key, all.key) == 0) expected = all.default_text;
      }
      EXPECT(strcmp(row.default_text, expected) == 0, "%s: %s=%s", name,
             row.key, row.default_text);
    }
    (void)ExpectDefaults(name);
  }
  cr_expect_gt(ExpectDefaults("snapkv-kvpress"), 20);
}

/* ---- Values ---- */

/* A policy that has the parameter, at its defaults. */
static kvevict_policy* PolicyWith(const char* key) {
  static const char *last_key, *name; /* searching takes longer than testing */
  if (key != last_key) {
    for (uint32_t k = 0; (name = PolicyAt(k)) != NULL && !Has(name, key); ++k) {
    }
    last_key = key;
  }
  EXPECT(name != NULL, "no policy has %s", key);
  return test_policy(name);
}

/* The text sets a value that reads back as `expected`. */
static void ExpectTakesText(const char* key, const char* text,
                            const char* expected) {
  kvevict_policy* policy = PolicyWith(key);
  char value[TEST_VALUE_TEXT];
  EXPECT_OK(kvevict_policy_set(policy, key, text));
  EXPECT(strcmp(Get(policy, key, value), expected) == 0, "%s=%s reads %s", key,
         text, value);
}

/* Nothing changes, and the message says what is allowed. */
static void ExpectRefusesText(const char* key, const char* text,
                              const char* values) {
  kvevict_policy* policy = PolicyWith(key);
  const kvevict_policy* before = test_policy_copy(policy);
  char message[256];
  snprintf(message, sizeof message, "%s=\"%.40s%s\" is not %s", key, text,
           strlen(text) > 40 ? "..." : "", values);
  EXPECT_INVALID(kvevict_policy_set(policy, key, text), message);
  EXPECT(test_same_policy(policy, before), "%s=%s changed it", key, text);
}

#define EXPECT_REFUSES_TEXTS(key, values, ...)                    \
  do {                                                            \
    static const char* const kTexts[] = {__VA_ARGS__};            \
    for (size_t i = 0; i < sizeof kTexts / sizeof *kTexts; ++i) { \
      ExpectRefusesText(key, kTexts[i], values);                  \
    }                                                             \
  } while (0)

/* The number sets a value that reads back as the same number, and as a text that
 * sets it again. */
static void ExpectTakes(const char* key, double number) {
  kvevict_policy* policy = PolicyWith(key);
  kvevict_policy* by_text = PolicyWith(key);
  char text[TEST_VALUE_TEXT];
  double value = -77.0;
  EXPECT_OK(kvevict_policy_set_number(policy, key, number));
  EXPECT_OK(kvevict_policy_set(by_text, key, Get(policy, key, text)));
  EXPECT(test_same_policy(policy, by_text), "%s=%s", key, text);
  if (strcmp(key, "seed") == 0) {
    EXPECT(strtoull(text, NULL, 10) == (uint64_t)number, "seed %s", text);
    if (number > 0x1p53) return;
  }
  EXPECT_OK(kvevict_policy_get_number(policy, key, &value));
  EXPECT(value == number, "%s: %.17g, not %.17g", key, value, number);
}

static void ExpectRefuses(const char* key, double number, const char* values) {
  kvevict_policy* policy = PolicyWith(key);
  const kvevict_policy* before = test_policy_copy(policy);
  char expected[256];
  snprintf(expected, sizeof expected, "\" is not %s", values);
  EXPECT(kvevict_policy_set_number(policy, key, number) ==
             KVEVICT_ERROR_INVALID_ARGUMENT,
         "%s takes %.17g", key, number);
  const char* message = kvevict_last_error_message();
  EXPECT(strncmp(message, key, strlen(key)) == 0 &&
             strstr(message, expected) != NULL,
         "%s = %.17g: %s", key, number, message);
  EXPECT(test_same_policy(policy, before), "%s = %.17g changed it", key,
         number);
}

/* Whole numbers: both ends, the first values beyond, and fractions. */
static void ExpectCounts(const kvevict_parameter_info* row,
                         const char* values) {
  const double least = row->least, most = row->most;
  ExpectTakes(row->key, least);
  ExpectTakes(row->key, least + 1);
  ExpectTakes(row->key, most);
  ExpectRefuses(row->key, most + 1, values);
  ExpectRefuses(row->key, most - 0.5, values);
  ExpectRefuses(row->key, least + 1.5, values);
  ExpectRefuses(row->key, -1, values);
  ExpectRefuses(row->key, 1e300, values);
  for (double below = 0; below < least; ++below) {
    if (row->takes_zero && below == 0) continue;
    ExpectRefuses(row->key, below, values);
  }
  if (row->takes_zero) ExpectTakes(row->key, 0);
  EXPECT_REFUSES_TEXTS(row->key, values, "4 ", "4x", "+4", "0x4");
}

static void ExpectNumbers(const kvevict_parameter_info* row,
                          const char* values) {
  const double above = nextafter(row->least, INFINITY);
  if (row->excludes_least) {
    ExpectRefuses(row->key, row->least, values);
    ExpectTakes(row->key, above);
  } else {
    ExpectTakes(row->key, row->least);
    ExpectRefuses(row->key, nextafter(row->least, -INFINITY), values);
  }
  ExpectTakes(row->key, 0.5 * row->least + 0.5 * row->most);
  ExpectTakes(row->key, row->most);
  ExpectRefuses(row->key, nextafter(row->most, INFINITY), values);
  EXPECT_REFUSES_TEXTS(row->key, values, "1e999", "0.5.", "1,5");
}

static void ExpectWords(const kvevict_parameter_info* row, const char* values) {
  const bool is_flag = row->type == KVEVICT_PARAMETER_FLAG;
  double index = 0;
  for (const char* at = row->words; *at != 0; ++index) {
    char word[TEST_VALUE_TEXT], other[TEST_VALUE_TEXT + 1];
    const int length = (int)strcspn(at, "|");
    snprintf(word, sizeof word, "%.*s", length, at);
    ExpectTakesText(row->key, word, word);
    if (is_flag) ExpectTakes(row->key, index);
    snprintf(other, sizeof other, "%sx", word);
    ExpectRefusesText(row->key, other, values);
    snprintf(other, sizeof other, "%c%s", word[0] - 'a' + 'A', word + 1);
    ExpectRefusesText(row->key, other, values);
    word[length - 1] = 0;
    ExpectRefusesText(row->key, word, values);
    at += length + (at[length] == '|');
  }
  EXPECT(index >= 2, "%s has one word", row->key);
  ExpectRefusesText(row->key, row->words, values);
  ExpectRefuses(row->key, is_flag ? 2 : 1, values);
  ExpectRefuses(row->key, is_flag ? 0.5 : 0, values);
}

static void ExpectSeeds(const char* key, const char* values) {
  ExpectTakes(key, 0);
  ExpectTakes(key, 0x1p53);
  ExpectTakes(key, nextafter(0x1p64, 0));
  ExpectTakesText(key, "18446744073709551615", "18446744073709551615");
  ExpectRefuses(key, 0x1p64, values);
  ExpectRefuses(key, 0.5, values);
  ExpectRefuses(key, -1, values);
  EXPECT_REFUSES_TEXTS(key, values, "18446744073709551616", "-1", "1.0", "12x");
}

static void ExpectPools(const char* key, const char* values) {
  static const char* const kGood[] = {"none", "avg1",    "avg7", "avg1023",
                                      "max1", "max1023", "max3"};
  for (size_t i = 0; i < sizeof kGood / sizeof *kGood; ++i) {
    ExpectTakesText(key, kGood[i], kGood[i]);
  }
  EXPECT_REFUSES_TEXTS(key, values, "avg", "avg0", "avg8", "avg1025", "avg-7",
                       "avg7x", "avg4294967297", "median5", "none1", "Max3",
                       "7");
  ExpectRefuses(key, 7, values);
}

Test(policy_parameters, take_what_is_in_their_range_and_nothing_else) {
  kvevict_parameter_info row = {.struct_size = sizeof row};
  for (uint32_t i = 0; kvevict_parameter_at(NULL, i, &row) == KVEVICT_OK; ++i) {
    char text[512];
    const char* const values = ValuesOf(&row, text, sizeof text);
    switch (row.type) {
      case KVEVICT_PARAMETER_NUMBER:
        ExpectNumbers(&row, values);
        break;
      case KVEVICT_PARAMETER_COUNT:
        ExpectCounts(&row, values);
        ExpectRefuses(row.key, 0.5, values);
        break;
      case KVEVICT_PARAMETER_COUNT_OR_SHARE:
        ExpectCounts(&row, values);
        ExpectTakes(row.key, nextafter(0, 1));
        ExpectTakes(row.key, 0.25);
        ExpectTakes(row.key, nextafter(1, 0));
        ExpectRefuses(row.key, nextafter(1, 2), values);
        ExpectRefuses(row.key, -0.5, values);
        break;
      case KVEVICT_PARAMETER_SEED:
        ExpectSeeds(row.key, values);
        break;
      case KVEVICT_PARAMETER_POOL:
        ExpectPools(row.key, values);
        break;
      default:
        ExpectWords(&row, values);
        break;
    }
    ExpectRefuses(row.key, (double)NAN, values);
    ExpectRefuses(row.key, (double)INFINITY, values);
    ExpectRefuses(row.key, (double)-INFINITY, values);
    EXPECT_REFUSES_TEXTS(row.key, values, "", "?", "nan", "inf");
  }
}

Test(policy_parameters, messages_show_numbers_apart_from_their_bounds) {
  kvevict_policy* p = test_policy("snapkv");
  EXPECT_INVALID(kvevict_policy_set_number(p, "alpha", 1.0 + 0x1p-52),
                 "alpha=\"1.0000000000000002\" is not a number in (0, 1]");
  EXPECT_INVALID(kvevict_policy_set_number(p, "budget", -1e-300),
                 "budget=\"-1e-300\" is not");
  EXPECT_INVALID(kvevict_policy_set_number(p, "select_block", 65537),
                 "select_block=\"65537\" is not");
}

Test(policy_parameters, that_are_no_doubles_are_read_as_texts) {
  static const struct {
    const char *policy, *key, *message;
  } kRows[] = {
      {"random:seed=9007199254740993", "seed", "seed 9007199254740993 > 2^53"},
      {"snapkv", "pool", "pool is no number"},
      {"snapkv", "tie", "tie is no number"},
      {"snapkv", "split", "split is no number"}};
  for (int i = 0; i < 4; ++i) {
    double value = 3;
    EXPECT_INVALID(kvevict_policy_get_number(test_policy(kRows[i].policy),
                                             kRows[i].key, &value),
                   kRows[i].message);
    cr_expect_eq(value, 3);
  }
}

/* ---- Keys ---- */

Test(policy_parameters, a_policy_knows_no_others_keys) {
  const char* name;
  for (uint32_t k = 0; (name = PolicyAt(k)) != NULL; ++k) {
    kvevict_policy* policy = test_policy(name);
    const kvevict_policy* before = test_policy_copy(policy);
    kvevict_parameter_info row = {.struct_size = sizeof row, .key = "n_sink"};
    for (uint32_t r = 0;
         r == 0 || kvevict_parameter_at(NULL, r - 1, &row) == KVEVICT_OK; ++r) {
      if (Has(name, row.key)) continue;
      char alike[256], message[320], text[TEST_VALUE_TEXT];
      KeysLike(name, row.key, alike, sizeof alike);
      snprintf(message, sizeof message, "%s has no key \"%s\"%s", name, row.key,
               alike);
      double number = 3;
      size_t length = 77;
      GUARD(text);
      EXPECT_INVALID(kvevict_policy_set(policy, row.key, "1"), message);
      EXPECT_INVALID(kvevict_policy_set_number(policy, row.key, 1), message);
      EXPECT_INVALID(
          kvevict_policy_get(policy, row.key, text, sizeof text, &length),
          message);
      EXPECT_INVALID(kvevict_policy_get_number(policy, row.key, &number),
                     message);
      EXPECT_UNTOUCHED(text);
      EXPECT(number == 3 && length == 77, "%s: written", row.key);
      EXPECT(test_same_policy(policy, before), "%s changed", row.key);
      char whole[128];
      snprintf(whole, sizeof whole, "%s: %s=1", name, row.key);
      snprintf(message, sizeof message,
               "policy text, column %zu: %s has no key \"%s\"%s",
               strlen(name) + 3, name, row.key, alike);
      EXPECT_NO_POLICY(whole, message);
    }
  }
}

/* ---- All at once ---- */

/* The values of these keys are 0, 0 and no, or the policy has no such keys. */
static bool KeepsNoEnd(const kvevict_policy* policy) {
  static const char* const kKeys[] = {"sink", "recent", "keep_window"};
  bool keeps = false;
  for (int i = 0; i < 3; ++i) {
    char value[TEST_VALUE_TEXT] = "";
    (void)kvevict_policy_get(policy, kKeys[i], value, sizeof value, NULL);
    keeps = keeps || (value[0] != 0 && strcmp(value, i < 2 ? "0" : "no") != 0);
  }
  return !keeps;
}

/* A text has the parameters in their order. It leaves defaults out, but says if neither
 * end stays. */
static void ExpectShort(const kvevict_policy* policy, const char* text) {
  char name[40], expected[TEST_POLICY_TEXT], value[TEST_VALUE_TEXT];
  snprintf(name, sizeof name, "%.*s", (int)strcspn(text, ":"), text);
  strcpy(expected, name);
  kvevict_parameter_info row = {.struct_size = sizeof row};
  for (uint32_t i = 0; kvevict_parameter_at(name, i, &row) == KVEVICT_OK; ++i) {
    const bool is_end =
        strcmp(row.key, "sink") == 0 || strcmp(row.key, "recent") == 0;
    const bool is_said =
        is_end && KeepsNoEnd(policy) && strcmp(name, "streaming-llm") != 0;
    if (strcmp(Get(policy, row.key, value), row.default_text) == 0 && !is_said)
      continue;
    const size_t length = strlen(expected);
    snprintf(expected + length, sizeof expected - length, "%c%s=%s",
             strchr(expected, ':') == NULL ? ':' : ',', row.key, value);
  }
  EXPECT(strcmp(text, expected) == 0, "%s\nnot %s", text, expected);
}

Test(policy_parameters, set_one_by_one_are_those_of_the_text) {
  test_random random = test_random_start("policy_parameters one by one");
  for (int i = 0; i < 1000; ++i) {
    const kvevict_policy* policy = test_random_policy(&random);
    char text[TEST_POLICY_TEXT], value[TEST_VALUE_TEXT];
    EXPECT_OK(kvevict_policy_format(policy, text, sizeof text, NULL));
    EXPECT(test_same_policy(test_policy(text), policy), "round %d: %s", i,
           text);
    ExpectShort(policy, text);
    text[strcspn(text, ":")] = 0;
    kvevict_policy* by_text = test_policy(text);
    kvevict_policy* by_number = test_policy(text);
    kvevict_parameter_info row = {.struct_size = sizeof row};
    for (uint32_t r = 0; kvevict_parameter_at(text, r, &row) == KVEVICT_OK;
         ++r) {
      double number = 0;
      EXPECT_OK(
          kvevict_policy_set(by_text, row.key, Get(policy, row.key, value)));
      if (kvevict_policy_get_number(policy, row.key, &number) == KVEVICT_OK) {
        EXPECT_OK(kvevict_policy_set_number(by_number, row.key, number));
      } else {
        EXPECT_OK(kvevict_policy_set(by_number, row.key, value));
      }
    }
    EXPECT(test_same_policy(by_text, policy), "round %d: %s", i, text);
    EXPECT(test_same_policy(by_number, policy), "round %d: %s", i, text);
  }
}

/* Sets a number with as many digits as a double needs, or the longest word that is
 * not the default. */
static void SetLongest(kvevict_policy* policy,
                       const kvevict_parameter_info* row) {
  char text[TEST_VALUE_TEXT] = "18446744073709551615";
  switch (row->type) {
    case KVEVICT_PARAMETER_NUMBER:
    case KVEVICT_PARAMETER_COUNT_OR_SHARE:
      snprintf(text, sizeof text, "%.17g", row->least * 1.0123456789);
      if (row->least <= 0 || row->type == KVEVICT_PARAMETER_COUNT_OR_SHARE) {
        strcpy(text, row->least < 0 ? "-1.2345678901234567e-300"
                                    : "1.2345678901234567e-300");
      }
      break;
    case KVEVICT_PARAMETER_COUNT:
      snprintf(text, sizeof text, "%.0f", row->most);
      break;
    case KVEVICT_PARAMETER_POOL:
      strcpy(text, "max1023");
      break;
    case KVEVICT_PARAMETER_FLAG:
    case KVEVICT_PARAMETER_WORD:
      text[0] = 0;
      for (const char* at = row->words; *at != 0;) {
        char word[TEST_VALUE_TEXT];
        const size_t length = strcspn(at, "|");
        snprintf(word, sizeof word, "%.*s", (int)length, at);
        if (length > strlen(text) && strcmp(word, row->default_text) != 0) {
          strcpy(text, word);
        }
        at += length + (at[length] == '|');
      }
      break;
    default:
      break;
  }
  EXPECT_OK(kvevict_policy_set(policy, row->key, text));
}

Test(policy_parameters, of_the_longest_texts_are_written_in_full) {
  const char* name;
  for (uint32_t k = 0; (name = PolicyAt(k)) != NULL; ++k) {
    kvevict_policy* policy = test_policy(name);
    kvevict_parameter_info row = {.struct_size = sizeof row};
    char text[TEST_POLICY_TEXT];
    for (uint32_t i = 0; kvevict_parameter_at(name, i, &row) == KVEVICT_OK;
         ++i) {
      SetLongest(policy, &row);
    }
    EXPECT_OK(kvevict_policy_format(policy, text, sizeof text, NULL));
    ExpectShort(policy, text);
  }
}

/* ---- Enumeration and texts ---- */

Test(policy_parameters, fit_a_text_exactly_or_leave_it_alone) {
  const kvevict_policy* policy = test_policy("snapkv:pool=max11");
  size_t length = 0;
  EXPECT_OK(kvevict_policy_get(policy, "pool", NULL, 0, &length));
  cr_expect_eq(length, 5);
  EXPECT_OK(kvevict_policy_get(policy, "pool", NULL, 0, NULL));
  for (size_t capacity = 1; capacity <= 5; ++capacity) {
    char text[16];
    size_t out = 77;
    GUARD(text);
    EXPECT_INVALID(kvevict_policy_get(policy, "pool", text, capacity, &out),
                   "text_capacity", "5");
    EXPECT_UNTOUCHED(text);
    cr_expect_eq(out, 77);
  }
  char text[16];
  GUARD(text);
  EXPECT_OK(kvevict_policy_get(policy, "pool", text, 6, NULL));
  cr_expect_str_eq(text, "max11");
  cr_expect(test_is_filled(text + 6, sizeof text - 6));
}

Test(policy_parameters, enumeration_ends_with_an_error_and_untouched_output) {
  kvevict_parameter_info row;
  GUARD(row);
  row.struct_size = sizeof row;
  const kvevict_parameter_info before = row;
  EXPECT_INVALID(kvevict_parameter_at(NULL, UINT32_MAX, &row), "index");
  EXPECT_INVALID(kvevict_parameter_at("none", 0, &row), "index 0");
  EXPECT_INVALID(kvevict_parameter_at("snapkv", 1000, &row), "index 1000",
                 " parameters");
  EXPECT_INVALID(kvevict_parameter_at("snapkw", 0, &row), "snapkw",
                 "no policy or preset");
  cr_expect(memcmp(&row, &before, sizeof row) == 0);
  GROWN(kvevict_parameter_info) grown = {{.struct_size = 0}};
  EXPECT_CHECKS_OUT_STRUCT_SIZE(grown,
                                kvevict_parameter_at(NULL, 1, &grown.value));
}

/* Otherwise a policy made from its own text would differ. */
Test(policy_parameters, minus_0_is_0) {
  ExpectTakesText("threshold", "-0", "0");
  ExpectTakesText("epsilon", "-0.0", "0");
}
