package kvevict

import (
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// SignalInputs is what signals read of a layer beside its keys. Each policy's signal needs some of
// them; what it has no use for may be nil.
type SignalInputs struct {
	Queries *Plane // window attention: rows of the query heads, after RoPE
	RowLSE  *Plane // float32 log-sum-exps of the rows' logits, which save CUDA a pass over the keys
	Scores  *Plane // PolicyCustom: float32 [KVHeads, slots held], HeadDim 1, tokens packed
}

// signals are inputs as C takes them: they hold no pointers of Go.
type signals struct {
	inputs []native.SignalInputs
	planes [][3]native.Plane // of each
}

// grow makes room for n inputs.
func (s *signals) grow(n int) {
	if len(s.inputs) < n {
		s.inputs, s.planes = make([]native.SignalInputs, n), make([][3]native.Plane, n)
	}
}

// put converts inputs of a layer with so many rows of queries and slots held, and returns where
// they lie. Without a full cache nothing of them is read, so any memory will do.
func (s *signals) put(
	i int, inputs *SignalInputs, device Device, layer LayerInfo, rows, held uint32,
) (uintptr, error) {
	n := &s.inputs[i]
	*n = native.SignalInputs{StructSize: uint32(unsafe.Sizeof(*n))}
	if layer.Cache != LayerCacheFull {
		layer = LayerInfo{}
	}
	for j, plane := range [...]struct {
		name        string
		from        *Plane
		to          *uintptr
		rows, heads uint32
	}{
		{"Queries", inputs.Queries, &n.Queries, rows, uint32(layer.QHeads)},
		{"RowLSE", inputs.RowLSE, &n.RowLSE, rows, uint32(layer.QHeads)},
		{"Scores", inputs.Scores, &n.Scores, held, uint32(layer.KVHeads)},
	} {
		if plane.from == nil {
			continue
		}
		var err error
		s.planes[i][j], err = plane.from.rows(device, plane.name, plane.rows, plane.heads)
		if err != nil {
			return 0, err
		}
		*plane.to = inHeap(unsafe.Pointer(&s.planes[i][j]))
	}
	return inHeap(unsafe.Pointer(n)), nil
}
