// An adapter: what it knows about a context and its sequences, and what it does
// to them.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_ADAPTER_H_
#define KVEVICT_INTEGRATIONS_LLAMA_ADAPTER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bytes.h"
#include "context_state.h"
#include "include/kvevict-llama.h"
#include "layers.h"
#include "observer.h"
#include "policy.h"
#include "query_rows.h"
#include "rotation.h"

namespace kvevict::llama {

// The key of a sequence's last token in the deepest layer of a cache. If
// somebody else has set the state it is a different key.
struct Witness {
  int64_t cell = -1;  // counted over all streams; -1: not known
  std::vector<uint8_t> key;
};

// What is known about one of llama.cpp's sequences.
struct Sequence {
  SequenceHandle handle;  // nullptr until the layers are known
  uint32_t next = 0;      // position of the next token
  uint32_t n_cells = 0;
  uint32_t evicted_at = 0;  // `next` when it was last evicted
  bool in_order = true;     // cell i of its stream has the i-th token
  bool placed = false;      // a token has shown which cells it has
  // llama.cpp's next position when the last graph was computed. Tokens beyond
  // it may be a copy that llama.cpp makes before the next graph.
  uint32_t computed_to = 0;
  std::string unfit;  // why it cannot be evicted any more; "" if it can
  std::vector<QueryRows> queries;          // by llama.cpp's layer
  std::vector<CalibrationHandle> moments;  // likewise, of one layer each
  std::array<Witness, 2> witnesses;        // by llama.cpp's cache
  uint32_t witnessed = 0;                  // the position of their token
  // The last token's key in the deepest evicted layer, and its position. They
  // are set when a state was set here, which leaves the token's cell unknown,
  // until a state is seen that has the key and later tokens. Empty otherwise.
  std::vector<uint8_t> state_key;
  uint32_t state_last = 0;
  // True if llama.cpp will copy rows into its stream before the next graph,
  // overwriting what it holds then.
  bool awaits_rows = false;
  llama_seq_id rows_from = -1;  // those of this sequence, if it awaits any
};

inline constexpr char kRemedy[] =
    "; remove all of it and decode it anew, or load a state of it";

// The positions of the first layer's first head, which are those of llama.cpp's
// cells.
std::vector<int32_t> PositionsOf(const kvevict_sequence* sequence);

}  // namespace kvevict::llama

struct kvevict_llama final : private kvevict::llama::GraphListener {
 public:
  kvevict_llama(const char* policy, const kvevict_llama_options& options);

  // The callback.
  bool Eval(ggml_tensor* node, bool ask);
  void Chain(ggml_backend_sched_eval_callback callback, void* user_data);

  void Attach(llama_context* ctx);
  void SetBatch(const llama_batch& batch);
  void Announce(std::span<const llama_seq_id> seqs, const llama_pos* positions);
  void Evict(llama_seq_id seq, const kvevict_llama_evict_options& options,
             kvevict_llama_report& report);
  void Copy(llama_seq_id from, llama_seq_id to);
  void EndPrompt(llama_seq_id seq);
  void Invalidate(llama_seq_id seq);
  uint32_t EvictedAt(llama_seq_id seq) const;
  void Trim(llama_seq_id seq, uint32_t new_length);
  const kvevict_sequence* Handle(llama_seq_id seq);
  uint32_t LayerIndex(uint32_t i) const;
  const kvevict_calibration* Calibrate(uint32_t has_covariances);
  void Save(llama_seq_id seq, const char* path,
            std::span<const llama_token> tokens);
  size_t Load(llama_seq_id seq, const char* path,
              std::span<llama_token> tokens);
  // Returns the bytes of the session and writes them unless data is NULL.
  size_t SaveData(llama_seq_id seq, std::span<const llama_token> tokens,
                  std::span<uint8_t> data);
  // Messages call the data `name`.
  size_t LoadData(llama_seq_id seq, const char* name,
                  std::span<const uint8_t> data, std::span<llama_token> tokens);

 private:
  using Sequence = kvevict::llama::Sequence;
  using State = kvevict::llama::State;
  using SinkLogits = kvevict::llama::SinkLogits;
  using RopeFactors = kvevict::llama::RopeFactors;
  using LayerShape = kvevict::llama::LayerShape;
  using Layer = kvevict::llama::Layer;
  using Rotation = kvevict::llama::Rotation;
  using CalibrationHandle = kvevict::llama::CalibrationHandle;
  struct Eviction;
  struct Session;
  // Memory of a layer's inputs, which the planes point to.
  struct LayerInputs {
    kvevict_plane queries, weights, mean, covariance, centers;
    std::vector<float> weight_values, mean_values, covariance_values,
        center_values;
  };
  // A sequence from another adapter or a file.
  struct Incoming {
    std::span<const LayerShape> shapes;
    std::span<const float> sinks;
    std::span<const uint8_t> saved;  // by kvevict_sequence_save()
    std::span<const uint8_t> state;
    uint32_t next, evicted_at, n_cells;
    RopeFactors rope_factors;
    std::span<const Rotation> rotations = {};  // by layer; a file has none
  };

