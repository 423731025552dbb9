package kvevict

import (
	"fmt"
	"math"
	"reflect"
	"strings"
)

type call = func(*replay, *line) (string, error)

// method is the call of a method or function, whose parameters have these keys in a line, but for
// streams. A number or a list that it returns is a result of this name.
func method(of any, keys string, results ...string) call {
	f := reflect.ValueOf(of)
	words := strings.Fields(keys)
	return func(r *replay, l *line) (string, error) {
		var in []reflect.Value
		for i, next := 0, 0; i < f.Type().NumIn(); i++ {
			kind := f.Type().In(i)
			if kind == typeOf[Stream]() {
				in = append(in, reflect.Zero(kind))
				continue
			}
			in = append(in, r.value(l, words[next], kind))
			next++
		}
		out := f.Call(in)
		err, _ := out[len(out)-1].Interface().(error)
		if len(out) == 1 {
			return "", err
		}
		switch result := out[0].Interface().(type) {
		case Workspace:
			return workspaceText(result, err)
		case EvictReport:
			return " report=" + reportText(result), err
		case []EvictReport:
			return " reports=" + reportTexts(result), err
		case []byte:
			saved := newBuffer("u8", len(result))
			copy(saved.bytes, result)
			r.buffers[l.string("name")] = saved
			return "", err
		case *View:
			r.lent[l.string("name")] = result
			return "", err
		case Policy:
			r.handles[l.string("name")] = result
			return policyText(result, err)
		}
		if out[0].Kind() == reflect.Pointer { // a new handle
			if err == nil {
				r.handles[l.string("name")] = out[0].Interface()
			}
			return "", err
		}
		if out[0].Kind() == reflect.Slice {
			var texts []string
			for i := 0; i < out[0].Len(); i++ {
				texts = append(texts, joined(out[0].Index(i).Interface()))
			}
			return " " + results[0] + "=" + strings.Join(texts, ","), err
		}
		return result(results[0], out[0].Interface(), err)
	}
}

func policyText(policy Policy, err error) (string, error) {
	return result("text", policy.String(), err)
}

// calls make the calls of a transcript, each the C function of that name.
var calls map[string]call

