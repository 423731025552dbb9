// A random model through the life of a sequence, on the GPU and on the CPU.
//
// If the GPU scores keys, the CPU's sequence has policy custom and is given the
// GPU's scores: from then on both must do the same.
#ifndef KVEVICT_TESTS_GPU_RANDOM_MODEL_H_
#define KVEVICT_TESTS_GPU_RANDOM_MODEL_H_

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/gpu/gpu.h"
#include "tests/gpu/random_case.h"
#include "tests/gpu/random_layer.h"
#include "tests/gpu/report.h"

namespace kvevict::gpu {

// A workspace on the host.
class HostWorkspace {
 public:
  explicit HostWorkspace(size_t n_bytes)
      : memory_(n_bytes == 0
                    ? nullptr
                    : std::aligned_alloc(64, (n_bytes + 63) / 64 * 64)),
        n_bytes_(n_bytes) {}
  HostWorkspace(const HostWorkspace&) = delete;
  HostWorkspace& operator=(const HostWorkspace&) = delete;
  ~HostWorkspace() { std::free(memory_); }

  void* memory() const { return memory_; }
  size_t n_bytes() const { return n_bytes_; }

 private:
  void* memory_;
  size_t n_bytes_;
};

// Query rows in random strides, on both sides.
struct QueryRows {
  std::vector<uint8_t> bytes;
  std::unique_ptr<Buffer> buffer;
  kvevict_plane host;
  kvevict_plane device;
};

class RandomModel {
 public:
  RandomModel(const Gpu& gpu, Random* random, const ModelCase& model);

  // False if both sides refuse the policy. Throws if only one does.
  bool MakePlans();

  const Geometry& geometry() const { return case_.geometry; }
  bool IsFull(uint32_t layer) const { return case_.geometry.IsFull(layer); }
  uint32_t n_kv_heads(uint32_t layer) const {
    return case_.geometry.layer(layer).n_kv_heads;
  }
  uint32_t first_full() const;
  const oracle_policy& policy() const { return case_.policy; }
  // The heads of a layer may hold different numbers.
  bool IsRagged() const {
    return !case_.head_budgets.empty() ||
           case_.policy.heads != ORACLE_HEADS_EQUAL;
  }
  // Whether the twin uses the GPU's numbers.
  bool lends_scores() const { return case_.policy.kind != twin_policy_.kind; }
  // Whether mean and covariance of queries are handed over.
  bool by_statistics() const {
    return case_.policy.kind == ORACLE_EXPECTED_ATTENTION;
  }
  bool by_given_weights() const {
    return case_.policy.kind != ORACLE_STREAMING_LLM &&
           case_.policy.weight == ORACLE_WEIGHT_GIVEN;
  }
  bool by_attention() const {
    return lends_scores() && ByWindow(case_.policy.kind);
  }
  // Whether queries of every slot score.
  bool by_all_queries() const { return case_.policy.kind == ORACLE_NON_CAUSAL; }
  // Whether reference queries score, alone or with the window's.
  bool by_reference() const { return case_.policy.reference > 0; }
  bool by_filter() const { return case_.policy.kind == ORACLE_Q_FILTER; }
  bool by_centers() const { return case_.policy.kind == ORACLE_TRIATTENTION; }
  // Whether statistics, filters, centers or weights are given, on both sides.
  bool takes_given_rows() const {
    return by_statistics() || by_filter() || by_centers() ||
           by_given_weights() || by_all_queries() || by_reference();
  }
  // Otherwise every eviction is handed the window's rows.
  bool observes() const { return observes_; }
  bool observes_sums() const { return observes_sums_; }
  bool takes_sums() const { return policy().kind == ORACLE_H2O; }
  bool takes_scores() const { return policy().kind == ORACLE_CUSTOM; }
  bool has_tables() const { return case_.table_block > 0; }
  // Whether at least the twin takes scores or sums.
  bool takes_rows() const {
    return takes_sums() || twin_policy_.kind == ORACLE_CUSTOM;
  }
  const kvevict_context* context() const { return context_.get(); }
  const kvevict_context* host_context() const { return host_context_.get(); }
  const kvevict_plan* plan() const { return plan_.get(); }
  // The same policy's plan on the CPU, and the sequence there.
  const kvevict_plan* host_plan() const { return host_plan_.get(); }
  const kvevict_plan* twin_plan() const { return twin_plan_.get(); }
  kvevict_sequence* sequence() const { return sequence_.get(); }
  kvevict_sequence* twin() const { return twin_.get(); }

