package kvevict

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

type counted struct{ handle }

func newCounted(destroyed *atomic.Int32) *counted {
	c := &counted{}
	c.own(c, 1, func(uintptr) { destroyed.Add(1) }, nil)
	return c
}

func TestCloseTwice(t *testing.T) {
	context := newContext(t, nil)
	must(t, context.Close())
	must(t, context.Close())
	var destroyed atomic.Int32
	c := newCounted(&destroyed)
	must(t, c.Close())
	must(t, c.Close())
	same(t, int32(1), destroyed.Load())
}

func TestUseAfterClose(t *testing.T) {
	context := newContext(t, nil)
	plan := newPlan(t, context, 1, 64, "snapkv:budget=16,window=4")
	sequence := newSequence(t, plan)
	view := newView(t, make([]float32, 1024), make([]float32, 1024))
	must(t, context.Close())
	must(t, sequence.Append(1, 0)) // keeps what it needs
	must(t, newSequence(t, plan).Close())
	must(t, plan.Close())
	must(t, sequence.Append(1, 0))
	must(t, sequence.Close())
	same(t, 2, sequence.LogicalLength())
	must(t, view.Close())
	must(t, view.Close())
	_, planErr := plan.NewSequence()
	_, lengthErr := sequence.StoredLength(0, 0)
	queries := rows(make([]float32, 32), qHeads)
	open := newContext(t, nil)
	for i, err := range []error{
		context.Prepare(nil), planErr, lengthErr, sequence.Observe(shown(0, &queries), 1, 0, 0),
		sequence.Reset(0), view.Validate(0), open.Compact(oneMove(view, 4, Slice([]int32{0}), 1), Memory{}, 0),
		open.Prepare(plan),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%d: %v", i, err)
		}
	}
	must(t, open.Prepare(nil)) // the failed call has left it
}

func TestCloseUnderACall(t *testing.T) {
	var destroyed atomic.Int32
	c := newCounted(&destroyed)
	for i := 0; i < 2; i++ {
		_, err := c.enter()
		must(t, err)
	}
	must(t, c.Close())
	if _, err := c.enter(); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	c.leave()
	same(t, int32(0), destroyed.Load())
	c.leave()
	same(t, int32(1), destroyed.Load())
}

func TestOneGoroutineAtATime(t *testing.T) {
	var destroyed atomic.Int32
	c := newCounted(&destroyed)
	_, err := c.enterAlone()
	must(t, err)
	_, err = c.enterAlone()
	fails(t, err, StatusInvalidArgument, "in use by another call")
	c.leave()
	_, err = c.enterAlone()
	must(t, err)
	c.leave()
}

func TestLeftToTheCollector(t *testing.T) {
	var destroyed atomic.Int32
	for i := 0; i < 8; i++ {
		newCounted(&destroyed)
	}
	for i := 0; destroyed.Load() < 8 && i < 600_000; i++ {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	same(t, int32(8), destroyed.Load())
}

// objects counts the objects after collecting the unreachable ones.
func objects() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapObjects)
}

func TestContextsAreLeftToTheCollector(t *testing.T) {
	const n, batches = 1000, 5
	for name, options := range map[string]*ContextOptions{
		"plain": nil,
		"hooks": {Threads: 2, Log: func(LogLevel, string) {}},
	} {
		before, left := objects(), int64(0)
		for batch := 0; batch < batches; batch++ {
			for i := 0; i < n; i++ {
				_, err := NewContext(options)
				must(t, err)
			}
			// cgo's table of handles drops a batch when it gets the next one.
			left = objects() - before
			for i := 0; left > 2*n && i < 200; i++ {
				time.Sleep(time.Millisecond)
				left = objects() - before
			}
		}
		if left > 2*n {
			t.Errorf("%s: %d contexts left %d objects behind", name, batches*n, left)
		}
	}
}

