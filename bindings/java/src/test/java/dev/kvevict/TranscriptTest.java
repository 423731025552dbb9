package dev.kvevict;

import static dev.kvevict.Transcript.escaped;
import static dev.kvevict.Transcript.joined;
import static dev.kvevict.Transcript.listed;
import static dev.kvevict.Transcript.scratch;
import static dev.kvevict.Transcript.words;

import dev.kvevict.Transcript.Line;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Makes the calls of a transcript, each the C function of that name, and compares what comes out. */
final class TranscriptTest extends Replay {
  private interface Call {
    /** What comes out, as the transcript has it. */
    String make(Line line) throws Exception;
  }

  private interface Action {
    void run() throws Exception;
  }

  private final Map<String, Call> calls = new HashMap<>();
  private final Map<Sequence, Integer> layerCounts = new HashMap<>();

  private TranscriptTest() {
    addTables();
    addPlans();
    addDoors();
    addSequences();
    addBatches();
    addCalibrations();
    addPaged();
  }

  static void everyCallGivesWhatItGaveInC() throws Exception {
    String file = System.getenv("KVEVICT_TEST_TRANSCRIPT");
    if (file == null) {
      throw new Check.Skipped("KVEVICT_TEST_TRANSCRIPT names no transcript");
    }
    List<String> lines = Files.readAllLines(Path.of(file));
    List<String> wrong = new ArrayList<>();
    TranscriptTest replay = null;
    int made = 0;
    for (int i = 0; i < lines.size(); ++i) {
      Line line = new Line(lines.get(i));
      if (line.name.equals("script")) {
        finish(replay);
        replay = new TranscriptTest();
      } else if (replay.calls.containsKey(line.name)) {
        String expected = replay.expected(lines.get(++i));
        String is = replay.make(line);
        if (!is.equals(expected)) {
          wrong.add(line.text + "\nexpected " + expected + "\ngot      " + is);
        }
        line.checkUsed();
        ++made;
      } else {
        replay.names.define(line);
      }
    }
    Check.that(wrong.isEmpty(), wrong.size() + " calls:\n" + String.join("\n", wrong));
    finish(replay);
    Check.that(made >= 300, made + " calls");
  }

  /** Every argument has been given to the library. */
  private static void finish(TranscriptTest replay) throws Exception {
    if (replay == null) {
      return;
    }
    for (Line line : replay.names.structs.values()) {
      line.checkUsed();
    }
    for (Object handle : replay.names.handles.values()) {
      if (handle instanceof AutoCloseable closeable) {
        closeable.close();
      }
    }
  }

  /** An error has the binding's own names. */
  private String expected(String text) {
    if (text.startsWith("=")) {
      return text;
    }
    Line failed = new Line(text);
    return "! " + new KvEvictException(failed.count("status"), failed.text("message")).getMessage();
  }

  private String make(Line line) throws Exception {
    try {
      String out = calls.get(line.name).make(line);
      return "=" + out + names.changed();
    } catch (KvEvictException e) {
      return "! " + e.getMessage() + names.changed();
    } catch (IllegalArgumentException | NullPointerException e) {
      return e.toString();
    }
  }

  private void add(String name, Call call) {
    calls.put(name, call);
  }

  /** A call from which nothing comes out. */
  private void act(String name, java.util.function.Function<Line, Action> call) {
    calls.put(name, line -> {
      call.apply(line).run();
      return "";
    });
  }

  /** A call that makes what the line names. */
  private void create(String name, Call call, java.util.function.Function<Line, Object> create) {
    calls.put(name, line -> {
      Object made = create.apply(line);
      names.handles.put(line.text("name"), made);
      return call == null ? "" : call.make(line);
    });
  }

  private static String result(String key, Object value) {
    return " " + key + "=" + escaped(joined(value));
  }

  private Context context(Line l) {
    return names.handle(Context.class, l, "context");
  }

  private Policy policy(Line l) {
    return names.handle(Policy.class, l, "policy");
  }

  private Plan plan(Line l) {
    return names.handle(Plan.class, l, "plan");
  }

  private Sequence sequence(Line l) {
    return names.handle(Sequence.class, l, "sequence");
  }

  private PagedSequence cached(Line l) {
    return names.handle(PagedSequence.class, l, "cached");
  }

