// The calls that lines name.
#ifndef KVEVICT_BINDINGS_TRANSCRIPT_CALLS_H_
#define KVEVICT_BINDINGS_TRANSCRIPT_CALLS_H_

#include <functional>
#include <map>
#include <string>

#include "bindings/transcript/line.h"
#include "bindings/transcript/objects.h"

namespace transcript {

using Call = std::function<kvevict_status(Line&, Objects&, Results&)>;
using Calls = std::map<std::string, Call>;

// By the function's name without its prefix.
void AddTables(Calls* calls);  // tables, policies, plans, calibrations
void AddSequences(
    Calls* calls);            // sequences, batches, calls without a sequence
void AddPaged(Calls* calls);  // paged caches, prefill

/// A report of an eviction as text.
std::string ReportOf(const kvevict_sequence* sequence);
/// Reports of the sequences of a call's items.
template <class Item>
std::string ReportsOf(const Item* items, std::size_t n) {
  std::string reports;
  for (std::size_t i = 0; i < n; ++i) {
    reports += (i == 0 ? "" : ",") + ReportOf(items[i].sequence);
  }
  return reports;
}
/// A float's bits: no language writes its decimals as another does.
std::string Bits(float value);

}  // namespace transcript

#endif  // KVEVICT_BINDINGS_TRANSCRIPT_CALLS_H_