// A hook may know its context: Close cuts the circle, by the last handle that could call the hook.
func TestHooksMayReferToTheirOwner(t *testing.T) {
	var collected atomic.Int32
	type engine struct {
		context *Context
		lines   [100]string
	}
	func() {
		e := &engine{}
		log := func(_ LogLevel, line string) { e.lines[0] = line }
		var err error
		e.context, err = NewContext(&ContextOptions{LogLevel: LogDebug, Log: log})
		must(t, err)
		plan := newPlan(t, e.context, 1, 64, "snapkv:budget=16,window=4")
		must(t, e.context.Close())
		sequence, err := plan.NewSequence()
		must(t, err)
		must(t, sequence.Append(1, 0))
		must(t, plan.Close())
		must(t, sequence.Close())
		runtime.SetFinalizer(e, func(*engine) { collected.Add(1) })
	}()
	for i := 0; collected.Load() < 1 && i < 400; i++ {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	same(t, int32(1), collected.Load())
}

// Each goroutine gets the text of its own failure.
func TestErrorsOfManyGoroutines(t *testing.T) {
	var all sync.WaitGroup
	for g := 0; g < 16; g++ {
		all.Add(1)
		go func(g int) {
			defer all.Done()
			typo := fmt.Sprintf("typo%d", g)
			for i := 0; i < 200; i++ {
				_, err := ParsePolicy("snapkv:" + typo + "=1")
				if err == nil || !strings.Contains(err.Error(), typo+"\"") &&
					!strings.Contains(err.Error(), typo+"'") {
					t.Errorf("%s: %v", typo, err)
					return
				}
			}
		}(g)
	}
	all.Wait()
}

func TestPlanSharedByGoroutinesAndClosed(t *testing.T) {
	plan := newPlan(t, newContext(t, nil), 1, 64, "snapkv:budget=16,window=4")
	var all sync.WaitGroup
	for g := 0; g < 8; g++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := 0; i < 200; i++ {
				_, err := plan.Workspace(OperationEvict, 0)
				if err != nil && !errors.Is(err, ErrClosed) {
					t.Error(err)
				}
			}
		}()
	}
	must(t, plan.Close())
	all.Wait()
}

func TestMissingDeviceSaysWhy(t *testing.T) {
	_, err := NewContext(&ContextOptions{Device: DeviceCUDA, LibCUDAPath: "/nowhere/libcuda"})
	fails(t, err, StatusUnavailable, "/nowhere/libcuda")
	if !strings.HasPrefix(err.Error(), "kvevict: UNAVAILABLE: ") {
		t.Error(err)
	}
	fails(t, CheckDevice(99), StatusInvalidArgument, "99")
}

// Zero values are handles that nobody has opened, and calls say so.
func TestZeroHandlesAreClosed(t *testing.T) {
	for _, zero := range []closer{
		&Context{}, &Plan{}, &Sequence{}, &PagedCache{}, &PagedSequence{}, &View{},
	} {
		value := reflect.ValueOf(zero)
		for i := 0; i < value.NumMethod(); i++ {
			method, name := value.Method(i), fmt.Sprintf("%T.%s", zero, value.Type().Method(i).Name)
			var arguments []reflect.Value
			for j := 0; j < method.Type().NumIn(); j++ {
				arguments = append(arguments, reflect.Zero(method.Type().In(j)))
			}
			err, panicked := callForError(method, arguments)
			if panicked != nil {
				t.Errorf("%s panics: %v", name, panicked)
			} else if failed, ok := err.(error); ok && !errors.Is(failed, ErrClosed) {
				t.Errorf("%s: %v", name, failed)
			} else if !ok && method.Type().NumOut() > 0 && !strings.HasSuffix(name, ".Close") &&
				method.Type().Out(method.Type().NumOut()-1).String() == "error" {
				t.Errorf("%s does not fail", name)
			}
		}
	}
}

// callForError returns the last result of a call, or the value of its panic.
func callForError(method reflect.Value, arguments []reflect.Value) (last, panicked any) {
	defer func() { panicked = recover() }()
	call := method.Call
	if method.Type().IsVariadic() {
		call = method.CallSlice
	}
	if results := call(arguments); len(results) > 0 {
		last = results[len(results)-1].Interface()
	}
	return last, nil
}
