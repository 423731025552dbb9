package kvevict

import (
	"fmt"
	"reflect"
	"runtime"
	"sync/atomic"
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// View is a checked Layout. Nothing is copied; the memory is kept alive until Close. Immutable, so
// goroutines may share it.
type View struct {
	content atomic.Pointer[content]
}

// content is what calls need of a view. The native structs are objects of their
// own, since cgo passes none that lie beside pointers of Go.
type content struct {
	native     *native.View
	companions []native.Plane
	layout     Layout
	planes     []*Plane
	names      []string
	cached     *PagedSequence // the blocks' owner
}

// NewView checks a layout and remembers it.
func NewView(layout Layout) (*View, error) {
	c := &content{layout: layout}
	c.layout.Companions = append([]Plane(nil), layout.Companions...)
	var err error
	n := layout.scalars(&err)
	n.BlockTable = uintptr(layout.BlockTable.address)
	c.native = &n
	if err != nil {
		return nil, err
	}
	// Calls check whether the memory suits their device.
	c.native.BlockTableLen, err = layout.BlockTable.slots(DeviceCPU, "BlockTable")
	if err != nil {
		return nil, err
	}
	if c.native.K, err = c.add(&c.layout.K, "K"); err != nil {
		return nil, err
	}
	if c.native.V, err = c.add(&c.layout.V, "V"); err != nil {
		return nil, err
	}
	for i := range c.layout.Companions {
		plane, err := c.add(&c.layout.Companions[i], fmt.Sprintf("Companions[%d]", i))
		if err != nil {
			return nil, err
		}
		c.companions = append(c.companions, plane)
	}
	if n := len(c.companions); n > 0 {
		c.native.Companions = uintptr(unsafe.Pointer(&c.companions[0]))
		c.native.NCompanions = uint32(n)
	}
	v := &View{}
	v.content.Store(c)
	return v, nil
}

func (c *content) add(plane *Plane, name string) (native.Plane, error) {
	if !plane.absent() {
		c.planes = append(c.planes, plane)
		c.names = append(c.names, name)
	}
	return plane.native(name)
}

// Layout is the view's layout; after Close it is the zero Layout.
func (v *View) Layout() Layout {
	c := v.content.Load()
	if c == nil {
		return Layout{}
	}
	layout := c.layout
	layout.Companions = append([]Plane(nil), layout.Companions...)
	return layout
}

// layoutOf is the layout of a view that the library made, with the library's companions.
func layoutOf(n *native.View) Layout {
	layout := Layout{
		KVHeads:    int(n.NKVHeads),
		K:          planeOf(&n.K),
		V:          planeOf(&n.V),
		BlockSize:  int(n.BlockSize),
		BlockTable: Address(uint64(n.BlockTable), 4*n.BlockTableLen),

		FirstRecent: int(n.FirstRecent),
	}
	companions := *(**native.Plane)(unsafe.Pointer(&n.Companions))
	for i := range unsafe.Slice(companions, n.NCompanions) {
		plane := &unsafe.Slice(companions, n.NCompanions)[i]
		layout.Companions = append(layout.Companions, planeOf(plane))
	}
	return layout
}

// Close lets go of the memory; a second call does nothing. It never fails.
func (v *View) Close() error {
	v.content.Store(nil)
	return nil
}

// Validate checks the view as executing calls on the CPU do, for so many slots. It reads the block table, which
// must not lie on a GPU.
func (v *View) Validate(nTokens int) error {
	c, n, err := v.use(DeviceCPU, "nTokens", nTokens, Memory{})
	if err != nil {
		return err
	}
	defer runtime.KeepAlive(c)
	return native.Kvevict_view_validate(c.native, n)
}

// open is the content of a view that is neither nil nor closed, for a call on a device.
func (v *View) open(device Device) (*content, error) {
	if v == nil {
		return nil, invalid("view is nil")
	}
	c := v.content.Load()
	if c == nil || c.cached != nil && c.cached.isClosed() {
		return nil, ErrClosed
	}
	return c, c.on(device)
}

// on fails if calls must not be given the memory.
func (c *content) on(device Device) error {
	for i, plane := range c.planes {
		if err := plane.on(device, c.names[i]); err != nil {
			return err
		}
	}
	return c.layout.BlockTable.on(device, "BlockTable")
}

// use is open for a view whose memory holds so many slots, or counts of each head
// if given. Callers know it by a name.
func (v *View) use(
	device Device, name string, slots int, counts Memory,
) (*content, uint32, error) {
	c, err := v.open(device)
	n := count(&err, name, slots)
	if err == nil {
		err = c.require(n, counts)
	}
	return c, n, err
}

// holds tells whether require(maxTokens) cannot fail.
func (c *content) holds(maxTokens uint32) bool {
	for _, plane := range c.planes {
		if plane.Data.ended && (c.native.BlockSize > 0 ||
			plane.steps(c.native.NKVHeads, 1, plane.TokenStride) < uint64(maxTokens)) {
			return false
		}
	}
	return true
}

func (c *content) require(nTokens uint32, counts Memory) error {
	heads, blockSize := c.native.NKVHeads, c.native.BlockSize
	recent := uint32(0)
	for _, plane := range c.planes {
		if plane.recent() && nTokens > c.native.FirstRecent {
			nTokens, recent = c.native.FirstRecent, nTokens-c.native.FirstRecent
		}
	}
	if ring := c.native.RingSlots; ring > 0 && nTokens > 0 { // all of it is in use
		counts = Memory{}
		if nTokens < ring {
			nTokens = ring
		}
	}
	highest := c.highestBlock(nTokens, counts)
	for i, plane := range c.planes {
		if rows := plane.rowsFor(nTokens); blockSize == 0 || plane.recent() {
			if plane.recent() {
				rows = recent
			}
			if err := plane.require(c.names[i], rows, heads); err != nil {
				return err
			}
		} else if n := plane.steps(heads, plane.rowsFor(blockSize), plane.BlockStride); highest >= int64(n) {
			return invalid("%s holds %d blocks, the block table names %d", c.names[i], n, highest)
		}
	}
	return nil
}

// highestBlock is the highest block that holds the first nTokens, or counts of each
// head; -1 if unknown.
func (c *content) highestBlock(nTokens uint32, counts Memory) int64 {
	highest := int64(-1)
	table, blockSize := c.layout.BlockTable, uint64(c.native.BlockSize)
	if blockSize == 0 || table.kind != reflect.Int32 || table.owner == nil {
		return highest
	}
	tables, stride := uint64(1), c.layout.BlockTableHeadStride
	var held []uint32
	if stride > 0 {
		tables = uint64(c.native.NKVHeads)
		if counts.address != 0 {
			if counts.kind != reflect.Uint32 || counts.bytes/4 < tables {
				return highest
			}
			held = unsafe.Slice((*uint32)(counts.owner), tables)
		}
	}
	blocks := unsafe.Slice((*int32)(table.owner), c.native.BlockTableLen)
	for head := uint64(0); head < tables; head++ {
		if held != nil {
			nTokens = held[head]
		}
		used := (uint64(nTokens) + blockSize - 1) / blockSize
		for i := uint64(0); i < used && i < uint64(len(blocks)); i++ {
			if int64(blocks[i]) > highest {
				highest = int64(blocks[i])
			}
		}
		if stride > uint64(len(blocks)) {
			break
		}
		blocks = blocks[stride:]
	}
	return highest
}
