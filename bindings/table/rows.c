/* Prints a row `param key Type doc` for each parameter of policies, and a row
 * `dtype id block_elements block_bytes name` for each dtype. */
#include <stdio.h>

#define KVEVICT_PARAM(key, Type, value, range, has, words, doc) \
  puts("param\t" #key "\t" #Type "\t" doc);

#define KVEVICT_DTYPE(Name, text, id, element_bytes, block_elements, \
                      block_bytes, ...)                              \
  puts("dtype\t" #id "\t" #block_elements "\t" #block_bytes "\t" text);

int main(void) {
#include "core/dtypes.inc"
#include "core/policy/params.inc"
  return 0;
}