  private void addTables() {
    add("version", l -> result("version", KvEvict.version()));
    add("abi_version", l -> result("version", KvEvict.abiVersion()));
    act("device_check", l -> () -> KvEvict.checkDevice(l.constant(Device.class, "device")));
    add("simd_target_at", l -> result("target", KvEvict.simdTargets().get(l.count("index"))));
    add("reason_text", l -> result("text", KvEvict.reasonText(l.constant(Reason.class, "reason"))));
    add("auto_budget", l -> result("budget",
        KvEvict.autoBudget(l.count("max_tokens"), l.number("full_cache_bytes"))));
    add("dtype_at", l -> {
      DTypeInfo d = KvEvict.dtypes().get(l.count("index"));
      return result("name", d.name()) + " numbers=" + joined(d.dtype(), d.elementBytes(), d.canMove(),
          d.canScore(), d.canRotate(), d.blockElements(), d.blockBytes(), d.takesScale(), d.takesMinimum());
    });
    add("policy_at", l -> {
      PolicyInfo p = KvEvict.policies().get(l.count("index"));
      return result("name", p.name()) + result("signal", p.signal()) + result("summary", p.summary())
          + result("trigger", p.trigger()) + result("paper", p.paper())
          + result("defaults", p.defaults());
    });
    add("preset_at", l -> {
      PresetInfo p = KvEvict.presets().get(l.count("index"));
      return result("name", p.name()) + result("policy_text", p.policyText())
          + result("reproduces", p.reproduces());
    });
    add("parameter_at", l -> {
      ParameterInfo p = (l.has("policy") ? KvEvict.parameters(l.text("policy")) : KvEvict.parameters())
          .get(l.count("index"));
      return result("key", p.key()) + result("type", p.type()) + result("words", p.words())
          + result("least", Double.doubleToRawLongBits(p.least()))
          + result("most", Double.doubleToRawLongBits(p.most()))
          + " flags=" + joined(p.excludesLeast(), p.takesZero()) + result("default", p.defaultText());
    });
    create("policy_create", l -> result("text", names.handles.get(l.text("name"))),
        l -> Policy.parse(l.text("text")));
    add("policy_set", l -> {
      Policy policy = policy(l).with(l.text("key") + "=" + l.text("value"));
      names.handles.put(l.text("policy"), policy);
      return result("text", policy);
    });
    act("policy_validate", l -> () -> policy(l).validate());
    add("policy_resolve", l -> {
      ResolvedPolicy p = policy(l).resolve(l.count("n_context"));
      return " resolved=" + joined(p.budget(), p.sink(), p.recent(), p.selected(), p.queryRows(),
          p.scoresAreMass());
    });
    add("policy_layer_budgets", l ->
        " budgets=" + listed(policy(l).layerBudgets(l.count("n_context"), l.count("n_layers"))));
    add("policy_need", l -> result("need", policy(l).needOf(l.constant(Input.class, "input"))));
  }

  private void addPlans() {
    create("context_create", null, l -> Context.create());
    act("context_destroy", l -> context(l)::close);
    act("context_prepare", l -> () -> {
      if (l.has("plan")) {
        context(l).prepare(plan(l));
      } else {
        context(l).prepare();
      }
    });
    create("plan_create", null, l -> context(l).newPlan(
        geometry(l.text("geometry")), policy(l), planOptions(l.text("options"))));
    act("plan_destroy", l -> plan(l)::close);
    add("plan_layer", l -> {
      LayerInfo i = plan(l).layer(l.count("layer"));
      return " info=" + joined(i.cache(), i.queryHeads(), i.kvHeads(), i.listCount(), i.firstList());
    });
    add("plan_capabilities", l -> {
      Capabilities c = plan(l).capabilities(l.count("layer"));
      return " can=" + joined(c.canMove(), c.canScore(), c.canRotate(), c.moveReason(), c.scoreReason(),
          c.rotateReason(), c.needsScore(), c.tableBlock(), c.needsHeadTables(), c.needsLayerTables());
    });
    add("plan_workspace", l -> size(
        plan(l).workspace(l.constant(Operation.class, "operation"), l.count("n_tokens"))));
    add("plan_selection", l -> {
      Selection s = plan(l).selection(l.count("layer"), l.count("n_tokens"), l.count("n_seen"));
      Struct o = new Struct(Abi.SelectOptions.SIZEOF);
      s.options().write(Device.CPU, s.listCount(), o);
      return " selection=" + joined(o.intAt(Abi.SelectOptions.N_TOKENS), o.intAt(Abi.SelectOptions.N_ROWS),
          o.intAt(Abi.SelectOptions.REDUCE), o.intAt(Abi.SelectOptions.N_SINK),
          o.intAt(Abi.SelectOptions.N_RECENT), o.intAt(Abi.SelectOptions.TIE),
          o.intAt(Abi.SelectOptions.SELECT_BLOCK), s.listCount(), s.count());
    });
    add("plan_layer_budgets", l -> {
      int[] budgets = plan(l).layerBudgets(l.count("n_tokens"));
      Check.equal(l.count("n_layers"), budgets.length);
      return " budgets=" + listed(budgets);
    });
  }

