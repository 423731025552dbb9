package kvevict

import (
	"math/bits"
	"reflect"
	"sync"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

const unlimited = 1<<63 - 1

func (p *Plane) absent() bool { return p.Data.address == 0 && !p.Data.ended && !p.inBlocks() }

func (p *Plane) inBlocks() bool { return p.AddressTable.address != 0 }

// on fails if calls on a device must not be given the memory.
func (p *Plane) on(device Device, name string) error {
	if err := p.Data.on(device, name); err != nil {
		return err
	}
	return p.AddressTable.on(device, name)
}

// native converts; name is for errors.
func (p *Plane) native(name string) (native.Plane, error) {
	var err error
	n := p.scalars(&err)
	n.Data, n.AddressTable = p.Data.address, p.AddressTable.address
	if p.inBlocks() {
		if p.Data.address != 0 {
			return n, invalid("%s has both Data and an AddressTable", name)
		}
		length, wrong := p.AddressTable.addresses(name + ".AddressTable")
		if wrong != nil {
			return n, wrong
		}
		n.Data, n.AddressTableLen = p.InBlock, count(&err, "AddressTable", int(length))
	}
	if err != nil {
		return n, invalid("%s: %v", name, err)
	}
	return n, p.checkKind(name)
}

// planeOf converts back, without a check of the memory's end.
func planeOf(n *native.Plane) Plane {
	p := Plane{Data: Address(n.Data, 0)}
	p.read(n)
	return p
}

func (p *Plane) recent() bool { return p.Role == RoleKeyRecent || p.Role == RoleValueRecent }

// rowsFor are the rows that so many tokens have or share.
func (p *Plane) rowsFor(nTokens uint32) uint32 {
	if p.GroupTokens <= 0 || nTokens == 0 {
		return nTokens
	}
	return (nTokens-1)/uint32(p.GroupTokens) + 1
}

// checkKind tells whether a slice's elements can hold the dtype; bytes can hold any.
func (p *Plane) checkKind(name string) error {
	kind := p.Data.kind
	fits := kind == reflect.Invalid || kind == reflect.Uint8
	switch dtypeInfo(p.DType).ElementBytes {
	case 0: // packed rows, or the library has a word to say
		fits = true
	case 1:
		fits = fits || kind == reflect.Int8
	case 2:
		fits = fits || kind == reflect.Uint16 || kind == reflect.Int16
	case 4:
		fits = fits || kind == reflect.Float32 && p.DType == DTypeF32
	}
	if !fits {
		return invalid("%s.DType is %s, which a slice of %v does not hold", name, dtypeInfo(p.DType).Name, kind)
	}
	return nil
}

var dtypeInfos struct {
	once sync.Once
	of   []DTypeInfo // rows by number
}

// dtypeInfo is the row of the table of element types; empty for a number that is no type.
func dtypeInfo(dtype DType) DTypeInfo {
	dtypeInfos.once.Do(func() {
		for _, info := range DTypes() {
			for len(dtypeInfos.of) <= int(info.DType) {
				dtypeInfos.of = append(dtypeInfos.of, DTypeInfo{})
			}
			dtypeInfos.of[info.DType] = info
		}
	})
	if dtype < 0 || int(dtype) >= len(dtypeInfos.of) {
		return DTypeInfo{}
	}
	return dtypeInfos.of[dtype]
}

// packedBytes are the bytes of a row whose elements share bytes.
func (p *Plane) packedBytes() int64 {
	info := dtypeInfo(p.DType)
	if info.BlockElements == 0 {
		return int64(p.RowBytes)
	}
	return int64(p.HeadDim) / int64(info.BlockElements) * int64(info.BlockBytes)
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

// packed replaces strides of 0, which inputs except queries may have, by those of nTokens packed rows.
func (p *Plane) packed(nTokens uint32) Plane {
	q, row := *p, int64(p.HeadDim)*int64(dtypeInfo(p.DType).ElementBytes)
	if q.TokenStride == 0 {
		q.TokenStride = row
	}
	if q.HeadStride == 0 {
		q.HeadStride = row * int64(nTokens)
	}
	return q
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
	bytes, elements := int64(dtypeInfo(p.DType).ElementBytes), int64(p.HeadDim)
	if bytes == 0 {
		bytes, elements = 1, p.packedBytes()
	}
	if !p.Data.ended || nHeads == 0 || elements <= 0 || bytes == 0 {
		return unlimited // the library's own checks name this better
	}
	elementStride := p.ElementStride
	if elementStride == 0 {
		elementStride = bytes
	}
	r := reach{high: uint64(bytes)}
	if group := int64(p.GroupElems); group > 0 && group < elements {
		r.extend(uint64(elements/group-1), p.GroupStride)
		elements = group
	}
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
