package kvevict

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/capturing"
	"kvevict.dev/kvevict/bindings/go/internal/counting"
)

// cudaOptions makes a context on CUDA whose libraries, which ctest names, run the
// kernels on the CPU. Device memory is then the process's own.
func cudaOptions(t *testing.T) *ContextOptions {
	o := ContextOptions{
		Device:         DeviceCUDA,
		LibCUDAPath:    os.Getenv("KVEVICT_TEST_LIBCUDA"),
		LibNVRTCPath:   os.Getenv("KVEVICT_TEST_LIBNVRTC"),
		KernelCacheDir: os.Getenv("KVEVICT_TEST_KERNELS"),
	}
	if o.LibCUDAPath == "" || o.LibNVRTCPath == "" {
		t.Skip("skipped: KVEVICT_TEST_LIBCUDA and KVEVICT_TEST_LIBNVRTC are not set")
	}
	program, err := elf.Open("/proc/self/exe")
	must(t, err)
	defer program.Close()
	libraries, err := program.ImportedLibraries()
	must(t, err)
	if len(libraries) == 0 {
		t.Skip("skipped: a static program cannot load a driver")
	}
	return &o
}

// model is the tests' small model with its memory on one device.
type model struct {
	*testing.T
	context *Context
}

// put is a slice as memory of the model's device, until the test ends.
func put[T Number](m model, s []T) Memory {
	memory := Slice(s)
	if m.context.device == DeviceCPU || len(s) == 0 {
		return memory
	}
	m.Cleanup(func() { runtime.KeepAlive(s) })
	return Address(memory.address, memory.bytes)
}

func (m model) rows(data []float32, heads int) *Plane {
	plane := rows(data, heads)
	plane.Data = put(m, data)
	return &plane
}

func (m model) view(k, v []float32) *View {
	view, err := NewView(Layout{KVHeads: kvHeads, K: *m.rows(k, kvHeads), V: *m.rows(v, kvHeads)})
	must(m.T, err)
	return view
}

// workspace is put() for scratch.
func (m model) workspace(need Workspace, err error) Memory {
	must(m.T, err)
	alignment := uint64(need.Alignment)
	raw := make([]byte, need.Best+alignment)
	skip := -Slice(raw).address & (alignment - 1)
	return put(m, raw[skip:skip+need.Best])
}

// state is the same on every device.
type state struct {
	report EvictReport
	lists  [][3]int
	kept   [2][kvHeads][]int32
	k, v   [2][]float32 // rows of the slots in use
}

// evicts reads a prompt and evicts, and returns the content of the sequence. The lengths are
// also where the library says that the device has them.
func (m model) evicts() (s state) {
	const prompt = 48
	plan := newPlan(m.T, m.context, 2, full, "snapkv:budget=16,window=4")
	sequence := newSequence(m.T, plan)
	scratch := m.workspace(plan.Workspace(OperationEvict, 0))
	var views []*View
	var observations []Observation
	for l := range s.k {
		s.k[l], s.v[l] = random(full*row, int64(5+l)), random(full*row, int64(7+l))
		views = append(views, m.view(s.k[l], s.v[l]))
		queries := m.rows(random(prompt*qHeads*headDim, int64(3+l)), qHeads)
		observations = append(observations, shown(l, queries)...)
	}
	must(m.T, sequence.Observe(observations, prompt, 0, 0))
	must(m.T, sequence.Append(prompt, 0))
	var err error
	s.report, err = sequence.Evict(views, nil, scratch, 0)
	must(m.T, err)
	lists, err := sequence.ListReports()
	must(m.T, err)
	s.lists = tokensOf(lists)
	memory, err := sequence.MemoryOf(0)
	must(m.T, err)
	same(m.T, [4]uint32{16, prompt, 16, prompt}, **(**[4]uint32)(unsafe.Pointer(&memory.Lengths)))
	for l := range s.k {
		for head := range s.kept[l] {
			s.kept[l][head], err = sequence.KeepPositions(l, head)
			must(m.T, err)
		}
		s.k[l], s.v[l] = s.k[l][:16*row], s.v[l][:16*row]
	}
	return s
}

