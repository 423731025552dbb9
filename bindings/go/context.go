package kvevict

import (
	"runtime"
	"runtime/cgo"
	"sync/atomic"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// Context is a device and the way to work on it. Safe for concurrent use.
type Context struct {
	handle
	device Device
}

// hooks are the callbacks of a context, which C knows by a number; nil: none. The handles made
// from the context share them, and the end of the last one frees the number: whoever closes
// them all releases what the hooks refer to, even the context itself.
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
	var err error
	n := options.scalars(&err)
	n.Alloc, n.Free, n.AllocUserData = options.Alloc, options.Free, options.AllocUserData
	n.CUDAContext = options.CUDAContext
	n.DeviceAlloc, n.DeviceFree = options.DeviceAlloc, options.DeviceFree
	n.DeviceAllocUserData = options.DeviceAllocUserData
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

// NewPlan checks a geometry and a policy against each other and lays out the workspace. options may
// be nil. The plan keeps what it needs of the context alive.
func (c *Context) NewPlan(geometry Geometry, policy Policy, options *PlanOptions) (*Plan, error) {
	nativeGeometry, each, err := geometry.native()
	if err != nil {
		return nil, err
	}
	context, err := c.enter()
	if err != nil {
		return nil, err
	}
	defer c.leave()
	resolved, err := policy.Resolve(1) // the rows of queries do not depend on the length
	if err != nil {
		return nil, err
	}
	p := &Plan{device: c.device, maxTokens: nativeGeometry.MaxTokens, queryRows: resolved.QueryRows}
	if options == nil {
		options = &PlanOptions{}
	}
	nativeOptions := options.scalars(&err)
	if err != nil {
		return nil, err
	}
	budgets, layerBudgets := Slice(options.HeadBudgets), Slice(options.LayerBudgets)
	nativeOptions.HeadBudgets = uintptr(budgets.address)
	nativeOptions.HeadBudgetsLen = uint64(len(options.HeadBudgets))
	nativeOptions.LayerBudgets = uintptr(layerBudgets.address)
	nativeOptions.LayerBudgetsLen = uint64(len(options.LayerBudgets))
	p.headsDiffer = len(options.HeadBudgets) > 0
	var pointer uintptr
	err = policy.call(func(survives uintptr) error {
		return native.Kvevict_plan_create(context, &nativeGeometry, survives, &nativeOptions, &pointer)
	})
	runtime.KeepAlive(each)
	runtime.KeepAlive(geometry.RoPEInvFreq)
	runtime.KeepAlive(budgets.owner)
	runtime.KeepAlive(layerBudgets.owner)
	if err != nil {
		return nil, err
	}
	p.own(p, pointer, native.Kvevict_plan_destroy, c.hooks)
	p.layers, p.keyDims = make([]LayerInfo, geometry.Layers), make([]int, geometry.Layers)
	p.pairs = len(geometry.RoPEInvFreq)
	for layer := range p.layers {
		p.keyDims[layer] = geometry.Each[layer%len(geometry.Each)].KHeadDim
		if p.layers[layer], err = p.Layer(layer); err != nil {
			return nil, err
		}
	}
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
