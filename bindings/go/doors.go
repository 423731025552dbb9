package kvevict

import (
	"fmt"
	"runtime"
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// ScoreInputs is what the scoring of a layer reads. What the policy has no use for may be absent.
type ScoreInputs struct {
	Layer       int
	View        *View
	Tokens      int    // slots held
	TokenCounts Memory // where heads hold different numbers: uint32 [KVHeads], each at most Tokens
	Queries     *Plane // window attention: [QHeads, ObsWindow] rows, after RoPE
	RowLSE      *Plane // float32 log-sum-exps of the rows' logits, which save CUDA a pass over the keys
}

// Score scores one layer's cached tokens by the signal of the policy. scores, float32
// [KVHeads, Tokens], is written: higher keeps. workspace is for OperationScore.
func (p *Plan) Score(inputs *ScoreInputs, scores, workspace Memory, stream Stream) error {
	plan, err := p.enter()
	if err != nil {
		return err
	}
	defer p.leave()
	var planes [2]native.Plane
	n := native.ScoreInputs{StructSize: uint32(unsafe.Sizeof(native.ScoreInputs{}))}
	if inputs.Queries != nil {
		if planes[0], err = p.window("Queries", inputs.Queries); err != nil {
			return err
		}
		n.Queries = inHeap(unsafe.Pointer(&planes[0]))
	}
	if inputs.RowLSE != nil {
		if planes[1], err = p.window("RowLSE", inputs.RowLSE); err != nil {
			return err
		}
		n.RowLSE = inHeap(unsafe.Pointer(&planes[1]))
	}
	cache, tokens, err := inputs.View.use(p.device, inputs.Tokens)
	n.Layer, n.NTokens = count(&err, "Layer", inputs.Layer), tokens
	if err != nil {
		return err
	}
	n.View = uintptr(unsafe.Pointer(cache.native))
	n.TokenCounts, err = inputs.TokenCounts.each(p.device, "TokenCounts", int(p.geometry.NKVHeads))
	if err != nil {
		return err
	}
	scoresLen, err := scores.floats(p.device, "scores")
	if err != nil {
		return err
	}
	if err := workspace.on(p.device, "workspace"); err != nil {
		return err
	}
	err = native.Kvevict_score(plan, &n, uintptr(scores.address), scoresLen,
		uintptr(workspace.address), workspace.bytes, uintptr(stream))
	runtime.KeepAlive(&planes)
	runtime.KeepAlive(inputs.Queries)
	runtime.KeepAlive(inputs.RowLSE)
	runtime.KeepAlive(inputs.TokenCounts.owner)
	runtime.KeepAlive(cache)
	runtime.KeepAlive(scores.owner)
	runtime.KeepAlive(workspace.owner)
	return err
}

// window converts a plane that must hold the observation window of every query head.
func (p *Plan) window(name string, plane *Plane) (native.Plane, error) {
	return plane.rows(p.device, name, p.obsWindow, p.geometry.NQHeads)
}

// KeepLists says which slots of a layer to keep: one list that all KV heads share, or one for each.
type KeepLists struct {
	Slots      Memory // int32 [Lists, ListStride]
	Lists      int    // 1, or the KV heads
	Count      int    // slots in every list; with Counts, the most of any
	ListStride uint64 // elements from one list to the next; 0: Count
	Counts     Memory // uint32 [Lists], each at most Count; absent: all are Count
}

func (k *KeepLists) native(device Device) (native.KeepLists, error) {
	var err error
	n := native.KeepLists{
		StructSize: uint32(unsafe.Sizeof(native.KeepLists{})),
		NLists:     count(&err, "Lists", k.Lists),
		Slots:      uintptr(k.Slots.address),
		ListStride: k.ListStride,
		Count:      count(&err, "Count", k.Count),
	}
	if err == nil {
		n.SlotsLen, err = k.Slots.slots(device, "Slots")
	}
	if err == nil {
		n.Counts, err = k.Counts.each(device, "Counts", k.Lists)
	}
	return n, err
}

func (k *KeepLists) keepAlive() {
	runtime.KeepAlive(k.Slots.owner)
	runtime.KeepAlive(k.Counts.owner)
}

// SelectOptions is what Select chooses from, and what must stay. As a plan's policy wants it:
// Plan.Selection.
type SelectOptions struct {
	Tokens      int    // slots held, at least 1
	TokenCounts Memory // where lists hold different numbers: uint32, each at most Tokens
	// Scores are float32 [Rows, Tokens]. Absent: nothing is ranked, and every list keeps what must
	// stay and then the first tokens, or the last with TieHigherPosition.
	Scores    Memory
	Rows      int     // a multiple of the lists, row r is list r/(Rows/lists)'s; 0: one for each list
	Reduce    Reduce  // over the rows of a list
	Sink      int     // first slots that must stay
	Recent    int     // last slots that must stay
	Tie       Tie     // of equal scores
	Protected []int32 // strictly ascending slots that must stay
}

func (o *SelectOptions) native(device Device, lists int) (native.SelectOptions, error) {
	var err error
	n := native.SelectOptions{
		StructSize: uint32(unsafe.Sizeof(native.SelectOptions{})),
		NTokens:    count(&err, "Tokens", o.Tokens),
		Scores:     uintptr(o.Scores.address),
		NRows:      count(&err, "Rows", o.Rows),
		Reduce:     int32(o.Reduce),
		NSink:      count(&err, "Sink", o.Sink),
		NRecent:    count(&err, "Recent", o.Recent),
		Tie:        int32(o.Tie),
	}
	if err == nil {
		n.ScoresLen, err = o.Scores.floats(device, "Scores")
	}
	if err == nil {
		n.TokenCounts, err = o.TokenCounts.each(device, "TokenCounts", lists)
	}
	return n, err
}

// Selection is what the policy asks of Context.Select: what must stay, the tie rule, the reduction of
// rows, the number of lists and how many slots each keeps. The caller adds scores, protected slots
// and where the lists lie. layer decides the budget (0 with ScopeModel); for a budget that is a ratio
// nTokens is also the tokens seen so far.
func (p *Plan) Selection(layer, nTokens int) (SelectOptions, KeepLists, error) {
	plan, err := p.enter()
	if err != nil {
		return SelectOptions{}, KeepLists{}, err
	}
	defer p.leave()
	l := count(&err, "layer", layer)
	tokens := count(&err, "nTokens", nTokens)
	if err != nil {
		return SelectOptions{}, KeepLists{}, err
	}
	o := native.SelectOptions{StructSize: uint32(unsafe.Sizeof(native.SelectOptions{}))}
	k := native.KeepLists{StructSize: uint32(unsafe.Sizeof(native.KeepLists{}))}
	if err := native.Kvevict_plan_selection(plan, l, tokens, &o, &k); err != nil {
		return SelectOptions{}, KeepLists{}, err
	}
	options := SelectOptions{
		Tokens: nTokens, Rows: int(o.NRows), Reduce: Reduce(o.Reduce), Sink: int(o.NSink),
		Recent: int(o.NRecent), Tie: Tie(o.Tie),
	}
	return options, KeepLists{Lists: int(k.NLists), Count: int(k.Count)}, nil
}

// Select chooses slots: what must stay, and then the highest scores, descending, NaN last. How many
// is said by the lists, whose slots are written, ascending; a list whose count is all that it holds
// keeps every slot. workspace is from NewSelectWorkspace, or of SelectWorkspaceBytes.
func (c *Context) Select(
	options *SelectOptions, keep KeepLists, workspace Memory, stream Stream,
) error {
	context, err := c.enter()
	if err != nil {
		return err
	}
	defer c.leave()
	lists, err := keep.native(c.device)
	if err != nil {
		return err
	}
	o, err := options.native(c.device, keep.Lists)
	if err != nil {
		return err
	}
	protected := Slice(options.Protected)
	o.ProtectedSlots, o.ProtectedSlotsLen = uintptr(protected.address), uint64(len(options.Protected))
	if err := workspace.on(c.device, "workspace"); err != nil {
		return err
	}
	err = native.Kvevict_select(context, &o, &lists, uintptr(workspace.address), workspace.bytes,
		uintptr(stream))
	runtime.KeepAlive(options.TokenCounts.owner)
	runtime.KeepAlive(options.Scores.owner)
	runtime.KeepAlive(protected.owner)
	keep.keepAlive()
	runtime.KeepAlive(workspace.owner)
	return err
}

// SelectWorkspaceBytes is the scratch that selecting needs; for more tokens or lists it serves fewer.
func (c *Context) SelectWorkspaceBytes(nTokens, nLists int) (uint64, error) {
	context, err := c.enter()
	if err != nil {
		return 0, err
	}
	defer c.leave()
	tokens := count(&err, "nTokens", nTokens)
	lists := count(&err, "nLists", nLists)
	if err != nil {
		return 0, err
	}
	var bytes uint64
	err = native.Kvevict_select_workspace_bytes(context, tokens, lists, &bytes)
	return bytes, err
}

// NewSelectWorkspace makes scratch for selecting on the CPU; on CUDA it is an error. Calls that run at
// the same time must not share it.
func (c *Context) NewSelectWorkspace(nTokens, nLists int) (Memory, error) {
	bytes, err := c.SelectWorkspaceBytes(nTokens, nLists)
	if err != nil {
		return Memory{}, err
	}
	return newWorkspace(c.device, "SelectWorkspaceBytes", bytes)
}

// Move is one layer's part of Compact or Reorder.
type Move struct {
	View   *View
	Tokens int       // slots held before, the most of any head
	Keep   KeepLists // slots, each below Tokens
}

// Compact moves the surviving rows of layers, at most 128, to their first slots, in place. Lists are
// strictly ascending; for others there is Reorder. workspace is absent, or of CompactWorkspaceBytes,
// with which CUDA may be faster.
func (c *Context) Compact(moves []Move, workspace Memory, stream Stream) error {
	return c.move(native.Kvevict_compact, moves, workspace, stream)
}

// CompactWorkspaceBytes is the scratch that compacting can make use of; of the moves only views and
// the lists' counts are read. 0 on the CPU, and on CUDA where rows are wide enough to move without.
func (c *Context) CompactWorkspaceBytes(moves []Move) (uint64, error) {
	return c.scratch(native.Kvevict_compact_workspace_bytes, moves)
}

// Reorder moves row slots[i] of every head of layers, at most 128, to slot i, in place, as if all rows
// were read before the first is written. It straightens a ring that has wrapped, and serves keep lists
// that do not ascend; other rows are not touched. Slots may come in any order, also repeated.
// workspace is from NewReorderWorkspace, or of ReorderWorkspaceBytes.
func (c *Context) Reorder(moves []Move, workspace Memory, stream Stream) error {
	return c.move(native.Kvevict_reorder, moves, workspace, stream)
}

// ReorderWorkspaceBytes is the scratch that reordering needs, 0 if nothing is listed; of the moves
// only views and the lists' counts are read. For more slots it serves fewer.
func (c *Context) ReorderWorkspaceBytes(moves []Move) (uint64, error) {
	return c.scratch(native.Kvevict_reorder_workspace_bytes, moves)
}

// NewReorderWorkspace makes scratch for reordering on the CPU; on CUDA it is an error. Calls that run
// at the same time must not share it.
func (c *Context) NewReorderWorkspace(moves []Move) (Memory, error) {
	bytes, err := c.ReorderWorkspaceBytes(moves)
	if err != nil {
		return Memory{}, err
	}
	return newWorkspace(c.device, "ReorderWorkspaceBytes", bytes)
}

// nativeMoves are the structs of a call's moves, and what they point to.
type nativeMoves struct {
	moves  []native.Move
	keep   []native.KeepLists
	caches []*content
}

func (m *nativeMoves) first() *native.Move {
	if len(m.moves) == 0 {
		return nil
	}
	return &m.moves[0]
}

// moves converts; slotsOf is how many slots the memory of a view must hold.
func (c *Context) moves(moves []Move, slotsOf func(*Move) (string, int)) (*nativeMoves, error) {
	n := &nativeMoves{
		make([]native.Move, len(moves)), make([]native.KeepLists, len(moves)),
		make([]*content, len(moves)),
	}
	for i := range moves {
		move := &moves[i]
		name, slots := slotsOf(move)
		cache, _, err := move.View.useNamed(c.device, name, slots)
		tokens := count(&err, "Tokens", move.Tokens)
		if err == nil {
			n.keep[i], err = move.Keep.native(c.device)
		}
		if err != nil {
			if len(moves) > 1 {
				err = fmt.Errorf("moves[%d]: %w", i, err)
			}
			return nil, err
		}
		n.caches[i] = cache
		n.moves[i] = native.Move{
			StructSize: uint32(unsafe.Sizeof(native.Move{})),
			NTokens:    tokens,
			View:       uintptr(unsafe.Pointer(cache.native)),
			Keep:       inHeap(unsafe.Pointer(&n.keep[i])),
		}
	}
	return n, nil
}

// move is Compact or Reorder.
func (c *Context) move(
	call func(context uintptr, moves *native.Move, movesLen uint64, workspace uintptr,
		workspaceBytes uint64, stream uintptr) error,
	moves []Move, workspace Memory, stream Stream,
) error {
	context, err := c.enter()
	if err != nil {
		return err
	}
	defer c.leave()
	n, err := c.moves(moves, func(m *Move) (string, int) { return "Tokens", m.Tokens })
	if err != nil {
		return err
	}
	if err := workspace.on(c.device, "workspace"); err != nil {
		return err
	}
	err = call(context, n.first(), uint64(len(moves)), uintptr(workspace.address), workspace.bytes,
		uintptr(stream))
	runtime.KeepAlive(n)
	runtime.KeepAlive(moves)
	runtime.KeepAlive(workspace.owner)
	return err
}

// scratch is what moves need.
func (c *Context) scratch(
	bytesOf func(context uintptr, moves *native.Move, movesLen uint64, bytes *uint64) error,
	moves []Move,
) (uint64, error) {
	context, err := c.enter()
	if err != nil {
		return 0, err
	}
	defer c.leave()
	n, err := c.moves(moves, func(m *Move) (string, int) { return "Count", m.Keep.Count })
	if err != nil {
		return 0, err
	}
	var bytes uint64
	err = bytesOf(context, n.first(), uint64(len(moves)), &bytes)
	runtime.KeepAlive(n)
	runtime.KeepAlive(moves)
	return bytes, err
}
