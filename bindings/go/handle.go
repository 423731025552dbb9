package kvevict

import (
	"math"
	"runtime"
	"sync/atomic"
)

// handle is an object of the native library. It is destroyed by Close, or when it has become
// unreachable, but never under a call: then the last call does it. Every call ends with leave(),
// which keeps the handle reachable until then. The zero value is closed.
type handle struct {
	pointer uintptr
	destroy func(uintptr)
	hooks   *hooks       // the library can call them until the end
	calls   atomic.Int32 // calls under way, plus closed
	outer   atomic.Int32 // 1 while a lone call's callback may enter as well
}

const closed = math.MinInt32

// closer is a handle's owner.
type closer interface{ Close() error }

// own begins the life of a handle; owner contains it.
func (h *handle) own(owner closer, pointer uintptr, destroy func(uintptr), hooks *hooks) {
	h.pointer, h.destroy, h.hooks = pointer, destroy, hooks
	hooks.retain()
	runtime.SetFinalizer(owner, func(c closer) { _ = c.Close() })
}

// end destroys the native object.
func (h *handle) end() {
	h.destroy(h.pointer)
	h.hooks.release()
}

// enter returns the pointer, which stays valid until leave().
func (h *handle) enter() (uintptr, error) {
	if h.pointer == 0 {
		return 0, ErrClosed
	}
	for {
		n := h.calls.Load()
		if n < 0 {
			return 0, ErrClosed
		}
		if h.calls.CompareAndSwap(n, n+1) {
			return h.pointer, nil
		}
	}
}

// enterAlone is enter for objects that serve one goroutine at a time.
func (h *handle) enterAlone() (uintptr, error) {
	if h.pointer == 0 {
		return 0, ErrClosed
	}
	outer := h.outer.Load()
	if h.calls.CompareAndSwap(outer, outer+1) {
		return h.pointer, nil
	}
	if h.calls.Load() < 0 {
		return 0, ErrClosed
	}
	return 0, invalid("the sequence is in use by another call")
}

// lend lets the callback of a lone call use the object, one call at a time, until takeBack.
func (h *handle) lend() { h.outer.Store(1) }

func (h *handle) isLent() bool { return h.outer.Load() != 0 }

func (h *handle) takeBack() error {
	h.outer.Store(0)
	if n := h.calls.Load(); n != 1 && n != closed+1 {
		return invalid("the sequence is in use by another call")
	}
	return nil
}

func (h *handle) leave() {
	if h.calls.Add(-1) == closed {
		h.end()
	}
}

func (h *handle) isClosed() bool { return h.pointer == 0 || h.calls.Load() < 0 }

// Close releases the native object; a second call does nothing. It never fails.
func (h *handle) Close() error {
	if h.pointer == 0 {
		return nil
	}
	for {
		n := h.calls.Load()
		if n < 0 {
			return nil
		}
		if h.calls.CompareAndSwap(n, n+closed) {
			if n == 0 {
				h.end()
			}
			return nil
		}
	}
}
