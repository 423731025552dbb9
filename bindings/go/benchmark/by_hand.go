package main

// #cgo pkg-config: kvevict
// #include <kvevict/kvevict.h>
// #include <stdlib.h>
//
// /* For memory that C made, so that no rule for pointers of Go is touched. */
// static kvevict_plane rows_of(const float* data, int heads) {
//   kvevict_plane plane = {0};
//   plane.data = (uintptr_t)data, plane.dtype = KVEVICT_DTYPE_F32;
//   plane.token_stride_bytes = heads * 64 * 4, plane.head_stride_bytes = 64 * 4;
//   plane.head_dim = 64;
//   return plane;
// }
// static const kvevict_geometry geometry_init = KVEVICT_GEOMETRY_INIT;
// static const kvevict_layer_geometry layer_geometry_init = KVEVICT_LAYER_GEOMETRY_INIT;
// static const kvevict_observation observation_init = KVEVICT_OBSERVATION_INIT;
// static const kvevict_score_job score_job_init = KVEVICT_SCORE_JOB_INIT;
// static const kvevict_signal_inputs signal_inputs_init = KVEVICT_SIGNAL_INPUTS_INIT;
// static const kvevict_view view_init = KVEVICT_VIEW_INIT;
import "C"

import (
	"log"
	"unsafe"
)

// byHand is the least that cgo can do: prepared structs, bare pointers, a status that is compared.
type byHand struct {
	plan              *C.kvevict_plan
	sequence          *C.kvevict_sequence
	views             *C.kvevict_view
	inputs            *C.kvevict_signal_inputs
	shown             *C.kvevict_observation
	job               *C.kvevict_score_job
	workspace         unsafe.Pointer
	evicting, scoring C.kvevict_workspace
}

func ok(status C.kvevict_status) {
	if status != C.KVEVICT_OK {
		log.Fatal(C.GoString(C.kvevict_last_error_message()))
	}
}

func newByHand() *byHand {
	h := &byHand{}
	var context *C.kvevict_context
	var policy *C.kvevict_policy
	var model C.kvevict_geometry
	layer := (*C.kvevict_layer_geometry)(C.malloc(C.sizeof_kvevict_layer_geometry))
	*layer = C.layer_geometry_init
	model = C.geometry_init
	layer.n_q_heads, layer.n_kv_heads, layer.k_head_dim, layer.v_head_dim = qHeads, kvHeads, dim, dim
	model.n_layers, model.max_tokens, model.layers, model.layers_len = layers, tokens, layer, 1
	text := C.CString("snapkv:budget=64,window=8")
	ok(C.kvevict_policy_create(text, &policy))
	C.free(unsafe.Pointer(text))
	ok(C.kvevict_context_create(nil, &context))
	ok(C.kvevict_plan_create(context, &model, policy, nil, &h.plan))
	C.kvevict_policy_destroy(policy)
	ok(C.kvevict_sequence_create(h.plan, &h.sequence))
	ok(C.kvevict_sequence_begin_observing(h.sequence, nil, 0))
	h.evicting.struct_size, h.scoring.struct_size = C.sizeof_kvevict_workspace, C.sizeof_kvevict_workspace
	ok(C.kvevict_plan_workspace(h.plan, C.KVEVICT_OPERATION_EVICT, 0, &h.evicting))
	ok(C.kvevict_plan_workspace(h.plan, C.KVEVICT_OPERATION_SCORE, 0, &h.scoring))
	bytes := (h.evicting.best_bytes + h.scoring.best_bytes + 63) / 64 * 64
	h.workspace = C.aligned_alloc(C.size_t(h.evicting.alignment), bytes)
	queries := (*C.kvevict_plane)(C.malloc(C.sizeof_kvevict_plane))
	*queries = C.rows_of(inC(rows(qHeads)), qHeads)
	h.inputs = (*C.kvevict_signal_inputs)(C.malloc(C.sizeof_kvevict_signal_inputs))
	*h.inputs = C.signal_inputs_init
	h.inputs.queries = queries
	h.shown = (*C.kvevict_observation)(C.malloc(C.sizeof_kvevict_observation))
	*h.shown = C.observation_init
	h.shown.inputs = h.inputs
	h.views = (*C.kvevict_view)(C.malloc(layers * C.sizeof_kvevict_view))
	for l := range h.slice() {
		view := &h.slice()[l]
		*view = C.view_init
		view.n_kv_heads = kvHeads
		view.k = C.rows_of(inC(rows(kvHeads)), kvHeads)
		view.v = C.rows_of(inC(rows(kvHeads)), kvHeads)
	}
	h.job = (*C.kvevict_score_job)(C.malloc(C.sizeof_kvevict_score_job))
	*h.job = C.score_job_init
	h.job.n_tokens, h.job.view, h.job.inputs = tokens, h.views, h.inputs
	h.job.scores, h.job.scores_len = inC(make([]float32, kvHeads*tokens)), kvHeads*tokens
	return h
}

func (h *byHand) slice() []C.kvevict_view { return unsafe.Slice(h.views, layers) }

// inC copies to memory of C.
func inC(data []float32) *C.float {
	memory := C.malloc(C.size_t(len(data) * 4))
	copy(unsafe.Slice((*float32)(memory), len(data)), data)
	return (*C.float)(memory)
}

func (h *byHand) noOp(n int) {
	for i := 0; i < n; i++ {
		sink += uint32(C.kvevict_abi_version())
	}
}

func (h *byHand) length(n int) {
	for i := 0; i < n; i++ {
		var length C.uint32_t
		ok(C.kvevict_sequence_stored_length(h.sequence, 0, 0, &length))
		sink += uint32(length)
	}
}

func (h *byHand) score(n int) {
	for i := 0; i < n; i++ {
		ok(C.kvevict_score(h.plan, h.job, 1, h.workspace, h.scoring.best_bytes, nil))
	}
}

func (h *byHand) evict(n int) {
	for i := 0; i < n; i++ {
		ok(C.kvevict_sequence_reset(h.sequence, nil))
		for l := 0; l < layers; l++ {
			h.shown.layer = C.uint32_t(l)
			ok(C.kvevict_sequence_observe(h.sequence, h.shown, 1, window, tokens-window, nil))
		}
		ok(C.kvevict_sequence_append(h.sequence, tokens, nil))
		ok(C.kvevict_sequence_evict(h.sequence, h.views, layers, nil, h.workspace,
			h.evicting.best_bytes, nil))
	}
}
