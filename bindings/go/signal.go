package kvevict

import (
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// SignalInputs is what signals read of a layer beside its keys. Each policy's
// signal needs some of them; the rest may be nil.
type SignalInputs struct {
	// Queries are rows of the query heads after RoPE: those of the window, for h2o without
	// AttentionSums those of the last QueryRows tokens, for non-causal those of all slots.
	Queries *Plane
	// QueryRows is the number of rows of Queries and RowLSE for scoring. 0 selects the
	// policy's own: its window, or every held slot for h2o and non-causal.
	QueryRows int
	RowLSE    *Plane // float32 log-sum-exps of the rows' logits, which save a pass over the keys
	Scores    *Plane // policy custom: float32 [KVHeads, slots held], HeadDim 1, tokens packed
	// AttentionSums are for policy h2o: float32 [SumHeads, slots held], HeadDim 1, tokens packed: the
	// attention weight that each slot got. A sequence adds up what it observes, summed over a chunk's
	// rows, for the slots including the chunk's. For scoring without a sequence it is summed over all
	// queries that saw a slot, and the engine keeps it: a companion of the view moves with its tokens.
	AttentionSums *Plane
	// SumHeads is QHeads, or KVHeads if the query heads of a KV head are reduced
	// already, or 1 for all if they share a keep list; 0: QHeads.
	SumHeads int
	// QueryMean and QueryCovariance are for policy expected-attention: float32 [QHeads, 1, KHeadDim]
	// and [QHeads, KHeadDim, KHeadDim], packed, of the queries to come, rotated to their positions.
	QueryMean, QueryCovariance *Plane
	// KeyFilter is for policy q-filter: float32 [KVHeads, 1, KHeadDim], packed: the
	// direction in which a KV head's keys get no attention.
	KeyFilter *Plane
	// TokenWeights are for Weight=given: float32 [KVHeads, slots held], HeadDim 1,
	// tokens packed. Scores are multiplied by them under any policy.
	TokenWeights *Plane
	// QueryCenters are for policy triattention: float32 [QHeads, 3, pairs that RoPE
	// rotates], packed: for each pair of elements of the model's queries before RoPE,
	// the real and the imaginary part of their mean, and the mean length.
	QueryCenters *Plane
}

// signals are inputs as C takes them: they hold no pointers of Go.
type signals struct {
	inputs []native.SignalInputs
	planes [][nPlanes]native.Plane // planes of each input
}

const nPlanes = 9

// grow makes room for n inputs.
func (s *signals) grow(n int) {
	if len(s.inputs) < n {
		s.inputs, s.planes = make([]native.SignalInputs, n), make([][nPlanes]native.Plane, n)
	}
}

// put converts inputs of a layer with so many rows of queries and slots held, and
// returns their address. A negative number of rows means as many as slots. Nothing
// is read of a layer without a full cache, so any memory will do.
func (s *signals) put(
	i int, inputs *SignalInputs, device Device, layer LayerInfo, queryRows int, held uint32,
) (uintptr, error) {
	n := &s.inputs[i]
	*n = native.SignalInputs{StructSize: uint32(unsafe.Sizeof(*n))}
	var err error
	n.NSumHeads = count(&err, "SumHeads", inputs.SumHeads)
	n.NQueryRows = count(&err, "QueryRows", inputs.QueryRows)
	if err != nil {
		return 0, err
	}
	if layer.Cache != LayerCacheFull {
		return inHeap(unsafe.Pointer(n)), nil
	}
	q, kv, sums := uint32(layer.QHeads), uint32(layer.KVHeads), n.NSumHeads
	if sums == 0 {
		sums = q
	}
	rows := uint32(queryRows)
	if held > 0 && n.NQueryRows > 0 {
		rows = n.NQueryRows
	} else if queryRows < 0 {
		rows = held
	}
	for j, plane := range [nPlanes]struct {
		name        string
		from        *Plane
		to          *uintptr
		rows, heads uint32
	}{
		{"Queries", inputs.Queries, &n.Queries, rows, q},
		{"RowLSE", inputs.RowLSE, &n.RowLSE, rows, q},
		{"Scores", inputs.Scores, &n.Scores, held, kv},
		{"AttentionSums", inputs.AttentionSums, &n.AttentionSums, held, sums},
		{"QueryMean", inputs.QueryMean, &n.QueryMean, 1, q},
		{"QueryCovariance", inputs.QueryCovariance, &n.QueryCovariance, inputs.QueryCovariance.dim(), q},
		{"KeyFilter", inputs.KeyFilter, &n.KeyFilter, 1, kv},
		{"TokenWeights", inputs.TokenWeights, &n.TokenWeights, held, kv},
		{"QueryCenters", inputs.QueryCenters, &n.QueryCenters, 3, q},
	} {
		if plane.from == nil {
			continue
		}
		s.planes[i][j], err = plane.from.rows(device, plane.name, plane.rows, plane.heads)
		if err == nil && plane.from != inputs.Queries {
			packed := plane.from.packed(plane.rows)
			err = packed.require(plane.name, plane.rows, plane.heads)
		}
		if err != nil {
			return 0, err
		}
		*plane.to = inHeap(unsafe.Pointer(&s.planes[i][j]))
	}
	return inHeap(unsafe.Pointer(n)), nil
}

// dim is the number of rows of a square matrix of such rows.
func (p *Plane) dim() uint32 {
	if p == nil || p.HeadDim < 0 {
		return 0
	}
	return uint32(p.HeadDim)
}