  void OnBatch(std::span<const kvevict::llama::BatchRow> rows,
               const ggml_tensor* cache) override;
  bool WantsQueries(size_t layer, const ggml_tensor* q) override;
  void OnQueries(size_t layer, const ggml_tensor* q) override;
  void OnShift() override;

  void AddToken(llama_seq_id seq, int64_t position, int64_t cell);
  void TakeBack(Sequence& s, uint32_t position);
  // witness.cc
  void TakeWitnesses(size_t layer);
  // A cell's key in the deepest evicted layer.
  std::vector<uint8_t> KeyIn(const State& state, uint32_t cell) const;
  // Throw unless llama.cpp's cells of a sequence are the known ones. They
  // compare the number of cells, a state, or whatever is cheapest.
  void CheckCount(const Sequence& s, llama_seq_id seq) const;
  void CheckState(Sequence& s, llama_seq_id seq, const State& state) const;
  void CheckCells(Sequence& s, llama_seq_id seq) const;
  bool WasShifted(const Sequence& s, llama_seq_id seq,
                  const State& state) const;
  void CheckWitnesses(Sequence& s) const;
  void MoveWitnesses(Sequence& s, llama_seq_id seq, uint32_t n_cells) const;
  static void ForgetWitnesses(Sequence& s);
  const Layer* WitnessLayer(size_t cache) const;
  void Forget(Sequence& s);

  // adapter.cc: returns the sequence after updating it to llama.cpp's state;
  // throws if that is impossible.
  Sequence& Sync(llama_seq_id seq);
  // The same, but ignores tokens that were removed since, and reasons that make
  // it unfit.
  Sequence& Update(llama_seq_id seq);
  // Like Sync(), and compares llama.cpp's cells.
  Sequence& Verify(llama_seq_id seq);
  void CheckAllIsGone(llama_seq_id seq) const;
  // Whether layers with a window lack tokens that a sequence of this length
  // sees.
  bool HasLostWindow(llama_seq_id seq, uint32_t length) const;
  void CheckSeq(llama_seq_id seq) const;
  void CheckFit(const Sequence& s, llama_seq_id seq) const;
  // The position of the next token in llama.cpp.
  uint32_t NextOf(llama_seq_id seq) const;
  // copies.cc: throw if llama.cpp still has to copy rows from or to a stream.
  bool MayAwaitRows(llama_seq_id seq) const;
  void CheckRowsAreThere(llama_seq_id seq) const;
  void CheckNoneCopies(llama_seq_id seq) const;
  bool OthersHaveTokens(llama_seq_id seq) const;
  // Throws unless the cache surely has room for n_cells in place of `state`,
  // which `seq` has now.
  void CheckRoomBeside(llama_seq_id seq, const State& state,
                       uint32_t n_cells) const;
  void MakeReady(const Sequence& s);
  // Throws because llama.cpp did not take a state.
  [[noreturn]] void Lose(llama_seq_id seq, const std::string& why);

  // plan.cc
  void MakePlan(llama_seq_id seq);
  kvevict::llama::PlanHandle PlanFor(const kvevict_policy* policy,
                                     std::span<const LayerShape> shapes,
                                     std::span<const float> sinks,
                                     uint32_t max_tokens,
                                     const Rotation* rotation) const;
  void AdoptLayers(std::vector<LayerShape> shapes, SinkLogits sinks,
                   uint32_t max_tokens);
  // The rotation of the plan's keys; nullptr if the policy does not read it.
  const Rotation* RotationOfPlan(std::span<const LayerShape> shapes) const;
  std::vector<size_t> FullLayers(llama_seq_id seq);
  const Layer& LiveLayer(size_t i) const;
  uint64_t CellBytes() const;

  // session.cc
  void Pack(llama_seq_id seq, std::span<const llama_token> tokens,
            Session& out);

  // receive.cc: makes a sequence what another adapter or a file had.
  void Receive(llama_seq_id seq, const Incoming& incoming);
  void CheckIncoming(llama_seq_id seq, const Incoming& incoming);
  void CheckSameLayers(llama_seq_id seq, const Incoming& incoming) const;
  void CheckRoom(llama_seq_id seq, uint32_t n_cells) const;
  kvevict::llama::SequenceHandle LoadLists(
      std::span<const uint8_t> saved) const;