  // A layer may share the cache of the one before.
  bool OwnsCache(uint32_t layer) const { return caches_[layer] != nullptr; }
  RandomLayer& cache(uint32_t layer) const;

  uint32_t Stored(uint32_t layer, uint32_t kv_head) const;
  std::vector<uint32_t> Counts(uint32_t layer) const;  // all heads'
  uint32_t Stored(uint32_t layer) const;               // of any head
  uint32_t Logical() const;
  // The tokens that the longest layer can still take.
  uint32_t Room() const;
  QueryRows Queries(uint32_t layer, uint32_t first, uint32_t n) const;
  // Queries of no token: those of drawn ones.
  QueryRows ReferenceQueries(uint32_t layer) const;

  // The stream for the next call: the last one's, or another that waits for it.
  kvevict_stream NextStream();
  void Synchronize() const;
  // Runs a call's work by a graph, or by itself if the call cannot be captured.
  kvevict_status Run(const std::function<kvevict_status(kvevict_stream)>& call);

  // ---- What an engine does besides evicting ----

  void Append(uint32_t n);
  // Decodes by a graph of one step, a new one or that of earlier steps.
  void Decode(uint32_t n);
  // Takes back a few tokens if both sides allow it, and observes the window again.
  void Trim();
  void EndPrompt();
  void Reset();
  // Goes on with copies: forks, or sequences that load what the other side saved,
  // or start from its positions.
  void Copy(Report* report);

  // Compares the GPU's stored and logical lengths, the counted ones, and the CPU's.
  void ExpectSameLengths(Report* report) const;
  // Compares attention sums, or scores given, to the last bit if they are known.
  void ExpectSameSums() const;

 private:
  QueryRows QueriesOf(uint32_t layer,
                      const std::vector<uint32_t>& positions) const;
  void DrawTwinPolicy();
  void Fork();
  void Load(Report* report);
  void Start();
  void EndObserving();
  void ObserveWindow();
  // False if both sides refuse.
  bool ObserveSums(uint32_t first, uint32_t n);
  struct SumRows;
  struct Step;
  std::shared_ptr<Step> CaptureStep();
  void MoveTo(cuda::CUstream stream);
  void AddTokens(uint32_t n);  // rows of caches, queries
  void Observe(uint32_t layer, uint32_t first, uint32_t n, bool next);
  void ObserveLayers(uint32_t first, uint32_t n, bool next);

  const Gpu& gpu_;
  Random& random_;
  const ModelCase case_;
  oracle_policy twin_policy_{};
  bool special_;        // NaN and infinities are among the keys
  bool packs_queries_;  // so that layers go together
  bool observes_ = false;
  bool observes_sums_ = false;
  bool sums_are_known_ = false;
  OtherStream other_stream_;
  cuda::CUstream stream_;
  ContextHandle context_;
  ContextHandle host_context_;
  PlanHandle plan_;
  PlanHandle host_plan_;
  PlanHandle twin_plan_;
  SequenceHandle sequence_;
  SequenceHandle twin_;
  std::shared_ptr<Step> step_;
  std::vector<std::unique_ptr<RandomLayer>> caches_;
  // [layer][position]: packed rows of all heads.
  std::vector<std::vector<std::vector<uint8_t>>> queries_;
};

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_RANDOM_MODEL_H_
