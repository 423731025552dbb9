package kvevict

import (
	"fmt"
	"math"
	"reflect"
	"unsafe"
)

// Number is the element type of slices given to the library. 16-bit floats are
// uint16 or int16; bytes hold anything.
type Number interface {
	~int8 | ~uint8 | ~int16 | ~uint16 | ~int32 | ~uint32 | ~int64 | ~uint64 | ~float32 | ~float64
}

// Memory is a place that calls read or write: a slice of this process, or an address here or on a
// device. The zero Memory is absent.
//
// Calls on CUDA queue work and return, so they refuse slices. Other memory must
// stay until the stream has passed the call: only its address is kept.
type Memory struct {
	address uint64
	bytes   uint64
	owner   unsafe.Pointer // keeps a slice alive; nil for an address
	kind    reflect.Kind   // kind of a slice's elements; Invalid for an address
	ended   bool           // whether bytes can be trusted
}

// Stream is a CUstream; 0 is the default stream. Ignored on the CPU.
type Stream uintptr

// heap is never set. Because it could be, the compiler puts slices into the heap,
// where they stay in place. Stacks move.
var heap struct {
	always bool
	sink   unsafe.Pointer
}

// inHeap is the address of an object, which stays where it is.
func inHeap(p unsafe.Pointer) uintptr {
	if heap.always {
		heap.sink = p
	}
	return uintptr(p)
}

// Slice is the memory of a slice, for calls on the CPU.
func Slice[T Number](s []T) Memory {
	if len(s) == 0 {
		return Memory{ended: true, kind: reflect.TypeOf(T(0)).Kind()}
	}
	p := unsafe.Pointer(&s[0])
	return Memory{
		address: uint64(inHeap(p)),
		bytes:   uint64(len(s)) * uint64(unsafe.Sizeof(s[0])),
		owner:   p,
		kind:    reflect.TypeOf(s[0]).Kind(),
		ended:   true,
	}
}

// Pointer is memory of so many bytes at a pointer, for example of C. Memory of Go must be in the
// heap; on CUDA it must be known to the driver (cuMemHostRegister), and the caller keeps it alive.
func Pointer(p unsafe.Pointer, bytes uint64) Memory {
	return Memory{address: uint64(uintptr(p)), bytes: bytes, owner: p, ended: true}
}

// Address is memory of so many bytes at an address on the device of the context
// that uses it. Planes may pass 0 bytes: then nobody checks where the memory ends.
func Address(address, bytes uint64) Memory {
	return Memory{address: address, bytes: bytes, ended: bytes != 0}
}

// Address is the begin of the memory, valid as long as a slice's Memory is reachable; 0 if absent.
func (m Memory) Address() uint64 { return m.address }

// on fails if calls must not be given the memory: a slice on CUDA. name is for errors.
func (m Memory) on(device Device, name string) error {
	if device == DeviceCUDA && m.kind != reflect.Invalid && m.address != 0 {
		return invalid("%s is a slice, but the context is on CUDA: pass device memory by Address", name)
	}
	return nil
}

// floats is how many float32 the memory holds.
func (m Memory) floats(device Device, name string) (uint64, error) {
	return m.words(device, name, reflect.Float32)
}

// slots is how many int32 the memory holds.
func (m Memory) slots(device Device, name string) (uint64, error) {
	return m.words(device, name, reflect.Int32)
}

// addresses is how many uint64 the memory holds.
func (m Memory) addresses(name string) (uint64, error) {
	if m.kind != reflect.Uint64 && m.kind != reflect.Invalid {
		return 0, invalid("%s is a slice of %v, not of uint64", name, m.kind)
	}
	return m.bytes / 8, nil
}

// each is the address of n uint32; 0 if the memory is absent.
func (m Memory) each(device Device, name string, n int) (uintptr, error) {
	return m.eachOf(reflect.Uint32, device, name, n)
}

func (m Memory) eachOf(kind reflect.Kind, device Device, name string, n int) (uintptr, error) {
	if m.address == 0 {
		return 0, nil
	}
	length, err := m.words(device, name, kind)
	if err == nil && m.ended && n > 0 && length < uint64(n) {
		err = invalid("%s has %d elements, %d are needed", name, length, n)
	}
	return uintptr(m.address), err
}

func (m Memory) words(device Device, name string, kind reflect.Kind) (uint64, error) {
	if err := m.on(device, name); err != nil {
		return 0, err
	}
	if m.kind != kind && m.kind != reflect.Invalid {
		return 0, invalid("%s is a slice of %v, not of %v", name, m.kind, kind)
	}
	return m.bytes / 4, nil
}

// count checks a number that C holds as uint32_t. The first of several mistakes stays.
func count(err *error, name string, value int) uint32 {
	if value < 0 || uint64(value) > math.MaxUint32 {
		if *err == nil {
			*err = invalid("%s %d is not in 0 .. %d", name, value, uint32(math.MaxUint32))
		}
		return 0
	}
	return uint32(value)
}

// zeroTerminated is text as C reads it, in the heap.
func zeroTerminated(name, text string) (Memory, error) {
	for i := 0; i < len(text); i++ {
		if text[i] == 0 {
			return Memory{}, invalid("%s has a zero byte at %d", name, i)
		}
	}
	return Slice(append([]byte(text), 0)), nil
}

// at says which of several an error is about.
func at(err error, name string, i, of int) error {
	if err == nil || of == 1 {
		return err
	}
	return fmt.Errorf("%s[%d]: %w", name, i, err)
}

func flag(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}