func init() {
	calls = map[string]call{
		"version":        func(r *replay, l *line) (string, error) { return result("version", Version(), nil) },
		"abi_version":    func(r *replay, l *line) (string, error) { return result("version", ABIVersion(), nil) },
		"device_check":   method(CheckDevice, "device"),
		"simd_target_at": func(r *replay, l *line) (string, error) { return result("target", SIMDTargets()[l.int("index")], nil) },
		"reason_text": func(r *replay, l *line) (string, error) {
			return " text=" + escaped(Reason(l.int("reason")).String()), nil
		},
		"auto_budget": method(AutoBudget, "max_tokens full_cache_bytes", "budget"),
		"dtype_at": func(r *replay, l *line) (string, error) {
			d := DTypes()[l.int("index")]
			scale := flag(d.TakesScale) + flag(d.NeedsScale)
			return " name=" + d.Name + " numbers=" + joined(d.DType, d.ElementBytes, d.CanMove, d.CanScore,
				d.CanRotate, d.BlockElements, d.BlockBytes, scale, d.TakesMinimum), nil
		},
		"policy_at": func(r *replay, l *line) (string, error) {
			p := Policies()[l.int("index")]
			return texts("name", p.Name, "signal", p.Signal, "summary", p.Summary,
				"trigger", p.Trigger, "paper", p.Paper, "defaults", p.Defaults), nil
		},
		"preset_at": func(r *replay, l *line) (string, error) {
			p := Presets()[l.int("index")]
			return texts("name", p.Name, "policy_text", p.PolicyText, "reproduces", p.Reproduces), nil
		},
		"parameter_at": func(r *replay, l *line) (string, error) {
			all, err := Parameters(l.string("policy"))
			if err != nil {
				return "", err
			}
			p := all[l.int("index")]
			return texts("key", p.Key, "type", joined(p.Type), "words", p.Words,
				"least", fmt.Sprint(math.Float64bits(p.Least)), "most", fmt.Sprint(math.Float64bits(p.Most)),
				"flags", joined(p.ExcludesLeast, p.TakesZero), "default", p.Default), nil
		},

		"context_create": func(r *replay, l *line) (string, error) {
			context, err := NewContext(nil)
			r.handles[l.string("name")] = context
			return "", err
		},
		"context_destroy": method((*Context).Close, "context"),
		"context_prepare": method((*Context).Prepare, "context plan"),
		"policy_create":   method(ParsePolicy, "text"),
		"policy_set": func(r *replay, l *line) (string, error) {
			policy, err := r.policy(l).With(l.string("key") + "=" + l.string("value"))
			r.handles[l.string("policy")] = policy
			return policyText(policy, err)
		},
		"policy_validate": method(Policy.Validate, "policy"),
		"policy_resolve": func(r *replay, l *line) (string, error) {
			p, err := r.policy(l).Resolve(l.int("n_context"))
			return " resolved=" + joined(p.Budget, p.Sink, p.Recent, p.Selected, p.QueryRows, p.ScoresAreMass), err
		},
		"policy_layer_budgets": method(Policy.LayerBudgets, "policy n_context n_layers", "budgets"),
		"policy_need":          method(Policy.NeedOf, "policy input", "need"),
		"plan_create":          method((*Context).NewPlan, "context geometry policy options"),
		"plan_destroy":         method((*Plan).Close, "plan"),
		"plan_layer": func(r *replay, l *line) (string, error) {
			i, err := r.plan(l).Layer(l.int("layer"))
			return " info=" + joined(i.Cache, i.QHeads, i.KVHeads, i.Lists, i.FirstList), err
		},
		"plan_capabilities": func(r *replay, l *line) (string, error) {
			c, err := r.plan(l).Capabilities(l.int("layer"))
			return " can=" + joined(c.CanMove, c.CanScore, c.CanRotate, c.MoveReason, c.ScoreReason, c.RotateReason,
				c.NeedsScore, c.TableBlock, c.NeedsHeadTables, c.NeedsLayerTables), err
		},
		"plan_workspace": method((*Plan).Workspace, "plan operation n_tokens"),
		"plan_selection": func(r *replay, l *line) (string, error) {
			o, k, err := r.plan(l).Selection(l.int("layer"), l.int("n_tokens"), l.int("n_seen"))
			return " selection=" + joined(o.Tokens, o.Rows, o.Reduce, o.Sink, o.Recent, o.Tie, o.SelectBlock,
				k.Lists, k.Count), err
		},
		"plan_layer_budgets": func(r *replay, l *line) (string, error) {
			budgets, err := r.plan(l).LayerBudgets(l.int("n_tokens"))
			same(r.T, l.int("n_layers"), len(budgets))
			return " budgets=" + listed(budgets), err
		},

		"view_validate":     method((*View).Validate, "view n_tokens"),
		"score":             method((*Plan).Score, "plan jobs workspace"),
		"select":            method((*Context).Select, "context options keep workspace"),
		"select_workspace":  method((*Context).SelectWorkspace, "context n_tokens n_lists"),
		"compact":           method((*Context).Compact, "context moves workspace"),
		"compact_workspace": method((*Context).CompactWorkspace, "context moves"),
		"reorder":           method((*Context).Reorder, "context moves workspace"),
		"reorder_workspace": method((*Context).ReorderWorkspace, "context moves"),
		"rotate":            method((*Plan).Rotate, "plan rotations"),
		"attend":            method((*Context).Attend, "context jobs workspace"),
		"attend_workspace":  method((*Context).AttendWorkspace, "context jobs"),
		"budget_for_mass":   method((*Context).BudgetForMass, "context layers options", "budgets"),

		"sequence_create":          method((*Plan).NewSequence, "plan"),
		"sequence_destroy":         method((*Sequence).Close, "sequence"),
		"sequence_reset":           method((*Sequence).Reset, "sequence"),
		"sequence_begin_observing": method((*Sequence).BeginObserving, "sequence memory"),
		"sequence_end_observing":   method((*Sequence).EndObserving, "sequence"),
		"sequence_observe":         method((*Sequence).Observe, "sequence observations n_rows first_position"),
		"sequence_append":          method((*Sequence).Append, "sequence n_tokens"),
		"sequence_end_prompt":      method((*Sequence).EndPrompt, "sequence"),
		"sequence_trim_to":         method((*Sequence).TrimTo, "sequence new_length"),
		"sequence_replayed":        method((*Sequence).Replayed, "sequence n_tokens"),
		"sequence_start":           method((*Sequence).Start, "sequence layers n_tokens"),
		"sequence_fork":            method((*Sequence).Fork, "sequence options"),
		"sequence_save":            method((*Sequence).Save, "sequence"),
		"sequence_load":            method((*Sequence).Load, "sequence data"),
		"sequence_evict":           method((*Sequence).Evict, "sequence views options workspace"),
		"sequence_report": func(r *replay, l *line) (string, error) {
			report, err := r.sequence(l).Report()
			must(r.T, err)
			lists, err := r.sequence(l).ListReports()
			same(r.T, l.int("n_lists"), len(lists))
			var texts []string
			for _, list := range lists {
				texts = append(texts, joined(list.Layer, list.TokensBefore, list.TokensAfter, bitsOf(list.MassKept),
					bitsOf(list.LargestMassEvicted)))
			}
			return " report=" + reportText(report) + " lists=" + listed(texts), err
		},
		"sequence_stored_length": method((*Sequence).StoredLength, "sequence layer kv_head", "length"),
		"sequence_logical_length": func(r *replay, l *line) (string, error) {
			return result("length", r.sequence(l).LogicalLength(), nil)
		},
		"sequence_exact_prefix":     method((*Sequence).ExactPrefix, "sequence", "length"),
		"sequence_keep_positions":   method((*Sequence).KeepPositions, "sequence layer kv_head", "positions"),
		"sequence_position_of_slot": method((*Sequence).PositionOfSlot, "sequence layer kv_head slot", "position"),
		"sequence_slot_of_position": method((*Sequence).SlotOfPosition, "sequence layer kv_head position", "slot"),
		"sequence_kept_slots":       method((*Sequence).KeptSlots, "sequence views", "slots"),
		"sequence_undo_bytes":       method((*Sequence).UndoBytes, "sequence views", "bytes"),
		"sequence_undo":             method((*Sequence).Undo, "sequence views undo"),
		"sequence_edit":             method((*Sequence).Edit, "sequence views edit"),
		"sequence_memory_of": func(r *replay, l *line) (string, error) {
			m, err := r.sequence(l).MemoryOf(l.int("layer"))
			text := " counts=" + joined(m.Lists, m.Listed, m.SumHeads, m.SumStride) +
				" lengths=" + words(m.Lengths, m.Lists*2)
			for i := 0; i < m.Lists; i++ {
				listed := m.Listed
				if m.ListedCounts != 0 {
					listed = parse[int](strings.Split(words(m.ListedCounts, m.Lists), ",")[i])
				}
				text += " positions=" + words(m.Positions+uint64(4*i*m.Listed), listed)
			}
			return text + " listed_counts=" + words(m.ListedCounts, m.Lists) +
				" sums=" + words(m.Sums, m.SumHeads*int(m.SumStride)), err
		},
		"sequence_prefill": func(r *replay, l *line) (string, error) {
			o := r.structOf("prefill_options", l.string("options"))
			var chunks []string
			report, err := r.sequence(l).Prefill(&Prefill{
				Tokens: o.int("n_tokens"), Chunk: o.int("chunk"), EvictEachChunk: o.flag("evict_each_chunk"),
				Views: one[[]*View](r, o, "views"), Cached: one[*PagedSequence](r, o, "cached"),
				Evict: one[*EvictOptions](r, o, "evict"), Workspace: r.scratch(o.int("workspace_bytes")),
				Forward: func(first, n int) error { chunks = append(chunks, joined(first, n)); return nil },
			}, 0)
			return " chunks=" + listed(chunks) + " report=" + joined(report.Chunks, report.Evictions,
				report.PeakTokens, report.PeakBytes, report.EndBytes), err
		},

		"sequences_append":  method(AppendAll, "items"),
		"sequences_trim_to": method(TrimAllTo, "items"),
		"sequences_observe": method(ObserveAll, "items"),
		"sequences_workspace": func(r *replay, l *line) (string, error) {
			var sequences []*Sequence
			for _, item := range one[[]SequenceEviction](r, l, "items") {
				sequences = append(sequences, item.Sequence)
			}
			return workspaceText(EvictAllWorkspace(sequences))
		},
		"sequences_evict": method(EvictAll, "items workspace"),

		"calibration_create":  method((*Plan).NewCalibration, "plan has_covariances"),
		"calibration_destroy": method((*Calibration).Close, "calibration"),
		"calibration_observe": method((*Calibration).Observe, "calibration layer queries first_position n_rows"),
		"calibration_rows":    method((*Calibration).Rows, "calibration layer", "rows"),
		"calibration_save":    method((*Calibration).Save, "calibration"),
		"calibration_load":    method((*Calibration).Load, "calibration data"),
		"calibration_query_centers": func(r *replay, l *line) (string, error) {
			name, n := l.string("name"), l.int("length")
			centers, err := r.calibration(l).QueryCenters(l.int("layer"))
			return "", made(err, func() { r.floats(name, centers, n) })
		},
		"calibration_query_mean": func(r *replay, l *line) (string, error) {
			name, n, products := l.string("name"), l.int("length"), l.int("covariance_length")
			mean, covariance, err := r.calibration(l).QueryMean(
				l.int("layer"), l.int("first_position"), l.int("n_positions"), products > 0)
			return "", made(err, func() {
				r.floats(name, mean, n)
				r.floats(name+"_covariance", covariance, products)
			})
		},

		"paged_cache_bytes":   method((*Plan).PagedCacheBytes, "plan options", "bytes"),
		"paged_cache_create":  method((*Plan).NewPagedCache, "plan options"),
		"paged_cache_destroy": method((*PagedCache).Close, "cache"),
		"paged_cache_get_usage": func(r *replay, l *line) (string, error) {
			u, err := one[*PagedCache](r, l, "cache").Usage()
			return " usage=" + joined(
				u.Sequences, u.Blocks, u.Free, u.Shared, u.Slots, u.Bytes, u.BytesInUse, u.F32Bytes), err
		},
		"paged_sequence_create":   method((*PagedCache).NewSequence, "cache"),
		"paged_sequence_fork":     method((*PagedSequence).Fork, "cached"),
		"paged_sequence_destroy":  method((*PagedSequence).Close, "cached"),
		"paged_sequence_append":   method((*PagedSequence).Append, "cached n_tokens"),
		"paged_sequence_truncate": method((*PagedSequence).Truncate, "cached new_length"),
		"paged_sequence_fit":      method((*PagedSequence).Fit, "cached stored"),
		"paged_sequence_length":   method((*PagedSequence).Length, "cached layer", "slots"),
		"paged_sequence_view":     method((*PagedSequence).View, "cached layer"),
		"paged_sequence_own":      method((*PagedSequence).Own, "cached first_slot"),
		"paged_sequence_write":    method((*PagedSequence).Write, "cached rows"),
		"paged_sequence_read":     method((*PagedSequence).Read, "cached rows"),
		"paged_edit":              method((*PagedSequence).Edit, "cached sequence edit"),
		"paged_evict":             method(EvictAllPaged, "items workspace"),
	}
}

// floats names n numbers that a call returned.
func (r *replay) floats(name string, values []float32, n int) {
	same(r.T, n, len(values))
	b := newBuffer("f32", n)
	if n > 0 {
		copy(elements[float32](b), values)
	}
	r.buffers[name] = b
}

// made names a handle unless its call has failed.
func made(err error, name func()) error {
	if err == nil {
		name()
	}
	return err
}

// texts are results by name.
func texts(pairs ...string) (all string) {
	for i := 0; i < len(pairs); i += 2 {
		all += " " + pairs[i] + "=" + escaped(pairs[i+1])
	}
	return all
}

func (r *replay) policy(l *line) Policy            { return one[Policy](r, l, "policy") }
func (r *replay) plan(l *line) *Plan               { return one[*Plan](r, l, "plan") }
func (r *replay) sequence(l *line) *Sequence       { return one[*Sequence](r, l, "sequence") }
func (r *replay) calibration(l *line) *Calibration { return one[*Calibration](r, l, "calibration") }
