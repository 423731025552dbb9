// States: what the program saves and restores.
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "context.h"
#include "hook.h"
#include "log.h"

namespace kvevict::llama_preload {
namespace {

// Stands behind the bytes of a sequence's state.
struct Trailer {
  char magic[8] = {'K', 'V', 'E', 'S', 'T', 'A', 'T', 'E'};
  uint32_t exact_from = 0;
  // 1: the bytes are those of kvevict_llama_save_data(); 0: llama.cpp's own, of a
  // sequence that the adapter does not serve.
  uint32_t is_session = 0;
};

// Writes the state of a sequence, unless `out` is NULL. Returns its size; 0 if there is
// no room.
size_t GetState(llama_context* ctx, Context& c, llama_seq_id seq, uint8_t* out,
                size_t capacity) {
  const Inside guard;
  Trailer trailer;
  if (c.Of(seq).empty()) return 0;
  trailer.exact_from = c.Of(seq)[0].exact_from;
  size_t n = 0;
  const size_t room = capacity > sizeof trailer ? capacity - sizeof trailer : 0;
  trailer.is_session = kvevict_llama_save_data(c.kv, seq, nullptr, 0, nullptr,
                                               0, &n) == KVEVICT_OK;
  if (trailer.is_session == 0) {
    n = UPSTREAM(llama_state_seq_get_size)(ctx, seq);
  }
  if (out == nullptr) return n + sizeof trailer;
  if (n > room) return 0;
  if (trailer.is_session == 0) {
    n = UPSTREAM(llama_state_seq_get_data)(ctx, out, room, seq);
  } else if (kvevict_llama_save_data(c.kv, seq, nullptr, 0, out, room, &n) !=
             KVEVICT_OK) {
    return 0;
  }
  if (n == 0) return 0;
  std::memcpy(out + n, &trailer, sizeof trailer);
  return n + sizeof trailer;
}

// The trailer of a state that GetState() has written; else one of zeros.
Trailer TrailerOf(const uint8_t* data, size_t size) {
  Trailer trailer;
  if (size > sizeof trailer) {
    const Trailer none;
    std::memcpy(&trailer, data + size - sizeof trailer, sizeof trailer);
    if (std::memcmp(trailer.magic, none.magic, sizeof none.magic) == 0) {
      return trailer;
    }
  }
  return {.magic = {}};
}

// Returns `size`; 0 if the state is not taken.
size_t SetState(llama_context* ctx, Context& c, llama_seq_id seq,
                const uint8_t* data, size_t size) {
  const Inside guard;
  if (c.Of(seq).empty()) return 0;
  const Trailer trailer = TrailerOf(data, size);
  const size_t n = trailer.magic[0] == 0 ? size : size - sizeof trailer;
  Sequence& s = c.Of(seq)[0];
  s = {};
  if (trailer.is_session != 0) {
    if (kvevict_llama_load_data(c.kv, seq, data, n, nullptr, 0, nullptr) !=
        KVEVICT_OK) {
      Say("seq ", seq,
          ": a state is not set: ", kvevict_llama_last_error_message());
      return 0;
    }
    c.LearnExactFrom(seq);
    return size;
  }
  if (UPSTREAM(llama_state_seq_set_data)(ctx, data, n, seq) == 0) return 0;
  s.exact_from = trailer.exact_from;
  kvevict_llama_invalidate(c.kv, seq);
  return size;
}

// Part of a state: what windows and recurrent layers hold, of which an evicted model has
// none.
constexpr llama_state_seq_flags kPart = LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;

size_t FileSize(const char* path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  return error ? 0 : static_cast<size_t>(size);
}

bool IsSession(const char* path) {
  char magic[8] = {};
  std::ifstream(path, std::ios::binary).read(magic, sizeof magic);
  return std::memcmp(magic, "KVELLAMA", sizeof magic) == 0;
}

// A file of a whole context has no room for what the adapter knows, and neither has a state
// that stays on a device.
bool RefusesState(Context* c, llama_seq_id seq) {
  if (c == nullptr || !c->AnyEvicted(seq)) return false;
  SayOnce(
      "evicted sequences are saved as states of one sequence in host memory, "
      "not on a device and not with others of the context");
  return true;
}

// The state of a whole context with one sequence, which was evicted, is that sequence's,
// without the last logits.
bool IsOfOneEvicted(Context* c) {
  return c != nullptr && c->sequences.size() == 1 && c->AnyEvicted(0);
}

void StateWasSet(Context* c, llama_seq_id seq) {
  if (c == nullptr) return;
  const Inside guard;
  for (size_t i = 0; i < c->sequences.size(); ++i) {
    if (seq >= 0 && static_cast<size_t>(seq) != i) continue;
    c->sequences[i] = {};
    kvevict_llama_invalidate(c->kv, static_cast<llama_seq_id>(i));
  }
}

}  // namespace

HOOK(size_t, llama_state_seq_get_size, llama_context* ctx, llama_seq_id seq) {
  Context* const c = Find(ctx);
  if (c == nullptr) return NEXT(llama_state_seq_get_size)(ctx, seq);
  return GetState(ctx, *c, seq, nullptr, 0);
}
HOOK(size_t, llama_state_seq_get_size_ext, llama_context* ctx, llama_seq_id seq,
     llama_state_seq_flags flags) {
  Context* const c = Find(ctx);
  if (c == nullptr || flags != 0) {
    if ((flags & ~kPart) != 0 && RefusesState(c, seq)) return 0;
    return NEXT(llama_state_seq_get_size_ext)(ctx, seq, flags);
  }
  return GetState(ctx, *c, seq, nullptr, 0);
}
HOOK(size_t, llama_state_seq_get_data, llama_context* ctx, uint8_t* out,
     size_t size, llama_seq_id seq) {
  Context* const c = Find(ctx);
  if (c == nullptr) return NEXT(llama_state_seq_get_data)(ctx, out, size, seq);
  return GetState(ctx, *c, seq, out, size);
}
HOOK(size_t, llama_state_seq_get_data_ext, llama_context* ctx, uint8_t* out,
     size_t size, llama_seq_id seq, llama_state_seq_flags flags) {
  Context* const c = Find(ctx);
  if (c == nullptr || flags != 0) {
    if ((flags & ~kPart) != 0 && RefusesState(c, seq)) return 0;
    return NEXT(llama_state_seq_get_data_ext)(ctx, out, size, seq, flags);
  }
  return GetState(ctx, *c, seq, out, size);
}
HOOK(size_t, llama_state_seq_set_data, llama_context* ctx, const uint8_t* data,
     size_t size, llama_seq_id seq) {
  Context* const c = Find(ctx);
  if (c == nullptr) return NEXT(llama_state_seq_set_data)(ctx, data, size, seq);
  return SetState(ctx, *c, seq, data, size);
}
HOOK(size_t, llama_state_seq_set_data_ext, llama_context* ctx,
     const uint8_t* data, size_t size, llama_seq_id seq,
     llama_state_seq_flags flags) {
  Context* const c = Find(ctx);
  if (c == nullptr || flags != 0) {
    if ((flags & ~kPart) != 0) StateWasSet(c, seq);
    return NEXT(llama_state_seq_set_data_ext)(ctx, data, size, seq, flags);
  }
  return SetState(ctx, *c, seq, data, size);
}

HOOK(size_t, llama_state_seq_save_file, llama_context* ctx, const char* path,
     llama_seq_id seq, const llama_token* tokens, size_t n_tokens) {
  Context* const c = Find(ctx);
  if (c == nullptr) {
    return NEXT(llama_state_seq_save_file)(ctx, path, seq, tokens, n_tokens);
  }
  const Inside guard;
  if (kvevict_llama_save(c->kv, seq, path, tokens, n_tokens) == KVEVICT_OK) {
    return FileSize(path);
  }
  if (!c->AnyEvicted(seq)) {
    return NEXT(llama_state_seq_save_file)(ctx, path, seq, tokens, n_tokens);
  }
  Say("seq ", seq, " is not saved: ", kvevict_llama_last_error_message());
  return 0;
}

HOOK(size_t, llama_state_seq_load_file, llama_context* ctx, const char* path,
     llama_seq_id seq, llama_token* tokens, size_t capacity, size_t* n_tokens) {
  Context* const c = Find(ctx);
  if (c == nullptr) {
    return NEXT(llama_state_seq_load_file)(ctx, path, seq, tokens, capacity,
                                           n_tokens);
  }
  const Inside guard;
  for (Sequence& s : c->Of(seq)) s = {};
  if (!IsSession(path)) {
    const size_t n = NEXT(llama_state_seq_load_file)(ctx, path, seq, tokens,
                                                     capacity, n_tokens);
    kvevict_llama_invalidate(c->kv, seq);
    return n;
  }
  if (kvevict_llama_load(c->kv, seq, path, tokens, capacity, n_tokens) !=
      KVEVICT_OK) {
    Say("seq ", seq, " is not loaded: ", kvevict_llama_last_error_message());
    return 0;
  }
  c->LearnExactFrom(seq);
  return FileSize(path);
}

HOOK(size_t, llama_state_get_size, llama_context* ctx) {
  Context* const c = Find(ctx);
  return IsOfOneEvicted(c) ? GetState(ctx, *c, 0, nullptr, 0)
                           : NEXT(llama_state_get_size)(ctx);
}
HOOK(size_t, llama_state_get_data, llama_context* ctx, uint8_t* out,
     size_t size) {
  Context* const c = Find(ctx);
  if (IsOfOneEvicted(c)) return GetState(ctx, *c, 0, out, size);
  return RefusesState(c, -1) ? 0 : NEXT(llama_state_get_data)(ctx, out, size);
}
HOOK(size_t, llama_state_set_data, llama_context* ctx, const uint8_t* data,
     size_t size) {
  Context* const c = Find(ctx);
  if (c != nullptr && c->sequences.size() == 1 &&
      TrailerOf(data, size).magic[0] != 0) {
    return SetState(ctx, *c, 0, data, size);
  }
  StateWasSet(c, -1);
  return NEXT(llama_state_set_data)(ctx, data, size);
}
HOOK(bool, llama_state_save_file, llama_context* ctx, const char* path,
     const llama_token* tokens, size_t n_tokens) {
  return !RefusesState(Find(ctx), -1) &&
         NEXT(llama_state_save_file)(ctx, path, tokens, n_tokens);
}
HOOK(bool, llama_state_load_file, llama_context* ctx, const char* path,
     llama_token* tokens, size_t capacity, size_t* n_tokens) {
  StateWasSet(Find(ctx), -1);
  return NEXT(llama_state_load_file)(ctx, path, tokens, capacity, n_tokens);
}

}  // namespace kvevict::llama_preload
