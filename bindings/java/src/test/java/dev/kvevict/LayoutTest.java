package dev.kvevict;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.RecordComponent;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.function.Function;

/** Each field is set and read at its place, and begins as the library says. */
final class LayoutTest {
  private LayoutTest() {}

  /** Returns the offset of a field of {@link Abi} by its name in Java: listCount is N_LISTS. */
  private static int offset(Class<?> struct, String name) throws ReflectiveOperationException {
    String field = name.replaceAll("([A-Z])", "_$1").toUpperCase(Locale.ROOT)
        .replace("QUERY_HEADS", "Q_HEADS");
    String counted = field.replaceFirst("_COUNT$", "");
    List<String> spellings = List.of(field, "N_" + counted, "N_" + counted + "S");
    for (Field candidate : struct.getDeclaredFields()) {
      if (spellings.contains(candidate.getName())) {
        return candidate.getInt(null);
      }
    }
    throw new NoSuchFieldException(struct + " has none of " + spellings);
  }

  static void recordsReadTheirFields() throws Exception {
    reads(Abi.ResolvedPolicy.class, Records.ResolvedPolicy.class, Records.ResolvedPolicy::read);
    reads(Abi.GpuInfo.class, Records.GpuInfo.class, Records.GpuInfo::read);
    reads(Abi.DTypeInfo.class, Records.DTypeInfo.class, Records.DTypeInfo::read);
    reads(Abi.PolicyInfo.class, Records.PolicyInfo.class, Records.PolicyInfo::read);
    reads(Abi.PresetInfo.class, Records.PresetInfo.class, Records.PresetInfo::read);
    reads(Abi.Capabilities.class, Records.Capabilities.class, Records.Capabilities::read);
    reads(Abi.EvictReport.class, Records.EvictReport.class,
        in -> Records.EvictReport.read(in, 0));
    reads(Abi.ListReport.class, Records.ListReport.class,
        in -> Records.ListReport.read(in, 0));
    reads(Abi.LayerInfo.class, Records.LayerInfo.class, Records.LayerInfo::read);
    reads(Abi.Workspace.class, Records.Workspace.class,
        in -> Records.Workspace.read(in, Device.CPU));
    reads(Abi.SequenceMemory.class, Records.SequenceMemory.class, Records.SequenceMemory::read);
  }

  /** Puts one field at a time at its offset: the component of that name sees it, no other. */
  private static <R extends Record> void reads(
      Class<?> struct, Class<R> type, Function<Struct, R> read) throws Exception {
    int size = offset(struct, "sizeof");
    R zero = read.apply(new Struct(size));
    for (RecordComponent component : type.getRecordComponents()) {
      if (component.getType() == Device.class) {
        continue; // not of the struct
      }
      Struct memory = new Struct(size);
      try (Struct text = Struct.text("text")) {
        put(memory, offset(struct, component.getName()), component.getType(), text);
        R seen = read.apply(memory);
        for (RecordComponent other : type.getRecordComponents()) {
          Method accessor = other.getAccessor();
          boolean same = Objects.equals(accessor.invoke(zero), accessor.invoke(seen));
          Check.equal(other.getName().equals(component.getName()), !same);
        }
      }
    }
  }

  private static void put(Struct memory, int offset, Class<?> type, Struct text) {
    if (type == long.class) {
      memory.putLong(offset, 1);
    } else if (type == String.class) {
      memory.putLong(offset, text.address);
    } else {
      memory.putInt(offset, 1);
    }
  }

