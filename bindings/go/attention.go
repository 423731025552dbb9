package kvevict

import (
	"runtime"
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// Attend computes attention over caches in place, for at most MaxJobs layers of sequences at
// once: the softmax of the logits of the slots that a query sees, and the mean of their values
// by it. It serves a few queries while decoding and any number at prefill. Jobs may share
// caches. Outputs must not overlap anything that a job reads or writes.
func (c *Context) Attend(jobs []Attention, workspace Memory, stream Stream) error {
	context, err := c.enter()
	if err != nil {
		return err
	}
	defer c.leave()
	n, err := c.attention(jobs)
	if err != nil {
		return err
	}
	if err := workspace.on(c.device, "workspace"); err != nil {
		return err
	}
	err = native.Kvevict_attend(context, first(n.jobs), uint64(len(jobs)), uintptr(workspace.address),
		workspace.bytes, uintptr(stream))
	runtime.KeepAlive(n)
	runtime.KeepAlive(jobs)
	runtime.KeepAlive(workspace.owner)
	return err
}

// AttendWorkspace is the workspace of Attend for the same jobs.
func (c *Context) AttendWorkspace(jobs []Attention) (Workspace, error) {
	context, err := c.enter()
	if err != nil {
		return Workspace{}, err
	}
	defer c.leave()
	n, err := c.attention(jobs)
	if err != nil {
		return Workspace{}, err
	}
	defer runtime.KeepAlive(jobs)
	defer runtime.KeepAlive(n)
	return workspaceOf(c.device, func(out *native.Workspace) error {
		return native.Kvevict_attend_workspace(context, first(n.jobs), uint64(len(jobs)), out)
	})
}

// attentionJobs holds the structs of a call's jobs and what they point to.
type attentionJobs struct {
	jobs   []native.AttentionJob
	planes [][4]native.Plane // of each job: queries, out, row_lse, attention_sums
	caches []*content
}

func (c *Context) attention(jobs []Attention) (*attentionJobs, error) {
	n := &attentionJobs{
		make([]native.AttentionJob, len(jobs)), make([][4]native.Plane, len(jobs)),
		make([]*content, len(jobs)),
	}
	for i := range jobs {
		if err := n.put(i, &jobs[i], c.device); err != nil {
			return nil, at(err, "jobs", i, len(jobs))
		}
	}
	return n, nil
}

func (n *attentionJobs) put(i int, job *Attention, device Device) error {
	cache, tokens, err := job.View.use(device, "Tokens", job.Tokens, job.TokenCounts)
	to := job.scalars(&err)
	if err != nil {
		return err
	}
	n.caches[i] = cache
	to.View = uintptr(unsafe.Pointer(cache.native))
	to.TokenCounts, err = job.TokenCounts.each(device, "TokenCounts", int(cache.native.NKVHeads))
	if err == nil && job.SinkLogits.address != 0 {
		to.SinkLogits = uintptr(job.SinkLogits.address)
		to.SinkLogitsLen, err = job.SinkLogits.floats(device, "SinkLogits")
	}
	if err != nil {
		return err
	}
	heads, rows, sums := to.NQHeads, to.NQueries, to.NSumHeads
	if sums == 0 {
		sums = heads
	}
	for j, plane := range [4]struct {
		name        string
		from        *Plane
		to          *uintptr
		rows, heads uint32
	}{
		{"Queries", &job.Queries, &to.Queries, rows, heads},
		{"Out", &job.Out, &to.Out, rows, heads},
		{"RowLSE", job.RowLSE, &to.RowLSE, rows, heads},
		{"AttentionSums", job.AttentionSums, &to.AttentionSums, tokens, sums},
	} {
		if plane.from == nil {
			continue
		}
		n.planes[i][j], err = plane.from.rows(device, plane.name, plane.rows, plane.heads)
		if err != nil {
			return err
		}
		*plane.to = inHeap(unsafe.Pointer(&n.planes[i][j]))
	}
	n.jobs[i] = to
	return nil
}