  // evict.cc
  void CheckPolicyFits() const;
  float MassKept(const kvevict_sequence* handle) const;
  const char* WhyNotInPlace(const Sequence& s, llama_seq_id seq) const;
  void EvictInPlace(llama_seq_id seq, Eviction& eviction);
  void EvictState(llama_seq_id seq, Eviction& eviction);
  bool WouldKeepAll(const Sequence& s, llama_seq_id seq) const;
  std::vector<kvevict_view> LiveViews(llama_seq_id seq) const;
  void Run(Sequence& s, Eviction& eviction,
           const std::vector<kvevict_view>& views);
  void FindQueries(const Sequence& s, size_t layer, kvevict_plane* plane,
                   kvevict_signal_inputs* inputs) const;
  // inputs.cc: what the policy reads for every layer in addition to the cache.
  void FindMoments(const Sequence& s, size_t layer, LayerInputs& own,
                   kvevict_signal_inputs& inputs);
  void FindCenters(size_t layer, LayerInputs& own,
                   kvevict_signal_inputs& inputs);
  void FindInputs(const Sequence& s, const std::vector<kvevict_view>& views,
                  std::vector<LayerInputs>& memory,
                  std::vector<kvevict_signal_inputs>& inputs);

  // calibration.cc
  // The rotation that all these layers have. Throws if they have none.
  const Rotation& RotationOf(std::span<const LayerShape> shapes) const;
  CalibrationHandle MakeCalibration(std::span<const LayerShape> shapes,
                                    bool has_covariances) const;
  CalibrationHandle MakeMoments(size_t index) const;
  std::vector<CalibrationHandle> CopyMoments(const Sequence& s) const;
  // Adds the graph's queries of llama.cpp's layer to the statistics that are
  // wanted.
  void AddQueries(size_t index, const ggml_tensor* q);
  void AddRun(size_t index, const ggml_tensor* q, size_t first, size_t n);
  // Reads a token's queries, [heads, head_dim].
  void ReadRow(const ggml_tensor* q, size_t row, float* out) const;
  // Loads the bytes of options.calibration when they are first needed.
  const kvevict_calibration* SavedCalibration();
  void Order(State& state, const std::vector<kvevict_view>& views);

  kvevict::llama::Policy policy_;
  std::vector<uint8_t> saved_bytes_;  // options.calibration
  bool wants_moments_ = false;        // of each sequence's own queries
  uint32_t h2o_rows_ = 0;             // queries that score by h2o
  uint32_t query_rows_ = 0;  // queries that are kept; 0: the policy reads none
  std::vector<Rotation> rotations_;  // by llama.cpp's layer
  CalibrationHandle saved_;          // nullptr until it is needed
  bool saved_has_covariances_ = false;
  // What kvevict_llama_calibrate() adds up; nullptr before.
  CalibrationHandle calibrated_;
  kvevict::llama::ContextHandle own_context_;
  const kvevict_context* context_;
  ggml_backend_sched_eval_callback chained_ = nullptr;
  void* chained_data_ = nullptr;
  bool asked_ = false, chained_asked_ = false;  // for the node asked for last

  llama_context* ctx_ = nullptr;
  kvevict::llama::ContextState state_;
  bool recurrent_ = false;  // has state of other kinds than cells
  bool windowed_ = false;
  uint32_t n_seq_max_ = 1;
  uint32_t n_streams_ = 0;  // 0: not known yet
  kvevict::llama::Observer observer_{this};
  std::vector<Sequence> sequences_;
  std::vector<llama_seq_id> batch_;  // sequences of the announced rows
  std::vector<llama_pos> batch_positions_;
  size_t batch_next_ = 0;
  struct RowOwner {
    llama_seq_id seq;
    uint32_t position;
    uint32_t later;  // rows of the same sequence after it
  };
  std::vector<RowOwner> rows_;  // rows of the graph being computed

  std::array<int32_t, 2> witness_layers_ = {
      -1, -1};  // llama.cpp's numbers, by cache

  // The layers that are evicted, once known.
  std::vector<LayerShape> shapes_;
  SinkLogits sinks_;
  RopeFactors rope_factors_ = RopeFactors::kNone;
  kvevict::llama::PlanHandle plan_;
  // Kept between evictions: their workspace, and the state of what stays in
  // place, which decoding prepares.
  kvevict::llama::Bytes workspace_;
  kvevict::llama::Bytes kept_state_;
};

#endif  // KVEVICT_INTEGRATIONS_LLAMA_ADAPTER_H_
