package kvevict

import (
	"runtime"
	"runtime/cgo"
	"sync/atomic"
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// ContextOptions is how to make a context. Addresses of C functions have the header's types.
type ContextOptions struct {
	Device   Device
	Threads  int                                  // goroutines that share a call's work; 0 means 1
	Go       func(work func())                    // how to start the others; nil: a go statement
	LogLevel LogLevel                             // lines above it are not sent
	Log      func(level LogLevel, message string) // nil: silence; what it panics is dropped

	SIMDTarget string // of SIMDTargets(): whose code the CPU's kernels run; "": the best one

	Alloc, Free   uintptr // kvevict_alloc_fn and kvevict_free_fn for the library's own memory
	AllocUserData uintptr

	// What follows concerns CUDA.

	// CUcontext, which must outlive the handles; 0: the one current on the thread
	// (runtime.LockOSThread).
	CUDAContext    uintptr
	LibCUDAPath    string // "": the system's
	LibNVRTCPath   string // "": by the driver's version
	KernelCacheDir string // "": none; must belong to the user, nobody else may write
	SelectOnHost   bool   // an eviction waits, and the host knows the positions when it returns
	Debug          bool   // wait after every kernel, check lists of slots on the device

	DeviceAlloc, DeviceFree uintptr // the same for device memory of sequences
	DeviceAllocUserData     uintptr
}

// Context is a device, and how to work on it. Safe for concurrent use.
type Context struct {
	handle
	device Device
}

// hooks is what a context calls back, which C knows by a number; nil: nothing. The handles made from
// the context share it, and the last one's end frees the number: whoever closes them all lets go of
// what the hooks refer to, even if that is the context itself.
type hooks struct {
	number cgo.Handle
	users  atomic.Int32
}

func (h *hooks) retain() {
	if h != nil {
		h.users.Add(1)
	}
}

func (h *hooks) release() {
	if h != nil && h.users.Add(-1) == 0 {
		h.number.Delete()
	}
}

// NewContext creates a context; nil stands for the defaults: CPU, one thread.
func NewContext(options *ContextOptions) (*Context, error) {
	if options == nil {
		options = &ContextOptions{}
	}
	n := native.ContextOptions{
		StructSize:          uint32(unsafe.Sizeof(native.ContextOptions{})),
		Device:              int32(options.Device),
		LogLevel:            int32(options.LogLevel),
		Alloc:               options.Alloc,
		Free:                options.Free,
		AllocUserData:       options.AllocUserData,
		CUDAContext:         options.CUDAContext,
		DeviceAlloc:         options.DeviceAlloc,
		DeviceFree:          options.DeviceFree,
		DeviceAllocUserData: options.DeviceAllocUserData,
		SelectOnHost:        flag(options.SelectOnHost),
		Debug:               flag(options.Debug),
	}
	var err error
	n.NThreads = count(&err, "Threads", options.Threads)
	var texts [4]Memory
	for i, text := range []struct {
		name, value string
		field       *uintptr
	}{
		{"SIMDTarget", options.SIMDTarget, &n.SIMDTarget},
		{"LibCUDAPath", options.LibCUDAPath, &n.LibCUDAPath},
		{"LibNVRTCPath", options.LibNVRTCPath, &n.LibNVRTCPath},
		{"KernelCacheDir", options.KernelCacheDir, &n.KernelCacheDir},
	} {
		if text.value != "" && err == nil {
			texts[i], err = zeroTerminated(text.name, text.value)
			*text.field = uintptr(texts[i].address)
		}
	}
	if err != nil {
		return nil, err
	}
	hooks := setHooks(&n, options)
	hooks.retain()
	defer hooks.release()
	var pointer uintptr
	if err := native.Kvevict_context_create(&n, &pointer); err != nil {
		return nil, err
	}
	runtime.KeepAlive(&texts)
	c := &Context{device: options.Device}
	c.own(c, pointer, native.Kvevict_context_destroy, hooks)
	return c, nil
}

func setHooks(n *native.ContextOptions, options *ContextOptions) *hooks {
	log, start := options.Log, options.Go
	if log == nil && options.Threads <= 1 {
		return nil
	}
	if start == nil {
		start = func(work func()) { go work() }
	}
	h := &hooks{number: cgo.NewHandle(&native.Hooks{
		Log:     func(level int32, message string) { log(LogLevel(level), message) },
		Threads: options.Threads,
		Go:      start,
	})}
	if log != nil {
		n.Log, n.LogUserData = native.LogHook(), uintptr(h.number)
	}
	if options.Threads > 1 {
		n.Parallel, n.ParallelUserData = native.ParallelHook(), uintptr(h.number)
	}
	return h
}

// NewPlan checks a geometry and a policy against each other and lays out the workspace. The plan
// keeps what it needs of the context alive.
func (c *Context) NewPlan(geometry Geometry, policy Policy) (*Plan, error) {
	nativePolicy, err := policy.native()
	if err != nil {
		return nil, err
	}
	nativeGeometry, err := geometry.native()
	if err != nil {
		return nil, err
	}
	context, err := c.enter()
	if err != nil {
		return nil, err
	}
	defer c.leave()
	p := &Plan{device: c.device, geometry: nativeGeometry, obsWindow: nativePolicy.ObsWindow}
	var pointer uintptr
	err = native.Kvevict_plan_create(context, &nativeGeometry, &nativePolicy, &pointer)
	if err != nil {
		return nil, err
	}
	p.own(p, pointer, native.Kvevict_plan_destroy, c.hooks)
	return p, nil
}

// Prepare compiles and loads the kernels that a plan's calls may launch, now instead of at first
// use; nil: those that serve every plan. On the CPU there is nothing to do.
func (c *Context) Prepare(plan *Plan) error {
	context, err := c.enter()
	if err != nil {
		return err
	}
	defer c.leave()
	if plan == nil {
		return native.Kvevict_context_prepare(context, 0)
	}
	pointer, err := plan.enter()
	if err != nil {
		return err
	}
	defer plan.leave()
	return native.Kvevict_context_prepare(context, pointer)
}

// Compact moves one layer's surviving rows to slots [0, kept), in place. keep is int32
// [nKeepLists, kept] slots, strictly ascending per list (for others there is Reorder); nKeepLists
// is 1 (all heads alike) or the KV heads. workspace is absent, or of CompactWorkspaceBytes, with
// which CUDA may be faster.
func (c *Context) Compact(
	view *View, nTokens int, keep Memory, nKeepLists int, workspace Memory, stream Stream,
) error {
	return c.move(native.Kvevict_compact, view, nTokens, "keep", keep, "nKeepLists", nKeepLists,
		workspace, stream)
}

// CompactWorkspaceBytes is the scratch that compacting a layer to at most nKeep slots per list can
// make use of; 0 on the CPU, and on CUDA where rows are wide enough to move without.
func (c *Context) CompactWorkspaceBytes(view *View, nKeep int) (uint64, error) {
	return c.scratch(view, "nKeep", nKeep, native.Kvevict_compact_workspace_bytes)
}

// Reorder moves row slots[i] of one layer to slot i for every i, in place, as if all rows were read
// before the first is written. It straightens a ring that has wrapped, and serves keep lists that do
// not ascend; other rows are not touched. slots is int32 [nSlotLists, n] slots in any order, also
// repeated, n at most nTokens; nSlotLists is 1 (all heads alike) or the KV heads. workspace is from
// NewReorderWorkspace, or of ReorderWorkspaceBytes.
func (c *Context) Reorder(
	view *View, nTokens int, slots Memory, nSlotLists int, workspace Memory, stream Stream,
) error {
	return c.move(native.Kvevict_reorder, view, nTokens, "slots", slots, "nSlotLists", nSlotLists,
		workspace, stream)
}

// ReorderWorkspaceBytes is the scratch that reordering at most nSlots slots per list needs; 0 for
// none.
func (c *Context) ReorderWorkspaceBytes(view *View, nSlots, nSlotLists int) (uint64, error) {
	var err error
	lists := count(&err, "nSlotLists", nSlotLists)
	if err != nil {
		return 0, err
	}
	return c.scratch(view, "nSlots", nSlots,
		func(context uintptr, view *native.View, slots uint32, bytes *uint64) error {
			return native.Kvevict_reorder_workspace_bytes(context, view, slots, lists, bytes)
		})
}

// NewReorderWorkspace makes scratch for reordering a layer on the CPU; on CUDA it is an error. Calls
// that run at the same time must not share it.
func (c *Context) NewReorderWorkspace(view *View, nSlots, nSlotLists int) (Memory, error) {
	bytes, err := c.ReorderWorkspaceBytes(view, nSlots, nSlotLists)
	if err != nil {
		return Memory{}, err
	}
	return newWorkspace(c.device, "ReorderWorkspaceBytes", bytes)
}

// move is Compact or Reorder: call, and the names of its slots and lists for errors.
func (c *Context) move(
	call func(context uintptr, view *native.View, nTokens uint32, slots uintptr, slotsLen uint64,
		lists uint32, workspace uintptr, workspaceBytes uint64, stream uintptr) error,
	view *View, nTokens int, slotsName string, slots Memory, listsName string, nLists int,
	workspace Memory, stream Stream,
) error {
	context, err := c.enter()
	if err != nil {
		return err
	}
	defer c.leave()
	cache, n, err := view.use(c.device, nTokens)
	if err != nil {
		return err
	}
	lists := count(&err, listsName, nLists)
	if err != nil {
		return err
	}
	slotsLen, err := slots.slots(c.device, slotsName)
	if err != nil {
		return err
	}
	if err := workspace.on(c.device, "workspace"); err != nil {
		return err
	}
	err = call(context, cache.native, n, uintptr(slots.address), slotsLen, lists,
		uintptr(workspace.address), workspace.bytes, uintptr(stream))
	runtime.KeepAlive(cache)
	runtime.KeepAlive(slots.owner)
	runtime.KeepAlive(workspace.owner)
	return err
}

// scratch is what a move of at most so many slots per list needs; name is theirs.
func (c *Context) scratch(
	view *View, name string, slots int,
	bytesOf func(context uintptr, view *native.View, slots uint32, bytes *uint64) error,
) (uint64, error) {
	context, err := c.enter()
	if err != nil {
		return 0, err
	}
	defer c.leave()
	cache, n, err := view.useNamed(c.device, name, slots)
	if err != nil {
		return 0, err
	}
	var bytes uint64
	err = bytesOf(context, cache.native, n, &bytes)
	runtime.KeepAlive(cache)
	return bytes, err
}
