// Package kvevict physically shrinks the KV cache of LLM inference engines: it scores the cached
// tokens, selects those that fit a budget and compacts the survivors in place.
//
// The types follow the C library's nouns. A Context is a device, a Plan a model's geometry with a
// Policy, a Sequence one request, a View the place of one layer's cache, which stays where it is
// and is never copied. An engine observes queries, appends tokens, and evicts:
//
//	context, err := kvevict.NewContext(nil)
//	policy, err := kvevict.ParsePolicy("snapkv:budget=512,window=32")
//	plan, err := context.NewPlan(kvevict.Geometry{
//		Layers: 32, MaxTokens: 16384, Each: []kvevict.LayerGeometry{{
//			QHeads: 32, KVHeads: 8, KHeadDim: 128, VHeadDim: 128,
//			QDType: kvevict.DTypeF16, KDType: kvevict.DTypeF16, VDType: kvevict.DTypeF16,
//		}},
//	}, policy, nil)
//	sequence, err := plan.NewSequence()
//	err = sequence.BeginObserving(kvevict.Memory{})
//	...
//	report, err := sequence.Evict(views, nil, workspace, 0)
//
// The package's example is this in full.
//
// # Memory
//
// Memory is a slice (Slice), a pointer (Pointer), or an address (Address), which may lie on a
// device. The ends of slices are checked, also against the strides of a plane. Slices given to the
// library lie in Go's heap and are kept alive while a call, or an open View, uses them.
//
// With a context on CUDA the memory of views and queries, row log-sum-exps, scores, lists of slots
// and workspaces lie on the device and are given by Address; slices are an error. Calls queue work on
// the Stream that is their last argument and return: memory must stay, and sequences must be reachable,
// until it has passed. On the CPU the stream is 0.
//
// # Errors, goroutines, closing
//
// A failed call returns an *Error with the library's code and message, and has changed nothing;
// errors.Is(err, kvevict.StatusUnavailable) and the like ask for its code. Use after Close is
// ErrClosed. Contexts, plans and views may be shared by goroutines, a sequence serves one at a time.
// Handles may be closed in any order and more than once; one that is never closed is released when
// it has become unreachable.
//
// # Building
//
// The package uses cgo and finds the library by pkg-config: install libkvevict-dev, or set
// PKG_CONFIG_PATH. The build tag kvevict_static links libkvevict.a instead of the shared library.
package kvevict