  private static String size(Workspace w) {
    return " workspace=" + joined(w.alignment(), w.leastBytes(), w.bestBytes());
  }

  private void addDoors() {
    act("view_validate", l -> () -> view(l.text("view")).validate(l.count("n_tokens")));
    act("score", l -> () -> plan(l).score(l.each("jobs", this::scoreJob), scratch(l)));
    act("select", l -> () -> context(l).select(
        selectOptions(l.text("options")), keepLists(l.text("keep")), scratch(l)));
    add("select_workspace", l -> size(
        context(l).selectWorkspace(l.count("n_tokens"), l.count("n_lists"))));
    act("compact", l -> () -> {
      ByteBuffer scratch = scratch(l);
      if (scratch == null) {
        context(l).compact(l.each("moves", this::move));
      } else {
        context(l).compact(
            l.each("moves", this::move), NativeSupport.addressOf(scratch), scratch.capacity(), 0);
      }
    });
    add("compact_workspace", l -> size(context(l).compactWorkspace(l.each("moves", this::move))));
    act("reorder", l -> () -> context(l).reorder(l.each("moves", this::move), scratch(l)));
    add("reorder_workspace", l -> size(context(l).reorderWorkspace(l.each("moves", this::move))));
    act("rotate", l -> () -> plan(l).rotate(l.each("rotations", this::rotation)));
    act("attend", l -> () -> context(l).attend(l.each("jobs", this::attention), scratch(l)));
    add("attend_workspace", l -> size(context(l).attendWorkspace(l.each("jobs", this::attention))));
    add("budget_for_mass", l -> " budgets=" + listed(context(l).budgetForMass(
        l.each("layers", this::layerScores), massOptions(l.text("options")))));
  }

  private void addSequences() {
    create("sequence_create", null, l -> {
      Sequence made = plan(l).newSequence();
      layerCounts.put(made, plan(l).geometry().layerCount());
      return made;
    });
    act("sequence_destroy", l -> sequence(l)::close);
    act("sequence_reset", l -> sequence(l)::reset);
    act("sequence_begin_observing", l -> () -> {
      if (l.has("memory")) {
        sequence(l).beginObserving(memory(l, "memory"));
      } else {
        sequence(l).beginObserving();
      }
    });
    act("sequence_end_observing", l -> sequence(l)::endObserving);
    act("sequence_observe", l -> () -> {
      sequence(l).observe(shown(l, layerCounts.get(sequence(l))), l.count("n_rows"), l.count("first_position"));
    });
    act("sequence_append", l -> () -> sequence(l).append(l.count("n_tokens")));
    act("sequence_end_prompt", l -> sequence(l)::endPrompt);
    act("sequence_trim_to", l -> () -> sequence(l).trimTo(l.count("new_length")));
    act("sequence_replayed", l -> () -> sequence(l).replayed(l.count("n_tokens")));
    act("sequence_start", l -> () -> {
      if (l.has("layers")) {
        sequence(l).start(l.each("layers", this::positionLists), l.count("n_tokens"));
      } else {
        sequence(l).start(l.count("n_tokens"));
      }
    });
    create("sequence_fork", null, l -> {
      Line o = l.has("options") ? names.struct("fork_options", l.text("options")) : l;
      Sequence fork = o.has("plan") ? sequence(l).fork(plan(o))
          : o.has("memory") ? sequence(l).fork(memory(o, "memory")) : sequence(l).fork();
      layerCounts.put(fork, layerCounts.get(sequence(l)));
      return fork;
    });
    act("sequence_save", l -> () -> bytes(l.text("name"), sequence(l).save()));
    act("sequence_load", l -> () -> sequence(l).load(bytes(l)));
    add("sequence_evict", l -> " report=" + report(
        sequence(l).evict(l.each("views", this::view), evictOptions(l.text("options")), scratch(l))));
    add("sequence_report", l -> {
      List<ListReport> lists = sequence(l).listReports();
      Check.equal(l.count("n_lists"), lists.size());
      return " report=" + report(sequence(l).report()) + " lists=" + listed(lists.stream()
          .map(list -> joined(list.layer(), list.tokensBefore(), list.tokensAfter(), list.massKept(),
              list.largestMassEvicted())).toList());
    });
    add("sequence_stored_length",
        l -> result("length", sequence(l).storedLength(l.count("layer"), l.count("kv_head"))));
    add("sequence_logical_length", l -> result("length", sequence(l).logicalLength()));
    add("sequence_exact_prefix", l -> result("length", sequence(l).exactPrefix()));
    add("sequence_keep_positions",
        l -> " positions=" + listed(sequence(l).keepPositions(l.count("layer"), l.count("kv_head"))));
    add("sequence_position_of_slot", l -> result("position",
        sequence(l).positionOfSlot(l.count("layer"), l.count("kv_head"), l.count("slot"))));
    add("sequence_slot_of_position", l -> result("slot",
        sequence(l).slotOfPosition(l.count("layer"), l.count("kv_head"), l.count("position"))));
    add("sequence_kept_slots", l -> " slots=" + listed(sequence(l).keptSlots(l.each("views", this::view))));
    add("sequence_undo_bytes", l -> result("bytes", sequence(l).undoBytes(l.each("views", this::view))));
    act("sequence_undo", l -> () -> sequence(l).undo(l.each("views", this::view), memory(l, "undo")));
    act("sequence_edit", l -> () -> sequence(l).edit(l.each("views", this::view), edit(l.text("edit"))));
    add("sequence_memory_of", l -> {
      SequenceMemory m = sequence(l).memoryOf(l.count("layer"));
      StringBuilder text = new StringBuilder(" counts=").append(
          joined(m.listCount(), m.listedCount(), m.sumHeads(), m.sumStride()));
      text.append(" lengths=").append(listed(words(m.lengths(), 2 * m.listCount())));
      int[] counts = words(m.listedCounts(), m.listCount());
      for (int i = 0; i < m.listCount(); ++i) {
        int n = counts.length == 0 ? m.listedCount() : counts[i];
        text.append(" positions=").append(listed(words(m.positions() + 4L * i * m.listedCount(), n)));
      }
      int[] sums = words(m.sums(), m.sumHeads() * (int) m.sumStride());
      return text.append(" listed_counts=").append(listed(counts)).append(" sums=")
          .append(listed(java.util.Arrays.stream(sums).mapToObj(Integer::toUnsignedString).toList())).toString();
    });
  }

