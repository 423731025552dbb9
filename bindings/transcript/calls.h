// The calls that lines name.
#ifndef KVEVICT_BINDINGS_TRANSCRIPT_CALLS_H_
#define KVEVICT_BINDINGS_TRANSCRIPT_CALLS_H_

#include <map>
#include <string>

#include "bindings/transcript/line.h"
#include "bindings/transcript/objects.h"

namespace transcript {

using Call = kvevict_status (*)(Line&, Objects&, Results&);
using Calls = std::map<std::string, Call>;

// By the function's name without its prefix.
void AddTables(Calls* calls);     // tables, policies, plans
void AddDoors(Calls* calls);      // score, select, compact, ...
void AddSequences(Calls* calls);  // sequences and batches
void AddPaged(Calls* calls);      // paged caches, prefill
void AddCalibrations(Calls* calls);

/// A size of a workspace as a result.
kvevict_status AddWorkspace(kvevict_status status, const kvevict_workspace& w,
                            Results& out);
/// A report of an eviction as text.
std::string ReportOf(const kvevict_sequence* sequence);
/// A float's bits: no language writes its decimals as another does.
std::string Bits(float value);

}  // namespace transcript

#endif  // KVEVICT_BINDINGS_TRANSCRIPT_CALLS_H_
