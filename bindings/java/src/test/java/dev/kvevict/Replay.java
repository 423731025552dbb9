package dev.kvevict;

import static dev.kvevict.ReplayFields.apply;

import dev.kvevict.Transcript.Line;
import java.nio.ByteBuffer;
import java.nio.LongBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** The structs of a transcript as values of Java. */
class Replay {
  final Transcript.Names names = new Transcript.Names();

  Plane plane(String name) {
    if (name.isEmpty()) {
      return null;
    }
    Line l = names.struct("plane", name);
    DType dtype = l.constant(DType.class, "dtype");
    long offset = l.number("offset");
    int headDim = l.count("head_dim");
    int rowBytes = l.count("row_bytes");
    long token = l.number("token_stride_bytes");
    long head = l.number("head_stride_bytes");
    Transcript.Data data = names.buffers.get(l.text("data"));
    Plane plane = data == null ? Plane.at(offset, dtype, headDim, token, head)
        : dtype == DType.OPAQUE ? Plane.opaque(data.typed(), rowBytes, token, head)
        : Plane.of(data.typed(), dtype, headDim, 0, 0).withTokenStride(token).withHeadStride(head).from(offset);
    if (l.has("address_table")) {
      LongBuffer table = names.buffers.get(l.text("address_table")).bytes.asLongBuffer();
      plane = plane.withAddressTable(table);
    }
    return apply(l, plane);
  }

  View view(String name) {
    if (name.equals("-")) {
      return null;
    }
    if (names.handles.get(name) instanceof View lent) {
      return lent;
    }
    Line l = names.struct("view", name);
    View.Builder view = View.builder(l.count("n_kv_heads")).k(plane(l.text("k"))).v(plane(l.text("v")));
    l.each("companions", this::plane).forEach(view::companion);
    if (l.has("block_table")) {
      view.paged(l.count("block_size"), names.ints(l.text("block_table")));
    }
    return apply(l, view).build();
  }

  SignalInputs inputs(String name) {
    if (name.equals("-")) {
      return null;
    }
    if (name.isEmpty()) {
      return SignalInputs.NONE;
    }
    Line l = names.struct("signal_inputs", name);
    return apply(l, SignalInputs.NONE).withQueries(plane(l.text("queries")))
        .withRowLse(plane(l.text("row_lse"))).withScores(plane(l.text("scores")))
        .withAttentionSums(plane(l.text("attention_sums")))
        .withQueryStatistics(plane(l.text("query_mean")), plane(l.text("query_covariance")))
        .withKeyFilter(plane(l.text("key_filter"))).withTokenWeights(plane(l.text("token_weights")))
        .withQueryCenters(plane(l.text("query_centers")))
        .withReferenceQueries(plane(l.text("reference_queries")))
        .withReferencePositions(l.has("reference_positions") ? names.ints(l.text("reference_positions")) : null);
  }

  Geometry geometry(String name) {
    Line l = names.struct("geometry", name);
    List<Line> layers = l.each("layers", layer -> names.struct("layer_geometry", layer));
    Geometry geometry = layers.size() == 1
        ? apply(layers.get(0), Geometry.builder().layers(l.count("n_layers")).maxTokens(l.count("max_tokens"))).build()
        : Geometry.of(l.count("max_tokens"), layers.stream()
            .map(each -> apply(each, LayerGeometry.builder()).build()).toList());
    Check.equal(l.count("n_layers"), geometry.layerCount());
    return geometry
        .withRope(l.constant(RopeLayout.class, "rope_layout"), names.floatArray(l.text("rope_inv_freq")))
        .withSinkLogits(names.floatArray(l.text("sink_logits")));
  }

  PlanOptions planOptions(String name) {
    if (name.isEmpty()) {
      return PlanOptions.NONE;
    }
    Line l = names.struct("plan_options", name);
    return apply(l, PlanOptions.NONE).withHeadBudgets(l.counts("head_budgets"))
        .withLayerBudgets(l.list("layer_budgets").stream().mapToDouble(Double::parseDouble).toArray());
  }

  ScoreJob scoreJob(String name) {
    Line l = names.struct("score_job", name);
    ScoreJob job = apply(l, ScoreJob.of(l.count("layer"), l.count("n_tokens"), names.floats(l.text("scores"))))
        .withInputs(inputs(l.text("inputs")));
    job = l.has("token_counts") ? job.withTokenCounts(names.ints(l.text("token_counts"))) : job;
    return l.has("view") ? job.withView(view(l.text("view"))) : job;
  }

  KeepLists keepLists(String name) {
    Line l = names.struct("keep_lists", name);
    KeepLists lists = apply(l, KeepLists.of(names.ints(l.text("slots")), l.count("n_lists"), l.count("count")));
    return l.has("counts") ? lists.withCounts(names.ints(l.text("counts"))) : lists;
  }

  TokenRange range(String name) {
    Line l = names.struct("token_range", name);
    return TokenRange.of(l.count("first"), l.count("end"), l.count("rank"));
  }

