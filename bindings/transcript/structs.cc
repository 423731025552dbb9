// The structs of the header from lines: keys are the fields' names.
#include "bindings/transcript/objects.h"

namespace transcript {
namespace {

template <class T>
T Parse(const std::string& text);
template <>
int32_t Parse(const std::string& text) {
  return std::stoi(text);
}
template <>
uint32_t Parse(const std::string& text) {
  return static_cast<uint32_t>(std::stoul(text));
}
template <>
double Parse(const std::string& text) {
  return std::stod(text);
}

}  // namespace

template <class T>
const T* Objects::Numbers(Line& line, const std::string& key,
                          std::size_t* length) {
  const std::vector<std::string> texts = line.List(key);
  *length = texts.size();
  if (texts.empty()) return nullptr;
  T* numbers = Keep(texts.size(), T());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    numbers[i] = Parse<T>(texts[i]);
  }
  return numbers;
}

const kvevict_plane* Objects::Plane(const std::string& name) {
  if (name.empty()) return nullptr;
  Line& l = Struct("plane", name);
  kvevict_plane p = KVEVICT_PLANE_INIT;
  const std::string data = l.Text("data");
  p.data = reinterpret_cast<uintptr_t>(Data<uint8_t>(data)) +
           l.Number<uint64_t>("offset");
  p.token_stride_bytes = l.Number<int64_t>("token_stride_bytes");
  p.head_stride_bytes = l.Number<int64_t>("head_stride_bytes");
  p.element_stride_bytes = l.Number<int64_t>("element_stride_bytes");
  p.block_stride_bytes = l.Number<int64_t>("block_stride_bytes");
  p.dtype = l.Number<kvevict_dtype>("dtype");
  p.head_dim = l.Count("head_dim");
  p.row_bytes = l.Count("row_bytes");
  p.role = l.Number<kvevict_role>("role");
  p.group_stride_bytes = l.Number<int64_t>("group_stride_bytes");
  const std::string table = l.Text("address_table");
  p.address_table = reinterpret_cast<uintptr_t>(Data<uint64_t>(table));
  p.address_table_len = static_cast<uint32_t>(Length(table));
  p.group_elems = l.Count("group_elems");
  p.group_tokens = l.Number<uint64_t>("group_tokens");
  return Keep(1, p);
}

const kvevict_view* Objects::View(const std::string& name) {
  if (const auto found = cached_views.find(name); found != cached_views.end()) {
    return &found->second;
  }
  Line& l = Struct("view", name);
  kvevict_view v = KVEVICT_VIEW_INIT;
  v.n_kv_heads = l.Count("n_kv_heads");
  v.k = *Plane(l.Text("k"));
  if (const auto* values = Plane(l.Text("v"))) v.v = *values;
  const std::vector<std::string> companions = l.List("companions");
  v.n_companions = static_cast<uint32_t>(companions.size());
  if (!companions.empty()) {
    kvevict_plane* planes = Keep(companions.size(), kvevict_plane());
    for (std::size_t i = 0; i < companions.size(); ++i) {
      planes[i] = *Plane(companions[i]);
    }
    v.companions = planes;
  }
  v.block_size = l.Count("block_size");
  const std::string table = l.Text("block_table");
  v.block_table = Data<int32_t>(table);
  v.block_table_len = Length(table);
  v.block_table_head_stride = l.Number<uint64_t>("block_table_head_stride");
  v.ring_slots = l.Count("ring_slots");
  v.ring_first = l.Count("ring_first");
  v.n_shared_blocks = l.Count("n_shared_blocks");
  v.first_recent = l.Count("first_recent");
  return Keep(1, v);
}

const kvevict_view* Objects::Views(const std::vector<std::string>& names) {
  if (names.empty()) return nullptr;
  kvevict_view* views = Keep(names.size(), kvevict_view KVEVICT_VIEW_INIT);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] != "-") views[i] = *View(names[i]);
  }
  return views;
}