  private static String report(EvictReport r) {
    return joined(r.evicted(), r.bytesBefore(), r.bytesAfter(), r.tokensBefore(), r.tokensAfter(),
        r.blocksFreed(), r.reason(), r.weakFits());
  }

  private static String reports(List<EvictReport> all) {
    return " reports=" + listed(all.stream().map(TranscriptTest::report).toList());
  }

  private void addBatches() {
    act("sequences_append", l -> () -> Batch.append(l.each("items", name -> {
      Line item = names.struct("sequence_tokens", name);
      return Batch.Tokens.of(sequence(item), item.count("n_tokens"));
    }), 0));
    act("sequences_trim_to", l -> () -> Batch.trimTo(l.each("items", name -> {
      Line item = names.struct("sequence_length", name);
      return Batch.Length.of(sequence(item), item.count("new_length"));
    }), 0));
    act("sequences_observe", l -> () -> Batch.observe(l.each("items", name -> {
      Line item = names.struct("sequence_observations", name);
      return Batch.Observations.of(sequence(item), shown(item, layerCounts.get(sequence(item))), item.count("n_rows"),
          item.count("first_position"));
    }), 0));
    add("sequences_workspace", l -> size(Batch.workspace(l.each("items",
        name -> sequence(names.struct("sequence_eviction", name))))));
    add("sequences_evict", l -> reports(Batch.evict(l.each("items", name -> {
      Line item = names.struct("sequence_eviction", name);
      return Batch.Eviction.of(sequence(item), item.each("views", this::view))
          .withOptions(evictOptions(item.text("options")));
    }), scratch(l))));
  }

