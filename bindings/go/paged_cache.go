package kvevict

import (
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

func (o *PagedCacheOptions) native(device Device) (n native.PagedCacheOptions, err error) {
	n = o.scalars(&err)
	n.Memory, n.MemoryBytes = uintptr(o.Memory.address), o.Memory.bytes
	if err == nil {
		err = o.Memory.on(device, "Memory")
	}
	return n, err
}

// PagedCache is a cache for engines without one: a fixed pool of blocks that
// sequences hold by tables, as in PagedAttention. Safe for concurrent use.
type PagedCache struct {
	handle
	device Device
	layers []LayerInfo // of the plan
	lent   unsafe.Pointer
}

// PagedCacheBytes is the bytes of all layers' blocks.
func (p *Plan) PagedCacheBytes(options PagedCacheOptions) (uint64, error) {
	n, err := options.native(p.device)
	if err != nil {
		return 0, err
	}
	plan, err := p.enter()
	if err != nil {
		return 0, err
	}
	defer p.leave()
	var bytes uint64
	err = native.Kvevict_paged_cache_bytes(plan, &n, &bytes)
	return bytes, err
}

// NewPagedCache makes a cache whose blocks are all free. It has the plan's context,
// geometry and MaxTokens, the most that a sequence may hold, but not the policy. It
// keeps what it needs of the plan and the options' Memory alive.
func (p *Plan) NewPagedCache(options PagedCacheOptions) (*PagedCache, error) {
	n, err := options.native(p.device)
	if err != nil {
		return nil, err
	}
	plan, err := p.enter()
	if err != nil {
		return nil, err
	}
	defer p.leave()
	var pointer uintptr
	if err := native.Kvevict_paged_cache_create(plan, &n, &pointer); err != nil {
		return nil, err
	}
	c := &PagedCache{device: p.device, layers: p.layers, lent: options.Memory.owner}
	c.own(c, pointer, native.Kvevict_paged_cache_destroy, p.hooks)
	return c, nil
}

// PagedCacheUsage is what is in use of a cache at one moment.
type PagedCacheUsage struct {
	Sequences  int
	Blocks     uint64 // blocks of all layers
	Free       uint64 // blocks that nobody holds
	Shared     uint64 // blocks that several sequences hold
	Slots      uint64 // rows of all layers that sequences hold; a shared row counts for each
	Bytes      uint64 // bytes of all blocks, and of the sequences' recent rows
	BytesInUse uint64 // bytes without the free blocks
	F32Bytes   uint64 // what Bytes would be if all rows were f32
}

// Usage counts blocks.
func (c *PagedCache) Usage() (PagedCacheUsage, error) {
	cache, err := c.enter()
	if err != nil {
		return PagedCacheUsage{}, err
	}
	defer c.leave()
	n := native.PagedCacheUsage{StructSize: uint32(unsafe.Sizeof(native.PagedCacheUsage{}))}
	if err := native.Kvevict_paged_cache_get_usage(cache, &n); err != nil {
		return PagedCacheUsage{}, err
	}
	return PagedCacheUsage{
		int(n.NSequences), n.NBlocks, n.NFree, n.NShared, n.NSlots, n.Bytes, n.BytesInUse, n.F32Bytes,
	}, nil
}

// NewSequence adds a sequence, which holds no tokens. It keeps the cache's blocks alive.
func (c *PagedCache) NewSequence() (*PagedSequence, error) {
	cache, err := c.enter()
	if err != nil {
		return nil, err
	}
	defer c.leave()
	var pointer uintptr
	if err := native.Kvevict_paged_sequence_create(cache, &pointer); err != nil {
		return nil, err
	}
	return newPagedSequence(pointer, c.device, c.layers, c.lent, c.hooks), nil
}
