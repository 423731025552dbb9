#include "tests/gpu/random_undo.h"

#include <fmt/format.h>

#include "kvevict/edit.h"
#include "tests/gpu/doors.h"

namespace kvevict::gpu {
namespace {

void ExpectSameCaches(const RandomModel& model, Report* report) {
  for (uint32_t l = 0; l < model.geometry().n_layers; ++l) {
    if (!model.OwnsCache(l)) continue;
    const std::string difference = model.cache(l).Compare(model.Counts(l));
    report->FailIf(!difference.empty(),
                   fmt::format("layer {}: {}", l, difference));
    model.cache(l).Upload();  // makes rows that may hold anything alike again
  }
}

std::vector<int32_t> Positions(const kvevict_sequence* sequence, uint32_t layer,
                               uint32_t kv_head, uint32_t n_tokens) {
  std::vector<int32_t> positions(n_tokens);
  size_t n = 0;
  Check(kvevict_sequence_keep_positions(sequence, layer, kv_head,
                                        positions.data(), n_tokens, &n));
  return positions;
}

void ExpectHeldAlike(const RandomModel& model, Report* report) {
  for (uint32_t l = 0; l < model.geometry().n_layers; ++l) {
    if (!model.IsFull(l)) continue;
    for (uint32_t h = 0; h < model.n_kv_heads(l); ++h) {
      const uint32_t n = model.Stored(l, h);
      report->FailIf(Positions(model.sequence(), l, h, n) !=
                         Positions(model.twin(), l, h, n),
                     fmt::format("layer {}, head {}: positions differ", l, h));
    }
  }
}

}  // namespace

void ExpectAlike(const RandomModel& model, Report* report) {
  ExpectHeldAlike(model, report);
  ExpectSameCaches(model, report);
  model.ExpectSameSums();
}

UndoMemory::UndoMemory(const Gpu& gpu, Random* random, const RandomModel& model,
                       const std::vector<kvevict_view>& views,
                       const std::vector<kvevict_view>& host_views,
                       Report* report) {
  if (random->OneOf(2)) return;
  size_t n = 0;
  size_t host_n = 0;  // differs if only one side has memory for sums
  const kvevict_status status = kvevict_sequence_undo_bytes(
      model.sequence(), views.data(), views.size(), &n);
  const kvevict_status host_status = kvevict_sequence_undo_bytes(
      model.twin(), host_views.data(), host_views.size(), &host_n);
  report->FailIf(status != host_status || (n == 0) != (host_n == 0),
                 fmt::format("{} bytes to undo, not {}", n, host_n));
  if (status != KVEVICT_OK || n == 0) return;
  device = std::make_unique<Buffer>(gpu, n);
  host = std::make_unique<HostWorkspace>(host_n);
}

void UndoMemory::Lend(kvevict_evict_options* on_device,
                      kvevict_evict_options* on_host) const {
  if (device == nullptr) return;
  on_device->undo = device->pointer<void>();
  on_host->undo = host->memory();
  on_device->undo_bytes = device->n_bytes();
  on_host->undo_bytes = host->n_bytes();
}

// Takes back what both sides have done.
void UndoBoth(const UndoMemory& undo, RandomModel* model,
              const std::vector<kvevict_view>& views,
              const std::vector<kvevict_view>& host_views, Report* report) {
  Check(model->Run([&](kvevict_stream stream) {
    return kvevict_sequence_undo(model->sequence(), views.data(), views.size(),
                                 undo.device->pointer<void>(),
                                 undo.device->n_bytes(), stream);
  }));
  model->Synchronize();
  Check(kvevict_sequence_undo(model->twin(), host_views.data(),
                              host_views.size(), undo.host->memory(),
                              undo.host->n_bytes(), nullptr));
  model->ExpectSameLengths(report);
  ExpectAlike(*model, report);
}

}  // namespace kvevict::gpu