  static void geometryFieldsLieWhereTheHeaderHasThem() {
    Geometry alike = Geometry.builder().layers(2).queryHeads(2).kvHeads(3).keyHeadDim(4).valueHeadDim(5)
        .queryType(DType.BF16).keyType(DType.F16).valueType(DType.F32).maxTokens(9).softmaxScale(1.5f).logitSoftcap(7)
        .build();
    LayerGeometry layer = LayerGeometry.builder().queryHeads(2).kvHeads(3).keyHeadDim(4).valueHeadDim(5)
        .queryType(DType.BF16).keyType(DType.F16).valueType(DType.F32).softmaxScale(1.5f).logitSoftcap(7).build();
    LayerGeometry window = LayerGeometry.builder().cache(LayerCache.WINDOW).build();
    String text = "LayerGeometry[cache=FULL, queryHeads=2, kvHeads=3, keyHeadDim=4, valueHeadDim=5, "
        + "queryType=BF16, keyType=F16, valueType=F32, softmaxScale=1.5, logitSoftcap=7.0]";
    Check.equal("Geometry[layerCount=2, maxTokens=9, layers=[" + text
        + "], ropeLayout=HALF, ropeInvFreq=[], sinkLogits=[]]", alike.toString());
    Check.equal(alike, Geometry.of(9, List.of(layer, layer)));
    Check.equal(List.of(layer, layer), List.of(alike.layer(0), alike.layer(1)));
    Geometry differ = Geometry.of(9, List.of(window, layer));
    Check.equal(List.of(window, layer), List.of(differ.layer(0), differ.layer(1)));
    Check.that(!alike.equals(differ), "equal");
    Check.fails(IndexOutOfBoundsException.class, () -> alike.layer(2));

    int size = Abi.Geometry.SIZEOF;
    int second = size + Abi.LayerGeometry.SIZEOF;
    for (Geometry geometry : List.of(alike, differ)) {
      Struct struct = geometry.write();
      holds(struct, Map.of(Abi.Geometry.STRUCT_SIZE, size, Abi.Geometry.N_LAYERS, 2,
          Abi.Geometry.MAX_TOKENS, 9, Abi.Geometry.LAYERS_LEN, geometry == alike ? 1 : 2));
      Check.equal(struct.address + size, struct.longAt(Abi.Geometry.LAYERS));
      int at = geometry == alike ? size : second;
      holds(struct, Map.of(at + Abi.LayerGeometry.STRUCT_SIZE, Abi.LayerGeometry.SIZEOF,
          at + Abi.LayerGeometry.CACHE, 0, at + Abi.LayerGeometry.N_Q_HEADS, 2,
          at + Abi.LayerGeometry.N_KV_HEADS, 3, at + Abi.LayerGeometry.K_HEAD_DIM, 4,
          at + Abi.LayerGeometry.V_HEAD_DIM, 5, at + Abi.LayerGeometry.Q_DTYPE, 3,
          at + Abi.LayerGeometry.K_DTYPE, 2, at + Abi.LayerGeometry.V_DTYPE, 1));
      Check.equal(1.5f, struct.floatAt(at + Abi.LayerGeometry.SOFTMAX_SCALE));
    }
    Check.equal(1, differ.write().intAt(size + Abi.LayerGeometry.CACHE));
  }

  static void viewFieldsLieWhereTheHeaderHasThem() {
    View built = View.builder(3)
        .k(Plane.at(101, DType.F16, 8, 102, 103).withElementStride(104).withBlockStride(105)
            .withGroupElements(106).withGroupStride(107).withAddressTable(108, 109).withGroupTokens(110))
        .v(Plane.opaqueAt(201, 7, 202, 203))
        .companion(Plane.opaqueAt(301, 6, 302, 303))
        .paged(16, 401, 402)
        .blockTableHeadStride(403)
        .ringSlots(404).ringFirst(405)
        .sharedBlockCount(406)
        .firstRecent(407)
        .build();
    try (View.Content content = built.content(Device.CPU)) {
      int k = Abi.View.K;
      int v = Abi.View.V;
      holds(content.struct, Map.of(k + Abi.Plane.DATA, 101, k + Abi.Plane.TOKEN_STRIDE_BYTES, 102,
          k + Abi.Plane.HEAD_STRIDE_BYTES, 103, k + Abi.Plane.ELEMENT_STRIDE_BYTES, 104,
          k + Abi.Plane.BLOCK_STRIDE_BYTES, 105, k + Abi.Plane.DTYPE, 2, k + Abi.Plane.HEAD_DIM, 8,
          k + Abi.Plane.ROW_BYTES, 0));
      holds(content.struct, Map.of(v + Abi.Plane.DATA, 201, v + Abi.Plane.DTYPE, 0,
          v + Abi.Plane.ROW_BYTES, 7, Abi.View.STRUCT_SIZE, Abi.View.SIZEOF, Abi.View.N_KV_HEADS, 3,
          Abi.View.N_COMPANIONS, 1, Abi.View.BLOCK_SIZE, 16, Abi.View.BLOCK_TABLE, 401,
          Abi.View.BLOCK_TABLE_LEN, 402));
      Check.equal(403L, content.struct.longAt(Abi.View.BLOCK_TABLE_HEAD_STRIDE));
      holds(content.struct, Map.of(k + Abi.Plane.GROUP_ELEMS, 106,
          k + Abi.Plane.GROUP_STRIDE_BYTES, 107, k + Abi.Plane.ADDRESS_TABLE, 108,
          k + Abi.Plane.ADDRESS_TABLE_LEN, 109, Abi.View.RING_SLOTS, 404,
          Abi.View.RING_FIRST, 405, Abi.View.N_SHARED_BLOCKS, 406));
      holds(content.struct,
          Map.of(k + Abi.Plane.GROUP_TOKENS, 110, Abi.View.FIRST_RECENT, 407));
      Check.that(content.struct.longAt(Abi.View.COMPANIONS) != 0, "companions");
    }
  }