const kvevict_signal_inputs* Objects::Inputs(const std::string& name) {
  if (name.empty()) return nullptr;
  Line& l = Struct("signal_inputs", name);
  kvevict_signal_inputs s = KVEVICT_SIGNAL_INPUTS_INIT;
  s.n_sum_heads = l.Count("n_sum_heads");
  s.queries = Plane(l.Text("queries"));
  s.row_lse = Plane(l.Text("row_lse"));
  s.scores = Plane(l.Text("scores"));
  s.attention_sums = Plane(l.Text("attention_sums"));
  s.query_mean = Plane(l.Text("query_mean"));
  s.query_covariance = Plane(l.Text("query_covariance"));
  s.key_filter = Plane(l.Text("key_filter"));
  s.token_weights = Plane(l.Text("token_weights"));
  s.query_centers = Plane(l.Text("query_centers"));
  s.n_query_rows = l.Count("n_query_rows");
  return Keep(1, s);
}

const kvevict_signal_inputs* Objects::InputsOf(
    const std::vector<std::string>& names) {
  if (names.empty()) return nullptr;
  kvevict_signal_inputs* all =
      Keep(names.size(), kvevict_signal_inputs KVEVICT_SIGNAL_INPUTS_INIT);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] != "-") all[i] = *Inputs(names[i]);
  }
  return all;
}

const kvevict_keep_lists* Objects::KeepLists(const std::string& name) {
  if (name.empty()) return nullptr;
  Line& l = Struct("keep_lists", name);
  kvevict_keep_lists k = KVEVICT_KEEP_LISTS_INIT;
  k.n_lists = l.Count("n_lists");
  const std::string slots = l.Text("slots");
  k.slots = Data<int32_t>(slots);
  k.slots_len = Length(slots);
  k.list_stride = l.Number<uint64_t>("list_stride");
  k.count = l.Count("count");
  k.counts = Data<uint32_t>(l.Text("counts"));
  return Keep(1, k);
}

const kvevict_geometry* Objects::Geometry(const std::string& name) {
  Line& l = Struct("geometry", name);
  kvevict_geometry g = KVEVICT_GEOMETRY_INIT;
  g.n_layers = l.Count("n_layers");
  g.max_tokens = l.Count("max_tokens");
  g.rope_layout = l.Number<kvevict_rope_layout>("rope_layout");
  const std::vector<std::string> layers = l.List("layers");
  kvevict_layer_geometry* each =
      Keep(layers.size(), kvevict_layer_geometry KVEVICT_LAYER_GEOMETRY_INIT);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    Line& e = Struct("layer_geometry", layers[i]);
    each[i].cache = e.Number<kvevict_layer_cache>("cache");
    each[i].n_q_heads = e.Count("n_q_heads");
    each[i].n_kv_heads = e.Count("n_kv_heads");
    each[i].k_head_dim = e.Count("k_head_dim");
    each[i].v_head_dim = e.Count("v_head_dim");
    each[i].q_dtype = e.Number<kvevict_dtype>("q_dtype");
    each[i].k_dtype = e.Number<kvevict_dtype>("k_dtype");
    each[i].v_dtype = e.Number<kvevict_dtype>("v_dtype");
    each[i].softmax_scale = e.Float("softmax_scale");
    each[i].logit_softcap = e.Float("logit_softcap");
  }
  g.layers = each;
  g.layers_len = layers.size();
  const std::string rope = l.Text("rope_inv_freq");
  g.rope_inv_freq = Data<float>(rope);
  g.rope_inv_freq_len = Length(rope);
  const std::string sinks = l.Text("sink_logits");
  g.sink_logits = Data<float>(sinks);
  g.sink_logits_len = Length(sinks);
  return Keep(1, g);
}

const kvevict_plan_options* Objects::PlanOptions(const std::string& name) {
  if (name.empty()) return nullptr;
  Line& l = Struct("plan_options", name);
  kvevict_plan_options o = KVEVICT_PLAN_OPTIONS_INIT;
  o.draft_tokens = l.Count("draft_tokens");
  o.head_budgets = Numbers<uint32_t>(l, "head_budgets", &o.head_budgets_len);
  o.layer_budgets = Numbers<double>(l, "layer_budgets", &o.layer_budgets_len);
  o.report_mass = l.Count("report_mass");
  o.has_destinations = l.Count("has_destinations");
  return Keep(1, o);
}