func TestCUDAEvictsAsTheCPUDoes(t *testing.T) {
	options := cudaOptions(t)
	same(t, model{t, newContext(t, nil)}.evicts(), model{t, newContext(t, options)}.evicts())
}

// Each option shows in the calls, files, compilations or refusals of the library.
func TestCUDAOptionsReachTheLibrary(t *testing.T) {
	counts := make([]int64, 2)
	kernels := filepath.Join(t.TempDir(), "kernels")
	log := ""
	options := cudaOptions(t)
	options.DeviceAlloc, options.DeviceFree = counting.Alloc(), counting.Free()
	options.DeviceAllocUserData = uintptr(Slice(counts).address)
	options.KernelCacheDir = kernels
	options.LogLevel, options.Log = LogInfo, func(_ LogLevel, line string) { log += line + "\n" }
	options.SelectOnHost, options.Debug = true, true
	t.Run("", func(t *testing.T) { // closes all handles when it ends
		m := model{t, newContext(t, options)}
		m.evicts()
		cache := random(full*row, 1)
		view := m.view(cache, random(full*row, 2))
		err := m.context.Compact(oneMove(view, full, put(m, []int32{3, 2}), 1), Memory{}, 0)
		fails(t, err, StatusInvalidArgument, "ascend")
	})
	if counts[0] == 0 || counts[0] != counts[1] {
		t.Errorf("device memory taken %d times, given back %d times", counts[0], counts[1])
	}
	files, err := os.ReadDir(kernels)
	must(t, err)
	if len(files) == 0 || !strings.Contains(log, "gather_rows") || strings.Contains(log, "topk") {
		t.Error(len(files), log)
	}
}

