package kvevict

import (
	"errors"
	"math"
	"testing"
)

const (
	editLayers = 2
	editTokens = 48
	editRows   = 44 // of the caches' memory
	editPairs  = 3  // two elements of a key do not rotate
	gap        = -1 // a position without a token
)

var editFrequencies = []float32{1, 0.25, 0.0625}

// edited is a text with its cache, and a naive model of it: its tokens in order. A cache in blocks is
// copied to keys and values before they are looked at.
type edited struct {
	*testing.T
	sequence     *Sequence
	cached       *PagedSequence // nil: the rows lie in views
	views        []*View
	keys, values [editLayers][]float32
	text         []int
	newest       int
	edits        float64
}

func newEdited(t *testing.T, paged bool) *edited {
	t.Helper()
	plan := planOf(t, newContext(t, nil), mustParse(t, "none"), Geometry{
		Layers: editLayers, MaxTokens: editTokens, Each: []LayerGeometry{smallLayer},
		RoPEInvFreq: editFrequencies, RoPELayout: RoPELayoutHalf,
	})
	e := &edited{T: t, sequence: newSequence(t, plan)}
	for layer := range e.keys {
		e.keys[layer] = make([]float32, editRows*row)
		e.values[layer] = make([]float32, editRows*row)
		e.views = append(e.views, newView(t, e.keys[layer], e.values[layer]))
	}
	if paged {
		cache, err := plan.NewPagedCache(PagedCacheOptions{Blocks: 30, BlockSize: 4})
		must(t, err)
		t.Cleanup(func() { _ = cache.Close() })
		e.cached, err = cache.NewSequence()
		must(t, err)
		t.Cleanup(func() { _ = e.cached.Close() })
		must(t, e.cached.Append(40, 0))
	}
	must(t, e.sequence.Append(40, 0))
	e.text = e.fresh(40)
	e.write(0, 40)
	return e
}

func mustParse(t *testing.T, text string) Policy {
	t.Helper()
	policy, err := ParsePolicy(text)
	must(t, err)
	return policy
}

func (e *edited) fresh(n int) (tokens []int) {
	for i := 0; i < n; i++ {
		tokens = append(tokens, e.newest)
		e.newest++
	}
	return tokens
}

// key is a token's key at a position, and what each of its elements is measured by.
func editKey(token, layer, head, position int) (key, radius [headDim]float64) {
	for i, x := range random(headDim, int64(token*16+layer*4+head+1)) {
		key[i], radius[i] = float64(x), math.Abs(float64(x))
	}
	for f := 0; f < editPairs; f++ {
		re, im := key[f], key[f+editPairs]
		sin, cos := math.Sincos(float64(position) * float64(editFrequencies[f]))
		key[f], key[f+editPairs] = re*cos-im*sin, re*sin+im*cos
		radius[f] = math.Hypot(re, im)
		radius[f+editPairs] = radius[f]
	}
	return key, radius
}

func editValue(token, layer, head, i int) float32 {
	return float32(token*64 + layer*32 + head*16 + i)
}

// write writes the rows of the n tokens from a position on, as an engine does.
func (e *edited) write(first, n int) {
	for layer := 0; n > 0 && layer < editLayers; layer++ {
		slot, err := e.sequence.SlotOfPosition(layer, 0, first)
		must(e.T, err)
		for i := 0; i < n*row; i++ {
			token, head, element := e.text[first+i/row], i/headDim%kvHeads, i%headDim
			key, _ := editKey(token, layer, head, first+i/row)
			e.keys[layer][slot*row+i] = float32(key[element])
			e.values[layer][slot*row+i] = editValue(token, layer, head, element)
		}
		if e.cached != nil {
			must(e.T, e.cached.Write([]PagedRows{{
				layer, slot, n, rows(e.keys[layer][slot*row:], kvHeads), rows(e.values[layer][slot*row:], kvHeads),
			}}, 0))
		}
	}
}

func (e *edited) call(edit Edit) error {
	if e.cached != nil {
		return e.cached.Edit(e.sequence, edit, 0)
	}
	return e.sequence.Edit(e.views, edit, 0)
}

func (e *edited) edit(edit Edit) {
	e.Helper()
	must(e.T, e.call(edit))
	e.edits++
	span := append([]int(nil), e.text[edit.First:edit.End]...)
	rest := append(append([]int(nil), e.text[:edit.First]...), e.text[edit.End:]...)
	to := edit.First
	if edit.Kind == EditMove {
		to = edit.To
	} else {
		kept := len(span)
		if edit.Positions != EditKeep {
			kept = 0
		}
		for span = e.fresh(edit.New); len(span) < kept; {
			span = append(span, gap)
		}
	}
	e.text = append(append(append([]int(nil), rest[:to]...), span...), rest[to:]...)
	e.write(edit.First, edit.New)
	e.check()
}

