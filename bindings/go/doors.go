package kvevict

import (
	"runtime"
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// MaxJobs is how many jobs or moves one call takes at most.
const MaxJobs = 128

// Score scores the cached tokens of layers, at most MaxJobs, by the signal of the policy.
// Queries and their log-sum-exps have as many rows as the window: row w is that of token Tokens
// - window + w. Policy custom pools the caller's scores. workspace is for OperationScore.
func (p *Plan) Score(jobs []ScoreJob, workspace Memory, stream Stream) error {
	plan, err := p.enter()
	if err != nil {
		return err
	}
	defer p.leave()
	n := make([]native.ScoreJob, len(jobs))
	caches := make([]*content, len(jobs))
	var inputs signals
	inputs.grow(len(jobs))
	for i := range jobs {
		caches[i], err = p.job(&n[i], &jobs[i], &inputs, i)
		if err != nil {
			return at(err, "jobs", i, len(jobs))
		}
	}
	if err := workspace.on(p.device, "workspace"); err != nil {
		return err
	}
	err = native.Kvevict_score(plan, first(n), uint64(len(n)), uintptr(workspace.address),
		workspace.bytes, uintptr(stream))
	runtime.KeepAlive(&inputs)
	runtime.KeepAlive(caches)
	runtime.KeepAlive(jobs)
	runtime.KeepAlive(workspace.owner)
	return err
}

// job converts; the result must stay alive.
func (p *Plan) job(n *native.ScoreJob, job *ScoreJob, inputs *signals, i int) (*content, error) {
	var err error
	*n = job.scalars(&err)
	if err != nil {
		return nil, err
	}
	layer := layerAt(p.layers, n.Layer)
	n.TokenCounts, err = job.TokenCounts.each(p.device, "TokenCounts", layer.KVHeads)
	if err != nil {
		return nil, err
	}
	var cache *content
	if job.View != nil {
		cache, _, err = job.View.use(p.device, "Tokens", job.Tokens, job.TokenCounts)
		if err != nil {
			return nil, err
		}
		n.View = uintptr(unsafe.Pointer(cache.native))
	}
	n.Inputs, err = inputs.put(i, &job.Inputs, p.device, layer, p.queryRows, n.NTokens)
	if err != nil {
		return nil, err
	}
	n.Scores = uintptr(job.Scores.address)
	n.ScoresLen, err = job.Scores.floats(p.device, "Scores")
	return cache, err
}

func (k *KeepLists) native(device Device) (native.KeepLists, error) {
	var err error
	n := k.scalars(&err)
	n.Slots = uintptr(k.Slots.address)
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

func (o *SelectOptions) native(device Device, lists int) (native.SelectOptions, error) {
	var err error
	n := o.scalars(&err)
	n.Scores = uintptr(o.Scores.address)
	if err == nil {
		n.ScoresLen, err = o.Scores.floats(device, "Scores")
	}
	if err == nil {
		n.TokenCounts, err = o.TokenCounts.each(device, "TokenCounts", lists)
	}
	return n, err
}

// Selection is what the policy asks of Context.Select: what must stay, the tie rule, the
// reduction of rows, the number of lists and how many slots each keeps. The caller adds scores,
// protected slots and memory for the lists. layer decides the budget (0 with ScopeModel).
// nTokens slots are held. A ratio refers to the nSeen tokens seen so far; 0: to the slots held.
func (p *Plan) Selection(layer, nTokens, nSeen int) (SelectOptions, KeepLists, error) {
	plan, err := p.enter()
	if err != nil {
		return SelectOptions{}, KeepLists{}, err
	}
	defer p.leave()
	l := count(&err, "layer", layer)
	tokens, seen := count(&err, "nTokens", nTokens), count(&err, "nSeen", nSeen)
	if err != nil {
		return SelectOptions{}, KeepLists{}, err
	}
	o := native.SelectOptions{StructSize: uint32(unsafe.Sizeof(native.SelectOptions{}))}
	k := native.KeepLists{StructSize: uint32(unsafe.Sizeof(native.KeepLists{}))}
	if err := native.Kvevict_plan_selection(plan, l, tokens, seen, &o, &k); err != nil {
		return SelectOptions{}, KeepLists{}, err
	}
	var options SelectOptions
	options.read(&o)
	return options, KeepLists{Lists: int(k.NLists), Count: int(k.Count)}, nil
}

// Select chooses slots: what must stay, and then the highest scores, descending,
// NaN last. The lists say how many, and receive the slots, ascending; a list whose
// count is all that it holds keeps every slot. workspace is of SelectWorkspace.
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
	ranges, err := nativeRanges(options.Ranges)
	if err != nil {
		return err
	}
	o.Ranges, o.RangesLen = inHeap(unsafe.Pointer(first(ranges))), uint64(len(ranges))
	if err := workspace.on(c.device, "workspace"); err != nil {
		return err
	}
	err = native.Kvevict_select(context, &o, &lists, uintptr(workspace.address), workspace.bytes,
		uintptr(stream))
	runtime.KeepAlive(options.TokenCounts.owner)
	runtime.KeepAlive(options.Scores.owner)
	runtime.KeepAlive(ranges)
	runtime.KeepAlive(protected.owner)
	keep.keepAlive()
	runtime.KeepAlive(workspace.owner)
	return err
}

// SelectWorkspace is the workspace of Select for so many slots held and keep lists.
func (c *Context) SelectWorkspace(nTokens, nLists int) (Workspace, error) {
	context, err := c.enter()
	if err != nil {
		return Workspace{}, err
	}
	defer c.leave()
	tokens := count(&err, "nTokens", nTokens)
	lists := count(&err, "nLists", nLists)
	if err != nil {
		return Workspace{}, err
	}
	return workspaceOf(c.device, func(out *native.Workspace) error {
		return native.Kvevict_select_workspace(context, tokens, lists, out)
	})
}

// BudgetForMass finds the smallest budgets of each row, each layer or the model
// that keep a share of the mass: how many tokens a policy has to keep of prompts
// like this one. It is for calibration, since it sorts all rows.
func (c *Context) BudgetForMass(layers []LayerScores, options MassOptions) ([]int, error) {
	context, err := c.enter()
	if err != nil {
		return nil, err
	}
	defer c.leave()
	o := options.scalars(&err)
	l := make([]native.LayerScores, len(layers))
	rows := 0
	for i, layer := range layers {
		l[i] = layer.scalars(&err)
		l[i].Scores, l[i].ScoresLen = inHeap(unsafe.Pointer(first(layer.Scores))), uint64(len(layer.Scores))
		rows += layer.Rows
	}
	if err != nil {
		return nil, err
	}
	n := rows
	switch {
	case options.Scope == ScopeLayer:
		n = len(layers)
	case options.Scope == ScopeModel && n > 1:
		n = 1
	}
	found := make([]uint32, n)
	err = native.Kvevict_budget_for_mass(context, first(l), uint64(len(l)), &o, first(found), uint64(n))
	runtime.KeepAlive(layers)
	if err != nil {
		return nil, err
	}
	budgets := make([]int, n)
	for i, budget := range found {
		budgets[i] = int(budget)
	}
	return budgets, nil
}

// keepsAll tells whether there are no lists, not even empty ones.
func (m *Move) keepsAll() bool {
	return m.Destination != nil && m.Keep.Lists == 0 && m.Keep.Count == 0 && m.Keep.Slots.address == 0
}

// kept is how many slots of a head stay at most.
func (m *Move) kept() int {
	if m.keepsAll() {
		return m.Tokens
	}
	return m.Keep.Count
}

// Compact moves the surviving rows of layers, at most MaxJobs, down to slots that follow each other, in
// place or to other caches. Lists are strictly ascending; for others there is Reorder. With less than
// the best workspace CUDA may be slower.
func (c *Context) Compact(moves []Move, workspace Memory, stream Stream) error {
	return c.move(native.Kvevict_compact, moves, workspace, stream)
}

// CompactWorkspace is the workspace of Compact. It reads only views and the lists'
// counts, and Tokens of moves that merge. The least is 0 if none merges. So is the
// best on the CPU, and on CUDA if rows are wide enough to move without.
func (c *Context) CompactWorkspace(moves []Move) (Workspace, error) {
	return c.scratch(native.Kvevict_compact_workspace, moves)
}

// Reorder moves row slots[i] of every head of layers, at most MaxJobs, to slot i, in place, as if all
// rows were read before the first is written. It straightens a ring that has wrapped, and serves keep
// lists that do not ascend; other rows are not touched. Slots may come in any order, also repeated.
func (c *Context) Reorder(moves []Move, workspace Memory, stream Stream) error {
	return c.move(native.Kvevict_reorder, moves, workspace, stream)
}

// ReorderWorkspace is the workspace of Reorder, 0 if nothing is listed. It reads
// only views and the lists' counts. A workspace for more slots serves fewer.
func (c *Context) ReorderWorkspace(moves []Move) (Workspace, error) {
	return c.scratch(native.Kvevict_reorder_workspace, moves)
}

// nativeMoves holds the structs of a call's moves and what they point to.
type nativeMoves struct {
	moves  []native.Move
	keep   []native.KeepLists
	caches []*content // of views and destinations
}

// moves converts; slotsOf is how many slots the memory of a view must hold.
func (c *Context) moves(moves []Move, slotsOf func(*Move) (string, int)) (*nativeMoves, error) {
	n := &nativeMoves{
		make([]native.Move, len(moves)), make([]native.KeepLists, len(moves)),
		make([]*content, 0, 2*len(moves)),
	}
	for i := range moves {
		move := &moves[i]
		name, slots := slotsOf(move)
		cache, _, err := move.View.use(c.device, name, slots, move.TokenCounts)
		to := move.scalars(&err)
		if err == nil {
			to.TokenCounts, err = move.TokenCounts.each(c.device, "TokenCounts", int(cache.native.NKVHeads))
		}
		if err == nil && !move.keepsAll() {
			n.keep[i], err = move.Keep.native(c.device)
			to.Keep = inHeap(unsafe.Pointer(&n.keep[i]))
		}
		if err == nil && move.Destination != nil {
			var destination *content
			slots := move.FirstSlot + move.kept()
			destination, _, err = move.Destination.use(c.device, "Count", slots, Memory{})
			if err == nil {
				n.caches = append(n.caches, destination)
				to.Destination = uintptr(unsafe.Pointer(destination.native))
			}
		}
		if err != nil {
			return nil, at(err, "moves", i, len(moves))
		}
		n.caches = append(n.caches, cache)
		to.View = uintptr(unsafe.Pointer(cache.native))
		n.moves[i] = to
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
	err = call(context, first(n.moves), uint64(len(moves)), uintptr(workspace.address), workspace.bytes,
		uintptr(stream))
	runtime.KeepAlive(n)
	runtime.KeepAlive(moves)
	runtime.KeepAlive(workspace.owner)
	return err
}

// scratch is what moves need.
func (c *Context) scratch(
	ask func(context uintptr, moves *native.Move, movesLen uint64, out *native.Workspace) error,
	moves []Move,
) (Workspace, error) {
	context, err := c.enter()
	if err != nil {
		return Workspace{}, err
	}
	defer c.leave()
	n, err := c.moves(moves, func(m *Move) (string, int) {
		if m.Destination != nil {
			return "Count", m.Keep.Count
		}
		return "Count", m.FirstSlot + m.Keep.Count
	})
	if err != nil {
		return Workspace{}, err
	}
	defer runtime.KeepAlive(moves)
	defer runtime.KeepAlive(n)
	return workspaceOf(c.device, func(out *native.Workspace) error {
		return ask(context, first(n.moves), uint64(len(moves)), out)
	})
}

// Rotate rotates cached keys of layers, at most MaxJobs, in place to what RoPE makes at other
// positions. After an eviction a survivor in slot i, of position p, moves by i - p if positions
// count slots. The geometry must have RoPEInvFreq; Capabilities says why keys cannot be rotated.
func (p *Plan) Rotate(rotations []Rotation, stream Stream) error {
	plan, err := p.enter()
	if err != nil {
		return err
	}
	defer p.leave()
	n := make([]native.Rotation, len(rotations))
	caches := make([]*content, len(rotations))
	for i := range rotations {
		caches[i], err = rotations[i].native(p.device, &n[i])
		if err != nil {
			return at(err, "rotations", i, len(rotations))
		}
	}
	err = native.Kvevict_rotate(plan, first(n), uint64(len(n)), uintptr(stream))
	runtime.KeepAlive(caches)
	runtime.KeepAlive(rotations)
	return err
}

// native converts; the result must stay alive.
func (r *Rotation) native(device Device, n *native.Rotation) (*content, error) {
	cache, _, err := r.View.use(device, "Tokens", r.Tokens, r.TokenCounts)
	*n = r.scalars(&err)
	if err != nil {
		return nil, err
	}
	if n.NLists == 0 {
		n.NLists = 1
	}
	n.View, n.Offsets = uintptr(unsafe.Pointer(cache.native)), uintptr(r.Offsets.address)
	n.TokenCounts, err = r.TokenCounts.each(device, "TokenCounts", int(cache.native.NKVHeads))
	if err == nil {
		n.OffsetsLen, err = r.Offsets.slots(device, "Offsets")
	}
	return cache, err
}
