/* Prints a row `param key Type doc` for each parameter of policies. */
#include <stdio.h>

#define KVEVICT_PARAM(key, Type, value, range, has, words, doc) \
  puts("param\t" #key "\t" #Type "\t" doc);

int main(void) {
#include "core/policy/params.inc"
  return 0;
}