  static void doorsFieldsLieWhereTheHeaderHasThem() {
    Struct keep = new Struct(Abi.KeepLists.SIZEOF);
    KeepLists.at(101, 102, 3, 4).withListStride(5).withCounts(106).write(Device.CPU, true, keep, 0);
    holds(keep, Map.of(Abi.KeepLists.STRUCT_SIZE, Abi.KeepLists.SIZEOF, Abi.KeepLists.SLOTS, 101,
        Abi.KeepLists.SLOTS_LEN, 102, Abi.KeepLists.N_LISTS, 3, Abi.KeepLists.COUNT, 4,
        Abi.KeepLists.LIST_STRIDE, 5, Abi.KeepLists.COUNTS, 106));
    Struct select = new Struct(Abi.SelectOptions.SIZEOF);
    SelectOptions.of(1).withTokenCounts(102).withScores(103, 104).withRowCount(5).withReduce(Reduce.SUM)
        .withSinkCount(6).withRecentCount(7).withTie(Tie.HIGHER_POSITION).withSelectBlock(10)
        .withProtected(8, 9).write(Device.CPU, 1, select);
    holds(select, Map.of(Abi.SelectOptions.N_TOKENS, 1, Abi.SelectOptions.TOKEN_COUNTS, 102,
        Abi.SelectOptions.SCORES, 103, Abi.SelectOptions.SCORES_LEN, 104,
        Abi.SelectOptions.N_ROWS, 5, Abi.SelectOptions.REDUCE, 2, Abi.SelectOptions.N_SINK, 6,
        Abi.SelectOptions.N_RECENT, 7, Abi.SelectOptions.TIE, 1,
        Abi.SelectOptions.PROTECTED_SLOTS_LEN, 2));
    Check.equal(10, select.intAt(Abi.SelectOptions.SELECT_BLOCK));
    Plane plane = Plane.at(101, DType.F32, 1, 0, 0);
    int parts = Abi.ScoreJob.SIZEOF;
    Struct job = new Struct(parts + ScoreJob.PARTS);
    ScoreJob.of(1, 2, 103, 104).withTokenCounts(105)
        .withInputs(SignalInputs.NONE.withScores(plane).withQueries(plane.from(1))
            .withRowLse(plane.from(2)).withAttentionSums(plane.from(3)).withSumHeads(7)
            .withQueryStatistics(plane.from(4), plane.from(5)).withKeyFilter(plane.from(6))
            .withTokenWeights(plane.from(7)).withQueryCenters(plane.from(8)).withQueryRows(10))
        .withSeenCount(9)
        .write(Geometry.builder().build(), 0, Device.CPU, job, 0, parts);
    holds(job, Map.of(Abi.ScoreJob.STRUCT_SIZE, parts, Abi.ScoreJob.LAYER, 1,
        Abi.ScoreJob.N_TOKENS, 2, Abi.ScoreJob.N_SEEN, 9, Abi.ScoreJob.SCORES, 103,
        Abi.ScoreJob.SCORES_LEN, 104, Abi.ScoreJob.TOKEN_COUNTS, 105, Abi.ScoreJob.VIEW, 0));
    Check.equal(job.address + parts, job.longAt(Abi.ScoreJob.INPUTS));
    Check.equal(Abi.SignalInputs.SIZEOF, job.intAt(parts + Abi.SignalInputs.STRUCT_SIZE));
    Check.equal(7, job.intAt(parts + Abi.SignalInputs.N_SUM_HEADS));
    int[] pointers = {Abi.SignalInputs.SCORES, Abi.SignalInputs.QUERIES, Abi.SignalInputs.ROW_LSE,
        Abi.SignalInputs.ATTENTION_SUMS, Abi.SignalInputs.QUERY_MEAN,
        Abi.SignalInputs.QUERY_COVARIANCE, Abi.SignalInputs.KEY_FILTER,
        Abi.SignalInputs.TOKEN_WEIGHTS, Abi.SignalInputs.QUERY_CENTERS};
    Check.equal(10, job.intAt(parts + Abi.SignalInputs.N_QUERY_ROWS));
    Check.equal(Abi.SignalInputs.SIZEOF, 8 + 8 * pointers.length + 8);
    for (int i = 0; i < pointers.length; ++i) {
      long at = job.longAt(parts + pointers[i]) - job.address;
      Check.equal(101L + i, job.longAt((int) at + Abi.Plane.DATA));
    }
    Struct plan = PlanOptions.NONE.withHeadBudgets(7, 8, 9).withLayerBudgets(0.5, 9)
        .withReportMass(true).withDestinations(true).withDraftTokens(5).write();
    int size = Abi.PlanOptions.SIZEOF;
    holds(plan, Map.of(Abi.PlanOptions.STRUCT_SIZE, size, Abi.PlanOptions.DRAFT_TOKENS, 5,
        Abi.PlanOptions.HEAD_BUDGETS_LEN, 3, Abi.PlanOptions.LAYER_BUDGETS_LEN, 2,
        Abi.PlanOptions.REPORT_MASS, 1, Abi.PlanOptions.HAS_DESTINATIONS, 1,
        size + 16, 7, size + 24, 9));
    Check.equal(plan.address + size + 16, plan.longAt(Abi.PlanOptions.HEAD_BUDGETS));
    Check.equal(plan.address + size, plan.longAt(Abi.PlanOptions.LAYER_BUDGETS));
    Check.equal(9.0, plan.doubleAt(size + 8));
  }

