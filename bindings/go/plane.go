package kvevict

import (
	"math/bits"
	"reflect"
	"sync"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// Plane is the rows of one tensor, one per token and head, in any layout.
//
// Element e of head h of token t lies at t*TokenStride + h*HeadStride + e*ElementStride bytes from
// the beginning of Data; in a paged cache the token counts inside its block, and
// table[t/BlockSize]*BlockStride is added. A plane without Data is absent.
type Plane struct {
	Data          Memory
	Before        uint64 // bytes before Data that belong to it as well, for negative strides
	TokenStride   int64
	HeadStride    int64
	ElementStride int64 // 0: packed
	BlockStride   int64 // paged only
	DType         DType
	HeadDim       int // elements per row; 0 for opaque
	RowBytes      int // opaque: bytes per row
}

const unlimited = 1<<63 - 1

func (p *Plane) absent() bool { return p.Data.address == 0 && !p.Data.ended }

// native converts; name is for errors.
func (p *Plane) native(name string) (native.Plane, error) {
	var err error
	n := native.Plane{
		Data:               p.Data.address,
		TokenStrideBytes:   p.TokenStride,
		HeadStrideBytes:    p.HeadStride,
		ElementStrideBytes: p.ElementStride,
		BlockStrideBytes:   p.BlockStride,
		DType:              int32(p.DType),
		HeadDim:            count(&err, "HeadDim", p.HeadDim),
		RowBytes:           count(&err, "RowBytes", p.RowBytes),
	}
	if err != nil {
		return n, invalid("%s: %v", name, err)
	}
	return n, p.checkKind(name)
}

// planeOf converts back, from memory that nobody checks the end of.
func planeOf(n *native.Plane) Plane {
	return Plane{
		Data:          Address(n.Data, 0),
		TokenStride:   n.TokenStrideBytes,
		HeadStride:    n.HeadStrideBytes,
		ElementStride: n.ElementStrideBytes,
		BlockStride:   n.BlockStrideBytes,
		DType:         DType(n.DType),
		HeadDim:       int(n.HeadDim),
		RowBytes:      int(n.RowBytes),
	}
}

// checkKind tells whether a slice's elements can hold the dtype; bytes can hold any.
func (p *Plane) checkKind(name string) error {
	kind := p.Data.kind
	fits := kind == reflect.Invalid || kind == reflect.Uint8
	switch elementBytes(p.DType) {
	case 0: // opaque, or the library has a word to say
		fits = true
	case 2:
		fits = fits || kind == reflect.Uint16 || kind == reflect.Int16
	case 4:
		fits = fits || kind == reflect.Float32 && p.DType == DTypeF32
	}
	if !fits {
		return invalid("%s.DType is %d, which a slice of %v does not hold", name, p.DType, kind)
	}
	return nil
}

var dtypeBytes struct {
	once sync.Once
	of   []int64 // by number
}

// elementBytes are the bytes of an element; 0 of opaque rows and of what is no element type.
func elementBytes(dtype DType) int64 {
	dtypeBytes.once.Do(func() {
		for _, info := range DTypes() {
			for len(dtypeBytes.of) <= int(info.DType) {
				dtypeBytes.of = append(dtypeBytes.of, 0)
			}
			dtypeBytes.of[info.DType] = int64(info.ElementBytes)
		}
	})
	if dtype < 0 || int(dtype) >= len(dtypeBytes.of) {
		return 0
	}
	return dtypeBytes.of[dtype]
}

// rows converts a plane without blocks that must hold nTokens rows of nHeads heads on a device.
func (p *Plane) rows(device Device, name string, nTokens, nHeads uint32) (native.Plane, error) {
	if err := p.Data.on(device, name); err != nil {
		return native.Plane{}, err
	}
	if err := p.require(name, nTokens, nHeads); err != nil {
		return native.Plane{}, err
	}
	return p.native(name)
}

// require fails unless the memory holds nTokens rows of nHeads heads.
func (p *Plane) require(name string, nTokens, nHeads uint32) error {
	if capacity := p.steps(nHeads, 1, p.TokenStride); uint64(nTokens) > capacity {
		return invalid("%s holds %d rows of %d heads, not %d", name, capacity, nHeads, nTokens)
	}
	return nil
}

// steps is how often a group of nTokens tokens and nHeads heads fits at distances of stride.
func (p *Plane) steps(nHeads, nTokens uint32, stride int64) uint64 {
	bytes, elements := elementBytes(p.DType), int64(p.HeadDim)
	if p.DType == DTypeOpaque {
		bytes, elements = 1, int64(p.RowBytes)
	}
	if !p.Data.ended || nHeads == 0 || elements <= 0 || bytes == 0 {
		return unlimited // the library's own checks name this better
	}
	elementStride := p.ElementStride
	if elementStride == 0 {
		elementStride = bytes
	}
	r := reach{high: uint64(bytes)}
	r.extend(uint64(elements-1), elementStride)
	r.extend(uint64(nHeads-1), p.HeadStride)
	r.extend(uint64(nTokens-1), p.TokenStride)
	if r.overflow || r.low > p.Before || r.high > p.Data.bytes {
		return 0
	}
	switch {
	case stride == 0:
		return unlimited
	case stride > 0:
		return 1 + (p.Data.bytes-r.high)/uint64(stride)
	default:
		return 1 + (p.Before-r.low)/-uint64(stride)
	}
}

// reach is how many bytes before and after the beginning of a plane are touched.
type reach struct {
	low, high uint64
	overflow  bool
}

func (r *reach) extend(n uint64, stride int64) {
	end, distance := &r.high, uint64(stride)
	if stride < 0 {
		end, distance = &r.low, -uint64(stride)
	}
	over, far := bits.Mul64(n, distance)
	sum, carry := bits.Add64(*end, far, 0)
	*end = sum
	r.overflow = r.overflow || over != 0 || carry != 0
}
