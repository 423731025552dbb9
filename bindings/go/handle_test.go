package kvevict

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

type counted struct {
	handle
	_ *int // so that the allocator does not pack it with others, which delays finalizers
}

func newCounted(destroyed *atomic.Int32) *counted {
	c := &counted{}
	c.own(c, 1, func(uintptr) { destroyed.Add(1) })
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
	must(t, sequence.Append(1)) // keeps what it needs
	must(t, newSequence(t, plan).Close())
	must(t, plan.Close())
	must(t, sequence.Append(1))
	n, err := sequence.LogicalLength()
	must(t, err)
	same(t, 2, n)
	must(t, sequence.Close())
	must(t, view.Close())
	must(t, view.Close())
	_, planErr := plan.NewSequence()
	_, lengthErr := sequence.LogicalLength()
	queries := rows(make([]float32, 32), qHeads)
	open := newContext(t, nil)
	for i, err := range []error{
		context.Prepare(nil), planErr, lengthErr, sequence.Capture(0, &queries, 1, 0),
		sequence.Reset(), view.Validate(0), open.Compact(view, 4, Slice([]int32{0}), 1, Memory{}, 0),
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
	for i := 0; destroyed.Load() < 8 && i < 400; i++ {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	same(t, int32(8), destroyed.Load())
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
				_, err := plan.WorkspaceBytes(OperationEvict)
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
