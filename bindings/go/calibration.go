package kvevict

import (
	"runtime"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// Calibration adds up the queries that it is shown, over any number of texts, and tells what
// policies that expect queries to come want in SignalInputs: QueryCenters and QueryMean. It is
// made once per model. One goroutine at a time may use it.
type Calibration struct {
	handle
	device  Device
	layers  []LayerInfo
	keyDims []int
	pairs   int
}

// NewCalibration makes a calibration that has seen no query of the plan's model. With
// covariances it also adds up what these need: KHeadDim * (KHeadDim + 1) / 2 numbers of 8
// bytes for each query head.
func (p *Plan) NewCalibration(covariances bool) (*Calibration, error) {
	plan, err := p.enter()
	if err != nil {
		return nil, err
	}
	defer p.leave()
	var has uint32
	if covariances {
		has = 1
	}
	c := &Calibration{device: p.device, layers: p.layers, keyDims: p.keyDims, pairs: p.pairs}
	var pointer uintptr
	if err := native.Kvevict_calibration_create(plan, has, &pointer); err != nil {
		return nil, err
	}
	c.own(c, pointer, native.Kvevict_calibration_destroy, p.hooks)
	return c, nil
}

// Observe adds query rows of a layer, [QHeads, rows, KHeadDim] after RoPE, in f32 or the
// geometry's dtype, for positions from firstPosition on. It makes no difference how rows are cut
// into calls. A row with NaN or infinity is an error, and nothing is added. On CUDA it waits.
func (c *Calibration) Observe(layer int, queries Plane, firstPosition, rows int, stream Stream) error {
	calibration, err := c.enterAlone()
	if err != nil {
		return err
	}
	defer c.leave()
	l := count(&err, "layer", layer)
	position := count(&err, "firstPosition", firstPosition)
	n := count(&err, "rows", rows)
	if err != nil {
		return err
	}
	plane, err := queries.rows(c.device, "queries", n, uint32(layerAt(c.layers, l).QHeads))
	if err != nil {
		return err
	}
	err = native.Kvevict_calibration_observe(calibration, l, &plane, position, n, uintptr(stream))
	runtime.KeepAlive(queries.Data.owner)
	return err
}

// Rows is how many rows of a layer have been added.
func (c *Calibration) Rows(layer int) (uint64, error) {
	calibration, err := c.enterAlone()
	if err != nil {
		return 0, err
	}
	defer c.leave()
	l := count(&err, "layer", layer)
	if err != nil {
		return 0, err
	}
	var rows uint64
	err = native.Kvevict_calibration_rows(calibration, l, &rows)
	return rows, err
}

// QueryCenters is what triattention takes as QueryCenters: [QHeads, 3, pairs of RoPE].
func (c *Calibration) QueryCenters(layer int) ([]float32, error) {
	calibration, err := c.enterAlone()
	if err != nil {
		return nil, err
	}
	defer c.leave()
	l := count(&err, "layer", layer)
	if err != nil {
		return nil, err
	}
	centers := make([]float32, layerAt(c.layers, l).QHeads*3*c.pairs+1) // never NULL
	err = native.Kvevict_calibration_query_centers(calibration, l, &centers[0], uint64(len(centers)-1))
	if err != nil {
		return nil, err
	}
	return centers[:len(centers)-1], nil
}

// QueryMean is what expected-attention takes as QueryMean, [QHeads, KHeadDim], and with
// covariance as QueryCovariance, [QHeads, KHeadDim, KHeadDim], for queries at so many
// positions from firstPosition on; the paper has 512.
func (c *Calibration) QueryMean(
	layer, firstPosition, positions int, covariance bool,
) (mean, covariances []float32, err error) {
	calibration, err := c.enterAlone()
	if err != nil {
		return nil, nil, err
	}
	defer c.leave()
	l := count(&err, "layer", layer)
	position := count(&err, "firstPosition", firstPosition)
	n := count(&err, "positions", positions)
	if err != nil {
		return nil, nil, err
	}
	heads, dim := layerAt(c.layers, l).QHeads, 0
	if heads > 0 {
		dim = c.keyDims[l]
	}
	mean = make([]float32, heads*dim+1) // never NULL
	if covariance {
		covariances = make([]float32, heads*dim*dim)
	}
	err = native.Kvevict_calibration_query_mean(calibration, l, position, n, &mean[0],
		uint64(len(mean)-1), first(covariances), uint64(len(covariances)))
	if err != nil {
		return nil, nil, err
	}
	return mean[:len(mean)-1], covariances, nil
}

// Save returns the sums as bytes, with a version and a CRC-32, which Load of any machine reads.
func (c *Calibration) Save() ([]byte, error) {
	calibration, err := c.enterAlone()
	if err != nil {
		return nil, err
	}
	defer c.leave()
	var length uint64
	if err := native.Kvevict_calibration_save(calibration, 0, 0, &length); err != nil {
		return nil, err
	}
	data := make([]byte, length)
	out := Slice(data)
	err = native.Kvevict_calibration_save(calibration, uintptr(out.address), out.bytes, &length)
	runtime.KeepAlive(out.owner)
	if err != nil {
		return nil, err
	}
	return data, nil
}

// Load adds the sums that Save returned, of a model with the same layers, heads and RoPE: it
// restores them in a new calibration, and joins two parts of a corpus in another. An error adds
// nothing.
func (c *Calibration) Load(data []byte) error {
	calibration, err := c.enterAlone()
	if err != nil {
		return err
	}
	defer c.leave()
	in := Slice(append(append([]byte(nil), data...), 0)) // never NULL
	err = native.Kvevict_calibration_load(calibration, uintptr(in.address), uint64(len(data)))
	runtime.KeepAlive(in.owner)
	return err
}