const kvevict_context_options* Objects::ContextOptions(
    const std::string& name) {
  if (name.empty()) return nullptr;
  Line& l = Struct("context_options", name);
  kvevict_context_options o = KVEVICT_CONTEXT_OPTIONS_INIT;
  if (l.Has("simd_target")) {
    auto text = std::make_shared<std::string>(l.Text("simd_target"));
    kept_.push_back(text);
    o.simd_target = text->c_str();
  }
  return Keep(1, o);
}

const kvevict_score_job* Objects::ScoreJobs(
    const std::vector<std::string>& names) {
  kvevict_score_job* jobs =
      Keep(names.size(), kvevict_score_job KVEVICT_SCORE_JOB_INIT);
  for (std::size_t i = 0; i < names.size(); ++i) {
    Line& l = Struct("score_job", names[i]);
    jobs[i].layer = l.Count("layer");
    jobs[i].n_tokens = l.Count("n_tokens");
    jobs[i].n_seen = l.Count("n_seen");
    jobs[i].token_counts = Data<uint32_t>(l.Text("token_counts"));
    if (l.Has("view")) jobs[i].view = View(l.Text("view"));
    jobs[i].inputs = Inputs(l.Text("inputs"));
    const std::string scores = l.Text("scores");
    jobs[i].scores = Data<float>(scores);
    jobs[i].scores_len = Length(scores);
  }
  return jobs;
}

const kvevict_token_range* Objects::Ranges(
    const std::vector<std::string>& names) {
  if (names.empty()) return nullptr;
  kvevict_token_range* ranges =
      Keep(names.size(), kvevict_token_range KVEVICT_TOKEN_RANGE_INIT);
  for (std::size_t i = 0; i < names.size(); ++i) {
    Line& l = Struct("token_range", names[i]);
    ranges[i].first = l.Count("first");
    ranges[i].end = l.Count("end");
    ranges[i].rank = l.Number<int32_t>("rank");
  }
  return ranges;
}

const kvevict_select_options* Objects::SelectOptions(const std::string& name) {
  Line& l = Struct("select_options", name);
  kvevict_select_options o = KVEVICT_SELECT_OPTIONS_INIT;
  o.n_tokens = l.Count("n_tokens");
  o.token_counts = Data<uint32_t>(l.Text("token_counts"));
  const std::string scores = l.Text("scores");
  o.scores = Data<float>(scores);
  o.scores_len = Length(scores);
  o.n_rows = l.Count("n_rows");
  o.reduce = l.Number<kvevict_reduce>("reduce");
  o.n_sink = l.Count("n_sink");
  o.n_recent = l.Count("n_recent");
  o.tie = l.Number<kvevict_tie>("tie");
  o.select_block = l.Count("select_block");
  o.protected_slots =
      Numbers<int32_t>(l, "protected_slots", &o.protected_slots_len);
  const std::vector<std::string> ranges = l.List("ranges");
  o.ranges = Ranges(ranges);
  o.ranges_len = ranges.size();
  return Keep(1, o);
}

const kvevict_move* Objects::Moves(const std::vector<std::string>& names) {
  kvevict_move* moves = Keep(names.size(), kvevict_move KVEVICT_MOVE_INIT);
  for (std::size_t i = 0; i < names.size(); ++i) {
    Line& l = Struct("move", names[i]);
    moves[i].n_tokens = l.Count("n_tokens");
    moves[i].view = View(l.Text("view"));
    moves[i].keep = KeepLists(l.Text("keep"));
    moves[i].token_counts = Data<uint32_t>(l.Text("token_counts"));
    moves[i].merge = l.Number<kvevict_merge>("merge");
    moves[i].first_slot = l.Count("first_slot");
    moves[i].merge_threshold = l.Real("merge_threshold");
    moves[i].merge_fraction = l.Real("merge_fraction");
    if (l.Has("destination")) {
      moves[i].destination = View(l.Text("destination"));
    }
  }
  return moves;
}