// check compares every row and position with the model. A rotation rounds cosine, sine and products by
// at most 3e-7 of a pair's length, and its result by half a unit; the first row is rounded too.
func (e *edited) check() {
	e.Helper()
	same(e.T, len(e.text), e.sequence.LogicalLength())
	for layer := 0; layer < editLayers; layer++ {
		stored, err := e.sequence.StoredLength(layer, 0)
		must(e.T, err)
		if e.cached != nil {
			held, err := e.cached.Length(layer)
			must(e.T, err)
			same(e.T, stored, held)
			must(e.T, e.cached.Read([]PagedRows{{
				layer, 0, stored, rows(e.keys[layer], kvHeads), rows(e.values[layer], kvHeads),
			}}, 0))
		}
		next := 0
		for position, token := range e.text {
			slot, err := e.sequence.SlotOfPosition(layer, 1, position)
			must(e.T, err)
			if token == gap {
				same(e.T, -1, slot)
				continue
			}
			if slot != next {
				e.Fatalf("layer %d: position %d in slot %d, not %d", layer, position, slot, next)
			}
			found, err := e.sequence.PositionOfSlot(layer, 1, slot)
			must(e.T, err)
			same(e.T, position, found)
			e.checkRow(layer, slot, token, position)
			next++
		}
		same(e.T, next, stored)
	}
}

func (e *edited) checkRow(layer, slot, token, position int) {
	e.Helper()
	for head := 0; head < kvHeads; head++ {
		key, radius := editKey(token, layer, head, position)
		for i := range key {
			at := slot*row + head*headDim + i
			bound := 2 * radius[i] * (e.edits*(3e-7+0x1p-24) + 0x1p-23)
			if got := float64(e.keys[layer][at]); math.Abs(got-key[i]) > bound {
				e.Fatalf("layer %d, slot %d, head %d, element %d: key %g, not %g", layer, slot, head, i, got, key[i])
			}
			if got := e.values[layer][at]; got != editValue(token, layer, head, i) {
				e.Fatalf("layer %d, slot %d, head %d, element %d: not the value of token %d", layer, slot, head, i, token)
			}
		}
	}
}

func TestEditsAreAsIfTheTextHadBeenComputedSo(t *testing.T) {
	for name, paged := range map[string]bool{"views": false, "blocks": true} {
		t.Run(name, func(t *testing.T) {
			e := newEdited(t, paged)
			e.check()
			e.edit(Edit{First: 5, End: 12})
			e.edit(Edit{First: 9, End: 9, New: 4})
			e.edit(Edit{Kind: EditMove, First: 20, End: 26, To: 3})
			e.edit(Edit{Kind: EditMove, First: 1, End: 8, To: 25})
			e.edit(Edit{First: 30, End: 33, New: 7})
			e.edit(Edit{First: 10, End: 16, New: 2, Positions: EditKeep})
			// The gap's positions are text like others.
			e.edit(Edit{First: 11, End: 20, New: 1})
			prefix, err := e.sequence.ExactPrefix()
			must(t, err)
			if prefix > 1 {
				t.Errorf("%d tokens are exact", prefix)
			}
		})
	}
}

func TestEditsOfForksLeaveTheOtherAsItIs(t *testing.T) {
	e := newEdited(t, true)
	cached, err := e.cached.Fork(0)
	must(t, err)
	defer cached.Close()
	sequence, err := e.sequence.Fork(nil, 0)
	must(t, err)
	defer sequence.Close()
	must(t, cached.Edit(sequence, Edit{First: 3, End: 20}, 0))
	e.check()
}

func TestEditsThatDoNotFitChangeNothing(t *testing.T) {
	for name, paged := range map[string]bool{"views": false, "blocks": true} {
		t.Run(name, func(t *testing.T) {
			e := newEdited(t, paged)
			for _, bad := range []struct {
				edit  Edit
				parts []string
			}{
				{Edit{First: 7, End: 6}, []string{"first 7", "end 6"}},
				{Edit{First: 7, End: 41}, []string{"end 41", "40 tokens"}},
				{Edit{First: -1, End: 6}, []string{"First -1"}},
				{Edit{First: 1, End: 2, New: -3}, []string{"New -3"}},
				{Edit{Kind: EditMove, First: 3, End: 5, To: 39}, []string{"to 39 + 2", "40"}},
				{Edit{Kind: EditMove, First: 3, End: 5, New: 1}, []string{"n_new 1 of a move"}},
				{Edit{First: 3, End: 5, New: 3, Positions: EditKeep}, []string{"n_new 3 > 2"}},
				{Edit{Kind: 2, First: 3, End: 5}, []string{"kind 2"}},
			} {
				fails(t, e.call(bad.edit), StatusInvalidArgument, bad.parts...)
			}
			e.check()
		})
	}
}

func TestEditsNeedRoomInTheViews(t *testing.T) {
	e := newEdited(t, false)
	fails(t, e.call(Edit{First: 9, End: 9, New: 5}), StatusInvalidArgument,
		"layers[0]", "K holds 44 rows of 2 heads, not 45")
	e.check()
	e.edit(Edit{First: 9, End: 9, New: 4})   // all rows are in use
	e.edit(Edit{First: 20, End: 26, New: 6}) // and may be replaced
	fails(t, e.sequence.Edit(e.views[:1], Edit{}, 0), StatusInvalidArgument, "1 views for 2 layers")
	fails(t, e.sequence.Edit([]*View{e.views[0], nil}, Edit{}, 0), StatusInvalidArgument, "layers[1]")
	e.check()
}

func TestEditsOfWhatIsClosed(t *testing.T) {
	e := newEdited(t, true)
	fails(t, e.cached.Edit(nil, Edit{}, 0), StatusInvalidArgument, "Sequence is nil")
	must(t, e.sequence.Close())
	for _, err := range []error{e.call(Edit{}), e.sequence.Edit(e.views, Edit{}, 0)} {
		if !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	}
	must(t, e.cached.Close())
	if err := e.call(Edit{}); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}