  Edit edit(String name) {
    Line l = names.struct("edit", name);
    int first = l.count("first");
    int end = l.count("end");
    Edit edit = l.constant(EditKind.class, "kind") == EditKind.MOVE ? Edit.move(first, end, l.count("to"))
        : Edit.replace(first, end, l.count("n_new"));
    return apply(l, edit);
  }

  SelectOptions selectOptions(String name) {
    Line l = names.struct("select_options", name);
    SelectOptions options = apply(l, SelectOptions.of(l.count("n_tokens"))).withProtected(l.counts("protected_slots"))
        .withRanges(l.each("ranges", this::range).toArray(new TokenRange[0]));
    options = l.has("scores") ? options.withScores(names.floats(l.text("scores"))) : options;
    return l.has("token_counts") ? options.withTokenCounts(names.ints(l.text("token_counts"))) : options;
  }

  Move move(String name) {
    Line l = names.struct("move", name);
    View view = view(l.text("view"));
    View to = !l.has("destination") ? null
        : l.text("destination").equals(l.text("view")) ? view : view(l.text("destination")); // a view is itself alone
    Move move;
    if (l.has("keep")) {
      move = Move.of(view, l.count("n_tokens"), keepLists(l.text("keep")));
      move = to == null ? move : move.withDestination(to);
    } else {
      move = Move.all(view, l.count("n_tokens"), to);
    }
    move = l.has("token_counts") ? move.withTokenCounts(names.ints(l.text("token_counts"))) : move;
    return apply(l, move);
  }

  Rotation rotation(String name) {
    Line l = names.struct("rotation", name);
    Rotation rotation = apply(l, Rotation.of(l.count("layer"), view(l.text("view")), l.count("n_tokens"),
        names.ints(l.text("offsets"))));
    return l.has("token_counts") ? rotation.withTokenCounts(names.ints(l.text("token_counts"))) : rotation;
  }

  Attention attention(String name) {
    Line l = names.struct("attention_job", name);
    Attention job = apply(l, Attention.of(view(l.text("view")), l.count("n_tokens"), l.count("n_q_heads"),
        l.count("n_queries"), plane(l.text("queries")), plane(l.text("out"))))
        .withRowLse(plane(l.text("row_lse"))).withAttentionSums(plane(l.text("attention_sums")));
    job = l.has("sink_logits") ? job.withSinkLogits(names.floats(l.text("sink_logits"))) : job;
    return l.has("token_counts") ? job.withTokenCounts(names.ints(l.text("token_counts"))) : job;
  }

  LayerScores layerScores(String name) {
    Line l = names.struct("layer_scores", name);
    Check.equal(l.count("n_rows") * l.count("n_tokens"), names.floats(l.text("scores")).capacity());
    return LayerScores.of(names.floats(l.text("scores")), l.count("n_rows"));
  }

  MassOptions massOptions(String name) {
    Line l = names.struct("mass_options", name);
    return apply(l, MassOptions.of(l.real("mass")));
  }

  /** What layers show, null for those that show nothing. */
  List<SignalInputs> shown(Line line) {
    List<SignalInputs> all = new ArrayList<>();
    for (String name : line.list("observations")) {
      Line l = names.struct("observation", name);
      while (all.size() < l.count("layer")) {
        all.add(null);
      }
      all.add(inputs(l.text("inputs")));
    }
    return all;
  }

  /** Ends a list of what layers show with nothing for the others. */
  List<SignalInputs> shown(Line line, int layerCount) {
    List<SignalInputs> all = shown(line);
    while (all.size() < layerCount) {
      all.add(null);
    }
    return all;
  }

  EvictOptions evictOptions(String name) {
    if (name.isEmpty()) {
      return EvictOptions.NONE;
    }
    Line l = names.struct("evict_options", name);
    EvictOptions options = EvictOptions.NONE.withProtected(l.counts("protected_positions"))
        .withRanges(l.each("ranges", this::range).toArray(new TokenRange[0]))
        .withDestinations(l.each("destinations", this::view));
    options = l.has("inputs") ? options.withInputs(l.each("inputs", this::inputs)) : options;
    options = l.has("undo") ? options.withUndo(names.buffers.get(l.text("undo")).bytes) : options;
    return apply(l, options);
  }

  int[][] positionLists(String name) {
    return name.equals("-") ? null
        : Arrays.stream(names.struct("position_lists", name).text("positions").split("/"))
            .map(list -> Arrays.stream(list.split(",")).mapToInt(Integer::parseInt).toArray())
            .toArray(int[][]::new);
  }

  PagedCacheOptions pagedCacheOptions(String name) {
    Line l = names.struct("paged_cache_options", name);
    PagedCacheOptions options = apply(l, PagedCacheOptions.of(l.count("n_blocks")));
    return l.has("memory") ? options.withMemory(names.buffers.get(l.text("memory")).bytes) : options;
  }

  PagedRows pagedRows(String name) {
    Line l = names.struct("paged_rows", name);
    return PagedRows.of(l.count("layer"), l.count("first_slot"), l.count("n_tokens"), plane(l.text("k")),
        plane(l.text("v")));
  }

  /** The bytes of a buffer that a key names; null without the key. */
  ByteBuffer memory(Line line, String key) {
    return line.has(key) ? names.buffers.get(line.text(key)).bytes : null;
  }
}