const kvevict_rotation* Objects::Rotations(
    const std::vector<std::string>& names) {
  kvevict_rotation* all =
      Keep(names.size(), kvevict_rotation KVEVICT_ROTATION_INIT);
  for (std::size_t i = 0; i < names.size(); ++i) {
    Line& l = Struct("rotation", names[i]);
    all[i].layer = l.Count("layer");
    all[i].n_tokens = l.Count("n_tokens");
    all[i].n_lists = l.Count("n_lists");
    all[i].token_counts = Data<uint32_t>(l.Text("token_counts"));
    all[i].view = View(l.Text("view"));
    const std::string offsets = l.Text("offsets");
    all[i].offsets = Data<int32_t>(offsets);
    all[i].offsets_len = Length(offsets);
  }
  return all;
}

const kvevict_attention_job* Objects::Attentions(
    const std::vector<std::string>& names) {
  kvevict_attention_job* jobs =
      Keep(names.size(), kvevict_attention_job KVEVICT_ATTENTION_JOB_INIT);
  for (std::size_t i = 0; i < names.size(); ++i) {
    Line& l = Struct("attention_job", names[i]);
    kvevict_attention_job& j = jobs[i];
    j.n_tokens = l.Count("n_tokens");
    j.token_counts = Data<uint32_t>(l.Text("token_counts"));
    j.view = View(l.Text("view"));
    j.queries = Plane(l.Text("queries"));
    j.out = Plane(l.Text("out"));
    j.n_q_heads = l.Count("n_q_heads");
    j.n_queries = l.Count("n_queries");
    j.v_head_dim = l.Count("v_head_dim");
    j.window = l.Count("window");
    j.non_causal = l.Count("non_causal");
    j.softmax_scale = l.Float("softmax_scale");
    j.logit_softcap = l.Float("logit_softcap");
    j.n_sum_heads = l.Count("n_sum_heads");
    const std::string sinks = l.Text("sink_logits");
    j.sink_logits = Data<float>(sinks);
    j.sink_logits_len = Length(sinks);
    j.row_lse = Plane(l.Text("row_lse"));
    j.attention_sums = Plane(l.Text("attention_sums"));
  }
  return jobs;
}

const kvevict_layer_scores* Objects::LayerScores(
    const std::vector<std::string>& names) {
  kvevict_layer_scores* all =
      Keep(names.size(), kvevict_layer_scores KVEVICT_LAYER_SCORES_INIT);
  for (std::size_t i = 0; i < names.size(); ++i) {
    Line& l = Struct("layer_scores", names[i]);
    all[i].n_rows = l.Count("n_rows");
    all[i].n_tokens = l.Count("n_tokens");
    const std::string scores = l.Text("scores");
    all[i].scores = Data<float>(scores);
    all[i].scores_len = Length(scores);
  }
  return all;
}

const kvevict_mass_options* Objects::MassOptions(const std::string& name) {
  Line& l = Struct("mass_options", name);
  kvevict_mass_options o = KVEVICT_MASS_OPTIONS_INIT;
  o.scope = l.Number<kvevict_scope>("scope");
  o.mass = l.Real("mass");
  o.n_sink = l.Count("n_sink");
  o.n_recent = l.Count("n_recent");
  o.every_row = l.Count("every_row");
  return Keep(1, o);
}

const kvevict_observation* Objects::Observations(
    const std::vector<std::string>& names) {
  kvevict_observation* all =
      Keep(names.size(), kvevict_observation KVEVICT_OBSERVATION_INIT);
  for (std::size_t i = 0; i < names.size(); ++i) {
    Line& l = Struct("observation", names[i]);
    all[i].layer = l.Count("layer");
    all[i].inputs = Inputs(l.Text("inputs"));
  }
  return all;
}

