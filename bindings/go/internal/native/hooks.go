package native

// #include "support.h"
import "C"

import (
	"runtime/cgo"
	"sync"
	"sync/atomic"
)

// Hooks is what a context calls back, by the number of a cgo.Handle.
type Hooks struct {
	Log     func(level int32, message string)
	Threads int
	Go      func(work func())
}

// LogHook and ParallelHook are the addresses to put into ContextOptions.
func LogHook() uintptr      { return uintptr(C.kv_go_log_hook()) }
func ParallelHook() uintptr { return uintptr(C.kv_go_parallel_hook()) }

//export kvevictGoLog
func kvevictGoLog(level C.int32_t, message *C.char, handle C.uintptr_t) {
	// A panic cannot pass the C frames below.
	defer func() { _ = recover() }()
	cgo.Handle(handle).Value().(*Hooks).Log(int32(level), C.GoString(message))
}

// Forward is what a prefill calls back, by the number of a cgo.Handle. It returns a status and does not
// panic.
type Forward func(firstToken, nTokens uint32) int32

// ForwardHook is the address to put into PrefillOptions.
func ForwardHook() uintptr { return uintptr(C.kv_go_forward_hook()) }

//export kvevictGoForward
func kvevictGoForward(firstToken, nTokens C.uint32_t, handle C.uintptr_t) C.int32_t {
	forward := cgo.Handle(handle).Value().(Forward)
	return C.int32_t(forward(uint32(firstToken), uint32(nTokens)))
}

// start starts work, or not: this goroutine does the work that no other does.
func (h *Hooks) start(work func()) {
	defer func() { _ = recover() }()
	h.Go(work)
}

//export kvevictGoParallel
func kvevictGoParallel(nItems C.uint32_t, run, task, handle C.uintptr_t) {
	j := &job{nItems: uint32(nItems), run: run, task: task}
	j.open.Add(int(nItems))
	hooks := cgo.Handle(handle).Value().(*Hooks)
	// Work may be started by anyone, and often: each number belongs to one goroutine.
	help := func() {
		if worker := j.helpers.Add(1); worker < uint32(hooks.Threads) {
			j.work(worker)
		}
	}
	for w := uint32(1); w < uint32(hooks.Threads) && w < j.nItems; w++ {
		hooks.start(help)
	}
	j.work(0)
	j.open.Wait()
}

// job is one parallel call. A goroutine that starts late, or never, finds no item left and does
// not touch the task, which is gone by then; so nobody waits for goroutines that have not begun.
type job struct {
	nItems    uint32
	run, task C.uintptr_t
	next      atomic.Uint32
	helpers   atomic.Uint32
	open      sync.WaitGroup // items
}

func (j *job) work(worker uint32) {
	for {
		item := j.next.Add(1) - 1
		if item >= j.nItems {
			return
		}
		C.kv_go_run_task(j.run, j.task, C.uint32_t(item), C.uint32_t(worker))
		j.open.Done()
	}
}
