package kvevict

import (
	"fmt"
	"math"
	"strings"
)

// calls make the calls of a transcript, each the C function of that name.
var calls map[string]func(*replay, *line) (string, error)

func init() {
	type call = func(*replay, *line) (string, error)
	calls = map[string]call{
		"version":        func(r *replay, l *line) (string, error) { return result("version", Version(), nil) },
		"abi_version":    func(r *replay, l *line) (string, error) { return result("version", ABIVersion(), nil) },
		"device_check":   func(r *replay, l *line) (string, error) { return "", CheckDevice(Device(l.int("device"))) },
		"simd_target_at": func(r *replay, l *line) (string, error) { return result("target", SIMDTargets()[l.int("index")], nil) },
		"reason_text": func(r *replay, l *line) (string, error) {
			return " text=" + escaped(Reason(l.int("reason")).String()), nil
		},
		"auto_budget": func(r *replay, l *line) (string, error) {
			budget, err := AutoBudget(l.int("max_tokens"), uint64(l.int64("full_cache_bytes")))
			return result("budget", budget, err)
		},
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
			r.contexts[l.string("name")] = context
			return "", err
		},
		"context_destroy": func(r *replay, l *line) (string, error) { return "", r.context(l).Close() },
		"context_prepare": func(r *replay, l *line) (string, error) {
			return "", r.context(l).Prepare(r.plans[l.string("plan")])
		},
		"policy_create": func(r *replay, l *line) (string, error) {
			policy, err := ParsePolicy(l.string("text"))
			r.policies[l.string("name")] = policy
			return result("text", policy.String(), err)
		},
		"policy_set": func(r *replay, l *line) (string, error) {
			policy, err := r.policy(l).With(l.string("key") + "=" + l.string("value"))
			r.policies[l.string("policy")] = policy
			return result("text", policy.String(), err)
		},
		"policy_validate": func(r *replay, l *line) (string, error) { return "", r.policy(l).Validate() },
		"policy_resolve": func(r *replay, l *line) (string, error) {
			p, err := r.policy(l).Resolve(l.int("n_context"))
			return " resolved=" + joined(p.Budget, p.Sink, p.Recent, p.Selected, p.QueryRows, p.ScoresAreMass), err
		},
		"policy_layer_budgets": func(r *replay, l *line) (string, error) {
			budgets, err := r.policy(l).LayerBudgets(l.int("n_context"), l.int("n_layers"))
			return " budgets=" + listed(budgets), err
		},
		"policy_need": func(r *replay, l *line) (string, error) {
			need, err := r.policy(l).NeedOf(Input(l.int("input")))
			return result("need", need, err)
		},
		"plan_create": func(r *replay, l *line) (string, error) {
			plan, err := r.context(l).NewPlan(
				r.geometry(l.string("geometry")), r.policy(l), r.planOptions(l.string("options")))
			r.plans[l.string("name")] = plan
			return "", err
		},
		"plan_destroy": func(r *replay, l *line) (string, error) { return "", r.plan(l).Close() },
		"plan_layer": func(r *replay, l *line) (string, error) {
			i, err := r.plan(l).Layer(l.int("layer"))
			return " info=" + joined(i.Cache, i.QHeads, i.KVHeads, i.Lists, i.FirstList), err
		},
		"plan_capabilities": func(r *replay, l *line) (string, error) {
			c, err := r.plan(l).Capabilities(l.int("layer"))
			return " can=" + joined(c.CanMove, c.CanScore, c.CanRotate, c.MoveReason, c.ScoreReason, c.RotateReason,
				c.NeedsScore, c.TableBlock, c.NeedsHeadTables, c.NeedsLayerTables), err
		},
		"plan_workspace": func(r *replay, l *line) (string, error) {
			return workspaceText(r.plan(l).Workspace(Operation(l.int("operation")), l.int("n_tokens")))
		},
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

		"view_validate": func(r *replay, l *line) (string, error) {
			return "", r.view(l.string("view")).Validate(l.int("n_tokens"))
		},
		"score": func(r *replay, l *line) (string, error) {
			return "", r.plan(l).Score(each(l, "jobs", r.scoreJob), r.workspace(l), 0)
		},
		"select": func(r *replay, l *line) (string, error) {
			return "", r.context(l).Select(
				r.selectOptions(l.string("options")), r.keepLists(l.string("keep")), r.workspace(l), 0)
		},
		"select_workspace": func(r *replay, l *line) (string, error) {
			return workspaceText(r.context(l).SelectWorkspace(l.int("n_tokens"), l.int("n_lists")))
		},
		"compact": func(r *replay, l *line) (string, error) {
			return "", r.context(l).Compact(each(l, "moves", r.move), r.workspace(l), 0)
		},
		"compact_workspace": func(r *replay, l *line) (string, error) {
			return workspaceText(r.context(l).CompactWorkspace(each(l, "moves", r.move)))
		},
		"reorder": func(r *replay, l *line) (string, error) {
			return "", r.context(l).Reorder(each(l, "moves", r.move), r.workspace(l), 0)
		},
		"reorder_workspace": func(r *replay, l *line) (string, error) {
			return workspaceText(r.context(l).ReorderWorkspace(each(l, "moves", r.move)))
		},
		"rotate": func(r *replay, l *line) (string, error) {
			return "", r.plan(l).Rotate(each(l, "rotations", r.rotation), 0)
		},
		"attend": func(r *replay, l *line) (string, error) {
			return "", r.context(l).Attend(each(l, "jobs", r.attention), r.workspace(l), 0)
		},
		"attend_workspace": func(r *replay, l *line) (string, error) {
			return workspaceText(r.context(l).AttendWorkspace(each(l, "jobs", r.attention)))
		},
		"budget_for_mass": func(r *replay, l *line) (string, error) {
			var o MassOptions
			o.apply(r.structOf("mass_options", l.string("options")))
			budgets, err := r.context(l).BudgetForMass(each(l, "layers", r.layerScores), o)
			return " budgets=" + listed(budgets), err
		},

		"sequence_create": func(r *replay, l *line) (string, error) {
			sequence, err := r.plan(l).NewSequence()
			return "", made(err, func() { r.sequences[l.string("name")] = sequence })
		},
		"sequence_destroy": func(r *replay, l *line) (string, error) { return "", r.sequence(l).Close() },
		"sequence_reset":   func(r *replay, l *line) (string, error) { return "", r.sequence(l).Reset(0) },
		"sequence_begin_observing": func(r *replay, l *line) (string, error) {
			return "", r.sequence(l).BeginObserving(r.memory(l.string("memory")))
		},
		"sequence_end_observing": func(r *replay, l *line) (string, error) { return "", r.sequence(l).EndObserving() },
		"sequence_observe": func(r *replay, l *line) (string, error) {
			return "", r.sequence(l).Observe(
				each(l, "observations", r.observation), l.int("n_rows"), l.int("first_position"), 0)
		},
		"sequence_append":     func(r *replay, l *line) (string, error) { return "", r.sequence(l).Append(l.int("n_tokens"), 0) },
		"sequence_end_prompt": func(r *replay, l *line) (string, error) { return "", r.sequence(l).EndPrompt() },
		"sequence_trim_to":    func(r *replay, l *line) (string, error) { return "", r.sequence(l).TrimTo(l.int("new_length"), 0) },
		"sequence_replayed":   func(r *replay, l *line) (string, error) { return "", r.sequence(l).Replayed(l.int("n_tokens")) },
		"sequence_start": func(r *replay, l *line) (string, error) {
			return "", r.sequence(l).Start(each(l, "layers", r.positionLists), l.int("n_tokens"), 0)
		},
		"sequence_fork": func(r *replay, l *line) (string, error) {
			fork, err := r.sequence(l).Fork(r.forkOptions(l.string("options")), 0)
			return "", made(err, func() { r.sequences[l.string("name")] = fork })
		},
		"sequence_save": func(r *replay, l *line) (string, error) {
			data, err := r.sequence(l).Save()
			saved := newBuffer("u8", len(data))
			copy(saved.bytes, data)
			r.buffers[l.string("name")] = saved
			return "", err
		},
		"sequence_load": func(r *replay, l *line) (string, error) {
			return "", r.sequence(l).Load(r.buffers[l.string("data")].bytes, 0)
		},
		"sequence_evict": func(r *replay, l *line) (string, error) {
			report, err := r.sequence(l).Evict(
				each(l, "views", r.view), r.evictOptions(l.string("options")), r.workspace(l), 0)
			return " report=" + reportText(report), err
		},
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
		"sequence_stored_length": func(r *replay, l *line) (string, error) {
			n, err := r.sequence(l).StoredLength(l.int("layer"), l.int("kv_head"))
			return result("length", n, err)
		},
		"sequence_logical_length": func(r *replay, l *line) (string, error) {
			return result("length", r.sequence(l).LogicalLength(), nil)
		},
		"sequence_exact_prefix": func(r *replay, l *line) (string, error) {
			n, err := r.sequence(l).ExactPrefix()
			return result("length", n, err)
		},
		"sequence_keep_positions": func(r *replay, l *line) (string, error) {
			positions, err := r.sequence(l).KeepPositions(l.int("layer"), l.int("kv_head"))
			return " positions=" + listed(positions), err
		},
		"sequence_position_of_slot": func(r *replay, l *line) (string, error) {
			position, err := r.sequence(l).PositionOfSlot(l.int("layer"), l.int("kv_head"), l.int("slot"))
			return result("position", position, err)
		},
		"sequence_slot_of_position": func(r *replay, l *line) (string, error) {
			slot, err := r.sequence(l).SlotOfPosition(l.int("layer"), l.int("kv_head"), l.int("position"))
			return result("slot", slot, err)
		},
		"sequence_kept_slots": func(r *replay, l *line) (string, error) {
			slots, err := r.sequence(l).KeptSlots(each(l, "views", r.view))
			return " slots=" + listed(slots), err
		},
		"sequence_undo_bytes": func(r *replay, l *line) (string, error) {
			bytes, err := r.sequence(l).UndoBytes(each(l, "views", r.view))
			return result("bytes", bytes, err)
		},
		"sequence_undo": func(r *replay, l *line) (string, error) {
			return "", r.sequence(l).Undo(each(l, "views", r.view), r.memory(l.string("undo")), 0)
		},
		"sequence_edit": func(r *replay, l *line) (string, error) {
			return "", r.sequence(l).Edit(each(l, "views", r.view), r.edit(l.string("edit")), 0)
		},
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
				Views: each(o, "views", r.view), Cached: r.cached[o.string("cached")],
				Evict: r.evictOptions(o.string("evict")), Workspace: r.scratch(o.int("workspace_bytes")),
				Forward: func(first, n int) error { chunks = append(chunks, joined(first, n)); return nil },
			}, 0)
			return " chunks=" + listed(chunks) + " report=" + joined(report.Chunks, report.Evictions,
				report.PeakTokens, report.PeakBytes, report.EndBytes), err
		},

		"sequences_append": func(r *replay, l *line) (string, error) {
			return "", AppendAll(each(l, "items", func(name string) SequenceTokens {
				item := r.structOf("sequence_tokens", name)
				return SequenceTokens{r.sequence(item), item.int("n_tokens")}
			}), 0)
		},
		"sequences_trim_to": func(r *replay, l *line) (string, error) {
			return "", TrimAllTo(each(l, "items", func(name string) SequenceLength {
				item := r.structOf("sequence_length", name)
				return SequenceLength{r.sequence(item), item.int("new_length")}
			}), 0)
		},
		"sequences_observe": func(r *replay, l *line) (string, error) {
			return "", ObserveAll(each(l, "items", func(name string) SequenceObservations {
				item := r.structOf("sequence_observations", name)
				return SequenceObservations{r.sequence(item), each(item, "observations", r.observation),
					item.int("n_rows"), item.int("first_position")}
			}), 0)
		},
		"sequences_workspace": func(r *replay, l *line) (string, error) {
			return workspaceText(EvictAllWorkspace(each(l, "items", func(name string) *Sequence {
				return r.sequence(r.structOf("sequence_eviction", name))
			})))
		},
		"sequences_evict": func(r *replay, l *line) (string, error) {
			reports, err := EvictAll(each(l, "items", func(name string) SequenceEviction {
				item := r.structOf("sequence_eviction", name)
				return SequenceEviction{
					r.sequence(item), each(item, "views", r.view), r.evictOptions(item.string("options")),
				}
			}), r.workspace(l), 0)
			return " reports=" + reportTexts(reports), err
		},

		"paged_cache_bytes": func(r *replay, l *line) (string, error) {
			bytes, err := r.plan(l).PagedCacheBytes(r.pagedCacheOptions(l.string("options")))
			return result("bytes", bytes, err)
		},
		"calibration_create": func(r *replay, l *line) (string, error) {
			calibration, err := r.plan(l).NewCalibration(l.flag("has_covariances"))
			return "", made(err, func() { r.calibrations[l.string("name")] = calibration })
		},
		"calibration_destroy": func(r *replay, l *line) (string, error) { return "", r.calibration(l).Close() },
		"calibration_observe": func(r *replay, l *line) (string, error) {
			return "", r.calibration(l).Observe(l.int("layer"), r.plane(l.string("queries")),
				l.int("first_position"), l.int("n_rows"), 0)
		},
		"calibration_rows": func(r *replay, l *line) (string, error) {
			n, err := r.calibration(l).Rows(l.int("layer"))
			return result("rows", n, err)
		},
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
		"calibration_save": func(r *replay, l *line) (string, error) {
			data, err := r.calibration(l).Save()
			saved := newBuffer("u8", len(data))
			copy(saved.bytes, data)
			r.buffers[l.string("name")] = saved
			return "", err
		},
		"calibration_load": func(r *replay, l *line) (string, error) {
			return "", r.calibration(l).Load(r.buffers[l.string("data")].bytes)
		},
		"paged_cache_create": func(r *replay, l *line) (string, error) {
			cache, err := r.plan(l).NewPagedCache(r.pagedCacheOptions(l.string("options")))
			return "", made(err, func() { r.caches[l.string("name")] = cache })
		},
		"paged_cache_destroy": func(r *replay, l *line) (string, error) { return "", r.caches[l.string("cache")].Close() },
		"paged_cache_get_usage": func(r *replay, l *line) (string, error) {
			u, err := r.caches[l.string("cache")].Usage()
			return " usage=" + joined(
				u.Sequences, u.Blocks, u.Free, u.Shared, u.Slots, u.Bytes, u.BytesInUse, u.F32Bytes), err
		},
		"paged_sequence_create": func(r *replay, l *line) (string, error) {
			cached, err := r.caches[l.string("cache")].NewSequence()
			return "", made(err, func() { r.cached[l.string("name")] = cached })
		},
		"paged_sequence_fork": func(r *replay, l *line) (string, error) {
			cached, err := r.cachedOf(l).Fork(0)
			return "", made(err, func() { r.cached[l.string("name")] = cached })
		},
		"paged_sequence_destroy":  func(r *replay, l *line) (string, error) { return "", r.cachedOf(l).Close() },
		"paged_sequence_append":   func(r *replay, l *line) (string, error) { return "", r.cachedOf(l).Append(l.int("n_tokens"), 0) },
		"paged_sequence_truncate": func(r *replay, l *line) (string, error) { return "", r.cachedOf(l).Truncate(l.int("new_length")) },
		"paged_sequence_fit": func(r *replay, l *line) (string, error) {
			return "", r.cachedOf(l).Fit(r.sequences[l.string("stored")])
		},
		"paged_sequence_length": func(r *replay, l *line) (string, error) {
			n, err := r.cachedOf(l).Length(l.int("layer"))
			return result("slots", n, err)
		},
		"paged_sequence_view": func(r *replay, l *line) (string, error) {
			view, err := r.cachedOf(l).View(l.int("layer"))
			r.lent[l.string("name")] = view
			return "", err
		},
		"paged_sequence_own": func(r *replay, l *line) (string, error) { return "", r.cachedOf(l).Own(l.int("first_slot"), 0) },
		"paged_sequence_write": func(r *replay, l *line) (string, error) {
			return "", r.cachedOf(l).Write(each(l, "rows", r.pagedRows), 0)
		},
		"paged_sequence_read": func(r *replay, l *line) (string, error) {
			return "", r.cachedOf(l).Read(each(l, "rows", r.pagedRows), 0)
		},
		"paged_edit": func(r *replay, l *line) (string, error) {
			return "", r.cachedOf(l).Edit(r.sequence(l), r.edit(l.string("edit")), 0)
		},
		"paged_evict": func(r *replay, l *line) (string, error) {
			reports, err := EvictAllPaged(each(l, "items", func(name string) PagedEviction {
				item := r.structOf("paged_eviction", name)
				return PagedEviction{r.cachedOf(item), r.sequence(item), r.evictOptions(item.string("options"))}
			}), r.workspace(l), 0)
			return " reports=" + reportTexts(reports), err
		},
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

func (r *replay) context(l *line) *Context         { return r.contexts[l.string("context")] }
func (r *replay) policy(l *line) Policy            { return r.policies[l.string("policy")] }
func (r *replay) plan(l *line) *Plan               { return r.plans[l.string("plan")] }
func (r *replay) sequence(l *line) *Sequence       { return r.sequences[l.string("sequence")] }
func (r *replay) calibration(l *line) *Calibration { return r.calibrations[l.string("calibration")] }
func (r *replay) cachedOf(l *line) *PagedSequence  { return r.cached[l.string("cached")] }
func (r *replay) workspace(l *line) Memory         { return r.scratch(l.int("workspace")) }