const kvevict_evict_options* Objects::EvictOptions(const std::string& name) {
  if (name.empty()) return nullptr;
  Line& l = Struct("evict_options", name);
  kvevict_evict_options o = KVEVICT_EVICT_OPTIONS_INIT;
  o.by_table = l.Count("by_table");
  o.protected_positions =
      Numbers<int32_t>(l, "protected_positions", &o.protected_positions_len);
  const std::vector<std::string> inputs = l.List("inputs");
  o.inputs = InputsOf(inputs);
  o.inputs_len = inputs.size();
  const std::string undo = l.Text("undo");
  o.undo = Data<void>(undo);
  o.undo_bytes = Length(undo);
  const std::vector<std::string> ranges = l.List("ranges");
  o.ranges = Ranges(ranges);
  o.ranges_len = ranges.size();
  const std::vector<std::string> destinations = l.List("destinations");
  o.destinations = Views(destinations);
  o.destinations_len = destinations.size();
  return Keep(1, o);
}

const kvevict_position_lists* Objects::PositionLists(
    const std::vector<std::string>& names) {
  if (names.empty()) return nullptr;
  kvevict_position_lists* all =
      Keep(names.size(), kvevict_position_lists KVEVICT_POSITION_LISTS_INIT);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == "-") continue;
    // Lists are written one after another, as in 1,2/3: count and stride are
    // those of the longest.
    Line& l = Struct("position_lists", names[i]);
    const std::vector<std::string> lists = l.List("positions", '/');
    uint32_t* counts = Keep(lists.size(), 0u);
    for (std::size_t j = 0; j < lists.size(); ++j) {
      counts[j] = static_cast<uint32_t>(Split(lists[j], ',').size());
      all[i].count = std::max(all[i].count, counts[j]);
    }
    int32_t* positions = Keep(lists.size() * all[i].count, int32_t());
    for (std::size_t j = 0; j < lists.size(); ++j) {
      const std::vector<std::string> numbers = Split(lists[j], ',');
      for (std::size_t e = 0; e < numbers.size(); ++e) {
        positions[j * all[i].count + e] = std::stoi(numbers[e]);
      }
    }
    all[i].n_lists = static_cast<uint32_t>(lists.size());
    all[i].positions = positions;
    all[i].positions_len = lists.size() * all[i].count;
    all[i].counts = counts;
  }
  return all;
}

const kvevict_fork_options* Objects::ForkOptions(const std::string& name) {
  if (name.empty()) return nullptr;
  Line& l = Struct("fork_options", name);
  kvevict_fork_options o = KVEVICT_FORK_OPTIONS_INIT;
  if (l.Has("plan")) o.plan = plans.Get(l.Text("plan"));
  const std::string memory = l.Text("memory");
  o.memory = Data<void>(memory);
  o.memory_bytes = Length(memory);
  return Keep(1, o);
}

const kvevict_paged_cache_options* Objects::PagedCacheOptions(
    const std::string& name) {
  Line& l = Struct("paged_cache_options", name);
  kvevict_paged_cache_options o = KVEVICT_PAGED_CACHE_OPTIONS_INIT;
  o.n_blocks = l.Count("n_blocks");
  o.block_size = l.Count("block_size");
  o.layout = l.Number<kvevict_block_layout>("layout");
  const std::string memory = l.Text("memory");
  o.memory = Data<void>(memory);
  o.memory_bytes = Length(memory);
  o.number_dtype = l.Number<kvevict_dtype>("number_dtype");
  o.group_tokens = l.Count("group_tokens");
  o.recent_tokens = l.Count("recent_tokens");
  o.recent_dtype = l.Number<kvevict_dtype>("recent_dtype");
  return Keep(1, o);
}

const kvevict_paged_rows* Objects::PagedRows(
    const std::vector<std::string>& names) {
  kvevict_paged_rows* all =
      Keep(names.size(), kvevict_paged_rows KVEVICT_PAGED_ROWS_INIT);
  for (std::size_t i = 0; i < names.size(); ++i) {
    Line& l = Struct("paged_rows", names[i]);
    all[i].layer = l.Count("layer");
    all[i].first_slot = l.Count("first_slot");
    all[i].n_tokens = l.Count("n_tokens");
    if (const auto* k = Plane(l.Text("k"))) all[i].k = *k;
    if (const auto* v = Plane(l.Text("v"))) all[i].v = *v;
  }
  return all;
}

}  // namespace transcript
