#!/bin/sh
# complete.sh ABI_DIR TRANSCRIPT: each field of a struct that calls read is set somewhere in the
# transcript, and each function is called, but for those below.
set -eu
awk -v layout="$1/kvevict.layout" -v symbols="$1/kvevict.symbols" '
  BEGIN {
    # Told by the length of what a key names, or by the replayers themselves.
    told("attention_job.sink_logits_len evict_options.protected_positions_len evict_options.inputs_len")
    told("evict_options.undo_bytes evict_options.ranges_len evict_options.destinations_len")
    told("fork_options.memory_bytes geometry.layers_len geometry.rope_inv_freq_len")
    told("geometry.sink_logits_len keep_lists.slots_len layer_scores.scores_len")
    told("paged_cache_options.memory_bytes plan_options.head_budgets_len plan_options.layer_budgets_len")
    told("plane.address_table_len position_lists.n_lists position_lists.positions_len")
    told("position_lists.list_stride position_lists.count position_lists.counts")
    told("prefill_options.forward prefill_options.user_data prefill_options.views_len")
    told("prefill_options.workspace rotation.offsets_len score_job.scores_len")
    told("select_options.scores_len select_options.protected_slots_len select_options.ranges_len")
    told("sequence_eviction.views_len sequence_observations.observations_len view.n_companions")
    told("view.block_table_len")
    # Hooks and CUDA, which the languages test by themselves.
    told("context_options.")
    # Written by calls.
    told("capabilities. dtype_info. evict_report. gpu_info. layer_info. list_report. paged_cache_usage.")
    told("parameter_info. policy_info. prefill_report. preset_info. resolved_policy. sequence_memory.")
    told("workspace.")
    # Each language reads and sets every parameter by a property of its own.
    told("policy_get policy_set_number policy_get_number")
    # The recorder and the bindings call these beside others, or need them not.
    told("last_error_message policy_copy policy_destroy policy_format status_name")
    told("gpu_at") # needs a driver
  }
  function told(names, list, i) {
    split(names, list, " ")
    for (i in list) apart[list[i]] = 1
  }
  function check(name, is_there, is_apart) {
    if (is_there == is_apart) {
      print name (is_there ? " is in the transcript, but listed here as left out" : " is not in the transcript")
      bad = 1
    }
  }
  { seen[$1] = 1
    for (i = 2; i <= NF; ++i) { key = $i; sub(/=.*/, "", key); seen[$1 "." key] = 1 } }
  END {
    while ((getline line < layout) > 0) {
      split(line, words, " ")
      field = words[1]
      if (!sub(/^kvevict_/, "", field) || field !~ /\./ || field ~ /\.(struct_size|reserved)$/) continue
      whole = field
      sub(/\..*/, ".", whole)
      if (whole in apart) continue
      ++fields
      check(field, field in seen, field in apart)
    }
    while ((getline line < symbols) > 0) {
      sub(/@.*/, "", line)
      sub(/^kvevict_/, "", line)
      ++functions
      check(line, line in seen, line in apart)
    }
    print fields " fields, " functions " functions"
    exit bad || fields < 100 || functions < 90
  }' "$2"