// Work is queued: a call that took a slice would read or write it later.
func TestCUDARefusesSlices(t *testing.T) {
	m := model{t, newContext(t, cudaOptions(t))}
	context := m.context
	plan := newPlan(t, context, 1, nTokens, "snapkv:budget=16,window=4")
	sequence := newSequence(t, plan)
	must(t, sequence.Append(nTokens, 0))
	floats, slots := random(nTokens*qHeads*headDim, 1), make([]int32, nTokens)
	slice, memory, list := Slice(floats), put(m, floats), put(m, slots)
	window := func(memory Memory) *Plane {
		plane := rows(floats, qHeads)
		plane.Data = memory
		return &plane
	}
	layout := Layout{KVHeads: kvHeads, K: *m.rows(floats, kvHeads), V: *m.rows(random(len(floats), 2), kvHeads)}
	viewOf := func(layout Layout) *View {
		view, err := NewView(layout)
		must(t, err)
		return view
	}
	view, paged := viewOf(layout), layout
	paged.K.BlockStride, paged.BlockSize, paged.BlockTable = row*4, 1, Slice(slots)
	inV, inCompanion := layout, layout
	inV.V = rows(floats, kvHeads)
	inCompanion.Companions = []Plane{layout.K, rows(floats, kvHeads)}

	second := func(_ any, err error) error { return err }
	score := func(queries, rowLSE *Plane, view *View, scores, workspace Memory) error {
		inputs := SignalInputs{Queries: queries, RowLSE: rowLSE}
		job := ScoreJob{View: view, Tokens: nTokens, Inputs: inputs, Scores: scores}
		return plan.Score([]ScoreJob{job}, workspace, 0)
	}
	choose := func(scores, keep, workspace Memory) error {
		lists := KeepLists{Slots: keep, Lists: 1, Count: nTokens}
		return context.Select(&SelectOptions{Tokens: nTokens, Scores: scores}, lists, workspace, 0)
	}
	evict := func(view *View, inputs SignalInputs, workspace Memory) error {
		options := &EvictOptions{Inputs: []SignalInputs{inputs}}
		return second(sequence.Evict([]*View{view}, options, workspace, 0))
	}
	compact := func(view *View, keep, workspace Memory) error {
		return context.Compact(oneMove(view, nTokens, keep, 1), workspace, 0)
	}
	reorder := func(view *View, slots, workspace Memory) error {
		return context.Reorder(oneMove(view, nTokens, slots, 1), workspace, 0)
	}
	ofCounts := oneMove(view, nTokens, list, 1)
	ofCounts[0].Keep.Counts = Slice([]uint32{1})
	tokensOfCounts := oneMove(view, nTokens, list, 1)
	tokensOfCounts[0].TokenCounts = Slice([]uint32{1, 1})
	var none SignalInputs
	q, wrong, ofSlice := window(memory), window(slice), viewOf(Layout{
		KVHeads: kvHeads, K: rows(floats, kvHeads),
	})
	for _, refused := range []struct {
		err  error
		name string
	}{
		{sequence.Observe(shown(0, wrong), 4, 0, 0), "Queries"},
		{sequence.Observe([]Observation{{0, SignalInputs{RowLSE: wrong}}}, 4, 0, 0), "RowLSE"},
		{score(wrong, nil, view, memory, memory), "Queries"},
		{score(q, wrong, view, memory, memory), "RowLSE"},
		{score(q, nil, ofSlice, memory, memory), "K"},
		{score(q, nil, view, slice, memory), "Scores"},
		{score(q, nil, view, memory, slice), "workspace"},
		{choose(slice, list, memory), "Scores"},
		{choose(memory, Slice(slots), memory), "Slots"},
		{choose(memory, list, slice), "workspace"},
		{evict(ofSlice, none, memory), "K"},
		{evict(viewOf(inV), none, memory), "V"},
		{evict(viewOf(inCompanion), none, memory), "Companions[1]"},
		{evict(viewOf(paged), none, memory), "BlockTable"},
		{evict(view, SignalInputs{Queries: wrong}, memory), "Queries"},
		{evict(view, SignalInputs{Scores: wrong}, memory), "Scores"},
		{evict(view, none, slice), "workspace"},
		{compact(ofSlice, list, memory), "K"},
		{compact(view, Slice(slots), memory), "Slots"},
		{compact(view, list, slice), "workspace"},
		{reorder(ofSlice, list, memory), "K"},
		{reorder(view, Slice(slots), memory), "Slots"},
		{context.Compact(ofCounts, Memory{}, 0), "Counts"},
		{context.Compact(tokensOfCounts, Memory{}, 0), "TokenCounts"},
		{reorder(view, list, slice), "workspace"},
	} {
		fails(t, refused.err, StatusInvalidArgument,
			refused.name+" is a slice, but the context is on CUDA: pass device memory by Address")
	}
	need, err := plan.Workspace(OperationEvict, 0)
	must(t, err)
	_, err = need.New()
	fails(t, err, StatusInvalidArgument, "on CUDA", fmt.Sprint(need.Best), "aligned to 256")

	must(t, compact(view, Slice([]int32{}), Memory{})) // nothing lies nowhere

	// A caller who names a pointer knows what it is; protected positions are the host's.
	pointed := window(Pointer(unsafe.Pointer(&floats[0]), slice.bytes))
	must(t, sequence.Observe(shown(0, pointed), 4, nTokens-4, 0))
	_, err = sequence.Evict([]*View{view}, &EvictOptions{Protected: []int32{9}},
		m.workspace(need, nil), 0)
	must(t, err)
	slot, err := sequence.SlotOfPosition(0, 0, 9)
	must(t, err)
	if slot < 0 {
		t.Error("a protected position was evicted")
	}
}

