// Appends, captures, evictions, trims, copies, changes of the plan and resets in
// any order, of single sequences or in batches, are refused or done as models made
// of plain vectors do them.
#include <memory>
#include <vector>

#include "kvevict/batch.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/sequence_life.h"

namespace kvevict {
namespace {

// A few sequences of one context.
class Fuzz {
 public:
  explicit Fuzz(Draw& draw) : draw_(draw) {
    FUZZ_CHECK(kvevict_context_create(nullptr, &context_) == KVEVICT_OK);
    const uint32_t n = 1 + draw.Below(3);
    for (uint32_t i = 0; i < n; ++i) {
      lives_.push_back(std::make_unique<Life>(draw, context_));
    }
  }
  ~Fuzz() {
    lives_.clear();
    kvevict_context_destroy(context_);
  }

  void Step() {
    if (draw_.Below(4) > 0) {
      return lives_[draw_.Below(static_cast<uint32_t>(lives_.size()))]->Step();
    }
    std::vector<Life*> some;
    for (const auto& life : lives_) {
      if (draw_.Below(4) > 0) some.push_back(life.get());
    }
    switch (draw_.Below(3)) {
      case 0:
        Append(some);
        break;
      case 1:
        Trim(some);
        break;
      default:
        Evict(some);
    }
    for (const auto& life : lives_) life->Check();
  }

 private:
  // Appends to all or to none.
  void Append(const std::vector<Life*>& lives) {
    std::vector<kvevict_sequence_tokens> items;
    bool fits = true;
    for (const Life* life : lives) {
      items.push_back(
          {sizeof(kvevict_sequence_tokens), draw_.Below(30), life->sequence()});
      fits = fits && life->HasRoom(items.back().n_tokens);
    }
    FUZZ_CHECK((kvevict_sequences_append(items.data(), items.size(), nullptr) ==
                KVEVICT_OK) == fits);
    for (size_t i = 0; i < lives.size() && fits; ++i) {
      lives[i]->Appended(items[i].n_tokens);
    }
  }

  void Trim(const std::vector<Life*>& lives) {
    std::vector<kvevict_sequence_length> items;
    bool fits = true;
    for (const Life* life : lives) {
      items.push_back({sizeof(kvevict_sequence_length),
                       draw_.Below(life->n_seen() + 2), life->sequence()});
      fits = fits && life->IsExact(items.back().new_length);
    }
    FUZZ_CHECK((kvevict_sequences_trim_to(items.data(), items.size(),
                                          nullptr) == KVEVICT_OK) == fits);
    for (size_t i = 0; i < lives.size() && fits; ++i) {
      lives[i]->Trimmed(items[i].new_length);
    }
  }

  void Evict(const std::vector<Life*>& lives) {
    std::vector<Eviction> evictions(lives.size());
    std::vector<kvevict_sequence_eviction> items;
    bool fits = true;
    for (size_t i = 0; i < lives.size(); ++i) {
      lives[i]->Draw(&evictions[i]);
      fits = fits && evictions[i].fits;
      kvevict_sequence_eviction item = KVEVICT_SEQUENCE_EVICTION_INIT;
      item.sequence = lives[i]->sequence();
      item.views = evictions[i].views;
      item.views_len = kLayers;
      item.options = &evictions[i].options;
      items.push_back(item);
    }
    kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
    FUZZ_CHECK(kvevict_sequences_workspace(items.data(), items.size(), &size) ==
               KVEVICT_OK);
    const Workspace workspace(size.best_bytes);
    const kvevict_status status =
        kvevict_sequences_evict(items.data(), items.size(), workspace.memory(),
                                workspace.n_bytes(), nullptr);
    FUZZ_CHECK((status == KVEVICT_OK) == fits);
    for (size_t i = 0; i < lives.size() && fits; ++i) {
      lives[i]->Evicted(evictions[i]);
    }
  }

  Draw& draw_;
  kvevict_context* context_ = nullptr;
  std::vector<std::unique_ptr<Life>> lives_;
};

}  // namespace
}  // namespace kvevict

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvevict::Draw draw(data, size);
  kvevict::Fuzz fuzz(draw);
  for (int i = 0; i < 40 && !draw.empty(); ++i) fuzz.Step();
  return 0;
}