  static void contextOptionsLieWhereTheHeaderHasThem() {
    Context.Builder builder = Context.builder().device(Device.CUDA).allocator(101, 102, 103)
        .deviceAllocator(201, 202, 203).cudaContext(301).debug(true);
    Struct none = null;
    try (Struct simd = Struct.text("c"); Struct cuda = Struct.text("a");
        Struct nvrtc = Struct.text("b");
        Struct memory =
            builder.write(new Hooks(Device.CUDA, null, null, 0), simd, cuda, nvrtc, none)) {
      holds(memory, Map.of(Abi.ContextOptions.DEVICE, 1, Abi.ContextOptions.ALLOC, 101,
          Abi.ContextOptions.FREE, 102, Abi.ContextOptions.ALLOC_USER_DATA, 103,
          Abi.ContextOptions.CUDA_CONTEXT, 301, Abi.ContextOptions.DEVICE_ALLOC, 201,
          Abi.ContextOptions.DEVICE_FREE, 202, Abi.ContextOptions.DEVICE_ALLOC_USER_DATA, 203,
          Abi.ContextOptions.SELECT_ON_HOST, 0, Abi.ContextOptions.DEBUG, 1));
      Check.equal(simd.address, memory.longAt(Abi.ContextOptions.SIMD_TARGET));
      Check.equal(cuda.address, memory.longAt(Abi.ContextOptions.LIBCUDA_PATH));
      Check.equal(nvrtc.address, memory.longAt(Abi.ContextOptions.LIBNVRTC_PATH));
      Check.equal(0L, memory.longAt(Abi.ContextOptions.KERNEL_CACHE_DIR));
    }
  }

  /** The numbers at some offsets; of 64 bits the lower half. */
  private static void holds(Struct memory, Map<Integer, Integer> expected) {
    expected.forEach((offset, value) -> Check.equal(value, memory.intAt(offset)));
  }

  static void defaultsAreTheLibrarys() {
    same(Geometry.of(0, List.of()).write(), Abi.Geometry.INIT);
    same(LayerGeometry.builder().build().struct, Abi.LayerGeometry.INIT);
    Struct job = new Struct(Abi.ScoreJob.SIZEOF + ScoreJob.PARTS);
    ScoreJob.of(0, 0, 0, 0)
        .write(Geometry.builder().build(), 0, Device.CPU, job, 0, Abi.ScoreJob.SIZEOF);
    job.putLong(Abi.ScoreJob.INPUTS, 0); // NONE, instead of nothing
    same(job, Abi.ScoreJob.INIT);
    Struct inputs = new Struct(Abi.SignalInputs.SIZEOF);
    SignalInputs.NONE.write(inputs, 0, 0);
    same(inputs, Abi.SignalInputs.INIT);
    same(View.of(0, null, null).content(Device.CPU).struct, Abi.View.INIT);
    same(Context.builder().write(new Hooks(Device.CPU, null, null, 0), null, null, null,
        null),
        Abi.ContextOptions.INIT);
    Struct options = new Struct(Abi.EvictOptions.SIZEOF);
    EvictOptions.NONE.write(options, 0, 0);
    same(options, Abi.EvictOptions.INIT);
    same(PlanOptions.NONE.write(), Abi.PlanOptions.INIT);
    same(PagedCacheOptions.of(0).write(Device.CPU), Abi.PagedCacheOptions.INIT);
    Struct keep = new Struct(Abi.KeepLists.SIZEOF);
    KeepLists.at(0, 0, 0, 0).write(Device.CPU, true, keep, 0);
    same(keep, Abi.KeepLists.INIT);
    Struct select = new Struct(Abi.SelectOptions.SIZEOF);
    SelectOptions.of(0).write(Device.CPU, 1, select);
    same(select, Abi.SelectOptions.INIT);
  }

  /** Fields and values of an INIT macro; the first of them is the size. */
  private static void same(Struct ours, int[] init) {
    int size = init[1];
    try (Struct theirs = new Struct(size)) {
      for (int i = 0; i < init.length; i += 2) {
        theirs.putInt(init[i], init[i + 1]);
      }
      for (int at = 0; at < size; at += 4) {
        Check.equal(theirs.intAt(at), ours.intAt(at));
      }
    }
  }
}