// Work on a captured stream runs later, so a call that used another stream would show.
func TestCUDACallsQueueOnTheirStream(t *testing.T) {
	const stream = 64
	options := cudaOptions(t)
	m := model{t, newContext(t, options)}
	plan := newPlan(t, m.context, 1, full, "snapkv:budget=16,window=4")
	must(t, m.context.Prepare(plan))
	sequence, err := plan.NewSequence()
	must(t, err)
	lent := new([1024]uint64) // a size that the allocator aligns, more than the rows need
	must(t, sequence.BeginObserving(put(m, lent[:])))
	k, scores, slots := random(full*row, 1), make([]float32, kvHeads*full), make([]int32, 4)
	view := m.view(k, random(full*row, 2))
	inputs := SignalInputs{Queries: m.rows(random(4*qHeads*headDim, 3), qHeads)}
	jobs := []ScoreJob{{View: view, Tokens: full, Inputs: inputs, Scores: put(m, scores)}}
	lists := KeepLists{Slots: put(m, slots), Lists: 1, Count: 4}
	moves := []Move{{View: view, Tokens: full, Keep: lists}}
	others := oneMove(view, full, put(m, []int32{9, 8, 7, 6}), 1)
	choose := &SelectOptions{Tokens: full, Tie: TieHigherPosition}
	scoring := m.workspace(plan.Workspace(OperationScore, 0))
	selecting := m.workspace(m.context.SelectWorkspace(full, 1))
	moving := m.workspace(m.context.ReorderWorkspace(others))
	evicting := m.workspace(plan.Workspace(OperationEvict, 0))
	undo := m.workspace(Workspace{Alignment: 256, Best: 1 << 17}, nil)
	memory, err := sequence.MemoryOf(0)
	must(t, err)
	state := func() string {
		return fmt.Sprint(**(**[2]uint32)(unsafe.Pointer(&memory.Lengths)), *lent, k, scores, slots)
	}
	runtime.LockOSThread() // the thread that begins a capture ends it
	defer runtime.UnlockOSThread()
	for _, queue := range []struct {
		name string
		call func() error
	}{
		{"Append", func() error { return sequence.Append(full, stream) }},
		{"TrimTo", func() error { return sequence.TrimTo(full-8, stream) }},
		{"Observe", func() error {
			return sequence.Observe([]Observation{{0, inputs}}, 4, full-12, stream)
		}},
		{"Score", func() error { return plan.Score(jobs, scoring, stream) }},
		{"Select", func() error { return m.context.Select(choose, lists, selecting, stream) }},
		{"Compact", func() error { return m.context.Compact(moves, Memory{}, stream) }},
		{"Reorder", func() error { return m.context.Reorder(others, moving, stream) }},
		{"Evict", func() error {
			_, err := sequence.Evict([]*View{view}, &EvictOptions{Undo: undo}, evicting, stream)
			return err
		}},
		{"Undo", func() error { return sequence.Undo([]*View{view}, undo, stream) }},
		{"Reset", func() error { return sequence.Reset(stream) }},
	} {
		before := state()
		same(t, 0, capturing.Begin(options.LibCUDAPath, stream))
		must(t, queue.call())
		if state() != before {
			t.Errorf("%s ran at once", queue.name)
		}
		same(t, 0, capturing.Run(options.LibCUDAPath, stream))
		if state() == before {
			t.Errorf("%s did nothing", queue.name)
		}
	}
}

// The machine has a driver of CUDA 12.4 and NVRTC 12.4, as ctest sets it up.
func TestGPUs(t *testing.T) {
	cudaOptions(t)
	must(t, CheckDevice(DeviceCUDA))
	gpus, err := GPUs()
	must(t, err)
	if len(gpus) != 3 || !strings.Contains(gpus[0].Problem, "compute capability 6.1") {
		t.Fatal(gpus)
	}
	gpus[0].Problem = ""
	same(t, GPUInfo{"Fake GPU", 61, 12040, 0, "", "", ""}, gpus[0])
	same(t, GPUInfo{"Fake GPU", 90, 12040, 12040, "libnvrtc.so.12", "sm_90", ""}, gpus[1])
	same(t, GPUInfo{"Fake GPU", 89, 12040, 12040, "libnvrtc.so.12", "compute_80", ""}, gpus[2])
}
