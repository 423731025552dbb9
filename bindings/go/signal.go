package kvevict

import (
	"reflect"
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// signals are inputs as C takes them: they hold no pointers of Go.
type signals struct {
	inputs []native.SignalInputs
	planes [][nPlanes]native.Plane // planes of each input
}

const nPlanes = 10

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
	var err error
	*n = inputs.scalars(&err)
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
	n.ReferencePositions, err = inputs.ReferencePositions.eachOf(
		reflect.Int32, device, "ReferencePositions", inputs.ReferenceRows)
	if err != nil {
		return 0, err
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
		{"ReferenceQueries", inputs.ReferenceQueries, &n.ReferenceQueries, n.NReferenceRows, q},
	} {
		if plane.from == nil {
			continue
		}
		s.planes[i][j], err = plane.from.rows(device, plane.name, plane.rows, plane.heads)
		if err == nil && plane.from != inputs.Queries && plane.from != inputs.ReferenceQueries {
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
