#include "evictions.h"

#include <string>

#include "hook.h"
#include "log.h"

namespace kvevict::llama_preload {
namespace {

void Announce(Context& c, const Rows& rows) {
  std::vector<llama_seq_id> seqs;
  std::vector<llama_pos> positions;
  for (const Row& row : rows) {
    if (row.shared) return;  // The adapter refuses these sequences later.
    seqs.push_back(row.seq);
    if (row.position >= 0) positions.push_back(row.position);
  }
  kvevict_llama_tokens(
      c.kv, seqs.data(),
      positions.size() == seqs.size() ? positions.data() : nullptr,
      seqs.size());
}

// Whether a sequence has been read up to a token whose successor the program wants. With
// several such tokens it checks a draft, and may take tokens back.
bool IsToBeEvicted(const Rows& rows, llama_seq_id seq) {
  const Row* last = nullptr;
  size_t outputs = 0;
  for (const Row& row : rows) {
    if (row.seq != seq) continue;
    last = &row;
    outputs += row.output ? 1 : 0;
  }
  return last != nullptr && last->output && outputs == 1;
}

// Evicts the sequences of a batch. Returns false if one was lost.
bool Evict(Context& c, const Rows& rows) {
  for (size_t i = 0; i < c.sequences.size(); ++i) {
    Sequence& s = c.sequences[i];
    const auto seq = static_cast<llama_seq_id>(i);
    if (!IsToBeEvicted(rows, seq)) continue;
    kvevict_llama_report report = KVEVICT_LLAMA_REPORT_INIT;
    const kvevict_status status =
        kvevict_llama_evict(c.kv, seq, nullptr, &report);
    if (status == KVEVICT_OK) {
      s.said = s.waits = false;
      if (report.evicted == 0) continue;
      c.LearnExactFrom(seq);
      Log("seq ", seq, " at ", s.exact_from, ": ", report.cells_before, " -> ",
          report.cells_after, " cells, ", report.bytes_before >> 10, " -> ",
          report.bytes_after >> 10, " KiB, ", report.total_ms, " ms, ",
          report.in_place != 0 ? "in place" : "by state");
      continue;
    }
    const std::string why = kvevict_llama_last_error_message();
    const bool lost = why.starts_with("sequence lost: ");
    if (why.starts_with("options.calibration: ")) {
      // It is not the model's, so no eviction of this context can succeed.
      c.automatic = false;
      SayOnce("nothing is evicted: ", why);
      return true;
    }
    if (status == KVEVICT_ERROR_INVALID_ARGUMENT) {
      if (!s.waits) Log("seq ", seq, " is not evicted yet: ", why);
      s.waits = true;
      continue;
    }
    if (!s.said) Say("seq ", seq, " is not evicted: ", why);
    s.said = !lost;
    if (lost) {
      s = {};
      return false;
    }
  }
  return true;
}

}  // namespace

int32_t Process(Context& c, const Rows& rows,
                const std::function<int32_t()>& decode) {
  constexpr int32_t kFailed = -3;
  const Inside guard;
  Announce(c, rows);
  const int32_t status = decode();
  const bool evict = status == 0 && c.automatic;
  return evict && !Evict(c, rows) ? kFailed : status;
}

}  // namespace kvevict::llama_preload