  private void addCalibrations() {
    create("calibration_create", null, l -> plan(l).newCalibration(l.count("has_covariances") != 0));
    act("calibration_destroy", l -> calibration(l)::close);
    act("calibration_observe", l -> () -> calibration(l).observe(l.count("layer"),
        plane(l.text("queries")), l.count("n_rows"), l.count("first_position")));
    add("calibration_rows", l -> result("rows", calibration(l).rowCount(l.count("layer"))));
    act("calibration_query_centers", l -> {
      String name = l.text("name");
      int length = l.count("length");
      return () -> floats(name, calibration(l).queryCenters(l.count("layer")), length);
    });
    act("calibration_query_mean", l -> {
      String name = l.text("name");
      int length = l.count("length");
      int products = l.count("covariance_length");
      return () -> {
        int layer = l.count("layer");
        int first = l.count("first_position");
        int n = l.count("n_positions");
        float[] mean = calibration(l).queryMean(layer, first, n);
        float[] covariance = products == 0 ? new float[0] : calibration(l).queryCovariance(layer, first, n);
        floats(name, mean, length);
        floats(name + "_covariance", covariance, products);
      };
    });
    act("calibration_save", l -> () -> bytes(l.text("name"), calibration(l).save()));
    act("calibration_load", l -> () -> calibration(l).load(bytes(l)));
  }

  private Calibration calibration(Line l) {
    return names.handle(Calibration.class, l, "calibration");
  }

  /** Names what a call returned. */
  private void bytes(String name, byte[] data) {
    Transcript.Data saved = new Transcript.Data("u8", data.length);
    saved.bytes.put(0, data);
    names.buffers.put(name, saved);
  }

  private byte[] bytes(Line l) {
    byte[] data = new byte[memory(l, "data").capacity()];
    memory(l, "data").get(0, data);
    return data;
  }

  private void floats(String name, float[] values, int length) {
    Check.equal(length, values.length);
    Transcript.Data made = new Transcript.Data("f32", length);
    made.bytes.asFloatBuffer().put(values);
    names.buffers.put(name, made);
  }

  private void addPaged() {
    add("paged_cache_bytes",
        l -> result("bytes", plan(l).pagedCacheBytes(pagedCacheOptions(l.text("options")))));
    create("paged_cache_create", null, l -> plan(l).newPagedCache(pagedCacheOptions(l.text("options"))));
    act("paged_cache_destroy", l -> names.handle(PagedCache.class, l, "cache")::close);
    add("paged_cache_get_usage", l -> {
      PagedCacheUsage u = names.handle(PagedCache.class, l, "cache").usage();
      return " usage=" + joined(u.sequenceCount(), u.blockCount(), u.freeCount(), u.sharedCount(),
          u.slotCount(), u.bytes(), u.bytesInUse(), u.f32Bytes());
    });
    create("paged_sequence_create", null, l -> names.handle(PagedCache.class, l, "cache").newSequence());
    create("paged_sequence_fork", null, l -> cached(l).fork());
    act("paged_sequence_destroy", l -> cached(l)::close);
    act("paged_sequence_append", l -> () -> cached(l).append(l.count("n_tokens")));
    act("paged_sequence_truncate", l -> () -> cached(l).truncate(l.count("new_length")));
    act("paged_sequence_fit", l -> () -> cached(l).fit(names.handle(Sequence.class, l, "stored")));
    add("paged_sequence_length", l -> result("slots", cached(l).length(l.count("layer"))));
    create("paged_sequence_view", null, l -> cached(l).view(l.count("layer")));
    act("paged_sequence_own", l -> () -> cached(l).own(l.count("first_slot")));
    act("paged_sequence_write", l -> () -> cached(l).write(l.each("rows", this::pagedRows)));
    act("paged_sequence_read", l -> () -> cached(l).read(l.each("rows", this::pagedRows)));
    act("paged_edit", l -> () -> cached(l).edit(sequence(l), edit(l.text("edit"))));
    add("paged_evict", l -> reports(Batch.evictPaged(l.each("items", name -> {
      Line item = names.struct("paged_eviction", name);
      return Batch.PagedEviction.of(cached(item), sequence(item))
          .withOptions(evictOptions(item.text("options")));
    }), scratch(l))));
    add("sequence_prefill", l -> {
      Line o = names.struct("prefill_options", l.text("options"));
      List<String> chunks = new ArrayList<>();
      Prefill prompt = Prefill.of(o.count("n_tokens"), o.count("chunk"),
          chunk -> chunks.add(joined(chunk.firstToken(), chunk.tokenCount())))
          .withOptions(evictOptions(o.text("evict"))).withEvictEachChunk(o.flag("evict_each_chunk"));
      PrefillReport r = o.has("cached") ? cached(o).prefill(prompt, sequence(l), scratch(o.count("workspace_bytes")))
          : sequence(l).prefill(prompt, o.each("views", this::view), scratch(o.count("workspace_bytes")));
      return " chunks=" + listed(chunks) + " report=" + joined(r.chunks(), r.evictions(), r.peakTokens(),
          r.peakBytes(), r.endBytes());
    });
  }
}
