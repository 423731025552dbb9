package kvevict

import (
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// Workspace is the memory that a call works in, whatever its inputs hold. It may
// hold anything before and after the call, and serves one call at a time: on CUDA
// until the stream has passed it. Memory for more tokens serves fewer.
type Workspace struct {
	Alignment int    // alignment of the address in bytes
	Least     uint64 // bytes in which the call runs, to the same results; 0: it needs none
	Best      uint64 // more bytes gain nothing
	device    Device
}

// New makes memory of the best size on the CPU; on CUDA it is an error.
func (w Workspace) New() (Memory, error) {
	if w.device == DeviceCUDA {
		return Memory{}, invalid("the context is on CUDA: pass %d to %d bytes of device memory, "+
			"aligned to %d, by Address", w.Least, w.Best, w.Alignment)
	}
	if w.Best == 0 {
		return Memory{}, nil
	}
	mask := uint64(w.Alignment) - 1
	raw := make([]byte, w.Best+mask)
	skip := -Slice(raw).address & mask
	return Slice(raw[skip : skip+w.Best]), nil
}

// workspaceOf is what the library answers.
func workspaceOf(device Device, ask func(*native.Workspace) error) (Workspace, error) {
	n := native.Workspace{StructSize: uint32(unsafe.Sizeof(native.Workspace{}))}
	if err := ask(&n); err != nil {
		return Workspace{}, err
	}
	return Workspace{int(n.Alignment), n.LeastBytes, n.BestBytes, device}, nil
}
