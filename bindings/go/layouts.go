package kvevict

import "math/bits"

// TokenMajor is the plane [tokens, heads, headDim] in data, whose rows are packed. An
// invalid plane, such as one whose dtype makes no rows, is an error when it is used.
func TokenMajor(data Memory, dtype DType, heads, headDim int) Plane {
	p := Plane{Data: data, DType: dtype, HeadDim: headDim}
	p.TokenStride, p.HeadStride = p.rowBytes(heads), p.rowBytes(1)
	return p
}

// HeadMajor is the plane [heads, capacity, headDim], with room for so many tokens per head.
func HeadMajor(data Memory, dtype DType, capacity, headDim int) Plane {
	p := Plane{Data: data, DType: dtype, HeadDim: headDim}
	p.TokenStride, p.HeadStride = p.rowBytes(1), p.rowBytes(capacity)
	return p
}

// Transposed is the plane [heads, headDim, capacity], as some engines store V.
func Transposed(data Memory, dtype DType, capacity, headDim int) Plane {
	p := HeadMajor(data, dtype, capacity, headDim)
	p.TokenStride = int64(dtypeInfo(dtype).ElementBytes)
	p.ElementStride = times(p.TokenStride, capacity)
	return p
}

// PagedTokenMajor is the plane [blocks, blockSize, heads, headDim] of a layout with blocks; data is the whole pool.
func PagedTokenMajor(data Memory, dtype DType, blockSize, heads, headDim int) Plane {
	p := TokenMajor(data, dtype, heads, headDim)
	p.BlockStride = times(p.TokenStride, blockSize)
	return p
}

// PagedHeadMajor is the plane [blocks, heads, blockSize, headDim] of a layout with blocks; data is the whole pool.
func PagedHeadMajor(data Memory, dtype DType, blockSize, heads, headDim int) Plane {
	p := HeadMajor(data, dtype, blockSize, headDim)
	p.BlockStride = times(p.HeadStride, heads)
	return p
}

// Vectorised is the plane [blocks, heads, headDim/groupElems, blockSize, groupElems] of a layout with blocks, as some
// engines store K; data is the whole pool.
func Vectorised(data Memory, dtype DType, blockSize, heads, headDim, groupElems int) Plane {
	p := PagedHeadMajor(data, dtype, blockSize, heads, headDim)
	group := Plane{DType: dtype, HeadDim: groupElems}
	p.GroupElems, p.TokenStride, p.GroupStride = groupElems, group.rowBytes(1), group.rowBytes(blockSize)
	return p
}

// InBlocks is the plane [blockSize, heads, headDim] in blocks that were allocated one by one: see Plane.AddressTable
// and Plane.InBlock.
func InBlocks(addresses Memory, dtype DType, heads, headDim int, inBlock uint64) Plane {
	p := TokenMajor(Memory{}, dtype, heads, headDim)
	p.AddressTable, p.InBlock = addresses, inBlock
	return p
}

// rowBytes is the length of so many packed rows; 0 if the dtype makes none.
func (p *Plane) rowBytes(rows int) int64 { return times(p.packedBytes(), rows) }

// times is a stride; one that does not fit is the longest, at which no memory has a row.
func times(bytes int64, count int) int64 {
	if bytes < 0 || count < 0 {
		return 0
	}
	high, low := bits.Mul64(uint64(bytes), uint64(count))
	if high != 0 || low > unlimited {
		return unlimited
	}
	return int64(low)
}
