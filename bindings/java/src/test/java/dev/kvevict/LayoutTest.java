package dev.kvevict;

import java.io.IOException;
import java.lang.reflect.Method;
import java.lang.reflect.RecordComponent;
import java.nio.file.Files;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.function.Function;

/** Structs have the sizes and offsets of kvevict.layout, and the defaults of the library. */
final class LayoutTest {
  private record Field(int offset, int size) {}

  private LayoutTest() {}

  /** Fields of a C struct by name; "" is the struct itself. */
  private static Map<String, Field> layout(String struct) throws IOException {
    Map<String, Field> fields = new LinkedHashMap<>();
    for (String line : Files.readAllLines(TestMain.golden.resolve("kvevict.layout"))) {
      String[] words = line.split(" ");
      if (words[0].equals(struct)) {
        fields.put("", new Field(0, Integer.parseInt(words[1])));
      } else if (words[0].startsWith(struct + ".")) {
        fields.put(words[0].substring(struct.length() + 1),
            new Field(Integer.parseInt(words[1]), Integer.parseInt(words[2])));
      }
    }
    Check.that(!fields.isEmpty(), "no " + struct + " in the layout table");
    return fields;
  }

  static void sizes() throws IOException {
    Map<String, Integer> sizes = Map.ofEntries(
        Map.entry("kvevict_gpu_info", Records.GpuInfo.SIZE),
        Map.entry("kvevict_dtype_info", Records.DTypeInfo.SIZE),
        Map.entry("kvevict_context_options", Context.Builder.SIZE),
        Map.entry("kvevict_policy", Policy.SIZE),
        Map.entry("kvevict_resolved_policy", Records.ResolvedPolicy.SIZE),
        Map.entry("kvevict_policy_info", Records.PolicyInfo.SIZE),
        Map.entry("kvevict_preset_info", Records.PresetInfo.SIZE),
        Map.entry("kvevict_plane", Plane.SIZE),
        Map.entry("kvevict_view", View.SIZE),
        Map.entry("kvevict_geometry", Geometry.SIZE),
        Map.entry("kvevict_capabilities", Records.Capabilities.SIZE),
        Map.entry("kvevict_evict_options", EvictOptions.SIZE),
        Map.entry("kvevict_evict_report", Records.EvictReport.SIZE),
        Map.entry("kvevict_sequence_memory", Records.SequenceMemory.SIZE));
    for (Map.Entry<String, Integer> entry : sizes.entrySet()) {
      Check.equal(layout(entry.getKey()).get("").size(), entry.getValue());
    }
    long structs = Files.readAllLines(TestMain.golden.resolve("kvevict.layout")).stream()
        .filter(line -> line.matches("kvevict_[a-z_]+ \\d+")).count();
    Check.equal(structs, (long) sizes.size());
  }

  static void recordsReadTheirFields() throws Exception {
    reads("kvevict_resolved_policy", Records.ResolvedPolicy.class, Records.ResolvedPolicy::read);
    reads("kvevict_gpu_info", Records.GpuInfo.class, Records.GpuInfo::read);
    reads("kvevict_dtype_info", Records.DTypeInfo.class, Records.DTypeInfo::read);
    reads("kvevict_policy_info", Records.PolicyInfo.class, Records.PolicyInfo::read);
    reads("kvevict_preset_info", Records.PresetInfo.class, Records.PresetInfo::read);
    reads("kvevict_capabilities", Records.Capabilities.class, Records.Capabilities::read);
    reads("kvevict_evict_report", Records.EvictReport.class, in -> Records.EvictReport.read(in, 0));
    reads("kvevict_sequence_memory", Records.SequenceMemory.class, Records.SequenceMemory::read);
  }

  /** Puts one field at a time at its C offset: the component of that name sees it, no other. */
  private static <R extends Record> void reads(
      String struct, Class<R> type, Function<Struct, R> read) throws Exception {
    Map<String, Field> layout = layout(struct);
    R zero = read.apply(new Struct(layout.get("").size()));
    for (RecordComponent component : type.getRecordComponents()) {
      Struct memory = new Struct(layout.get("").size());
      Field field = layout.get(snake(component.getName()));
      try (Struct text = Struct.text("text")) {
        put(memory.seek(field.offset()), component.getType(), text);
        R seen = read.apply(memory);
        for (RecordComponent other : type.getRecordComponents()) {
          Method accessor = other.getAccessor();
          boolean same = Objects.equals(accessor.invoke(zero), accessor.invoke(seen));
          Check.equal(other.getName().equals(component.getName()), !same);
        }
      }
    }
    long fields = layout.keySet().stream()
        .filter(name -> !List.of("", "struct_size", "reserved").contains(name)).count();
    Check.equal(fields, (long) type.getRecordComponents().length);
  }

  private static void put(Struct memory, Class<?> type, Struct text) {
    if (type == long.class) {
      memory.putLong(1);
    } else if (type == double.class) {
      memory.putDouble(1);
    } else if (type == String.class) {
      memory.putLong(text.address);
    } else {
      memory.putInt(1);
    }
  }

  private static String snake(String camel) {
    return camel.replaceAll("([A-Z])", "_$1").toLowerCase(Locale.ROOT);
  }

  /** What a builder sets lies at the C offset, in no other place, and is what is read back. */
  static void policyFieldsLieWhereTheHeaderHasThem() throws Exception {
    Map<String, Field> layout = layout("kvevict_policy");
    Policy defaults = Policy.of(PolicyKind.NONE);
    int fields = 0;
    for (Method set : Policy.Builder.class.getDeclaredMethods()) {
      if (set.getParameterCount() != 1) {
        continue;
      }
      ++fields;
      String name = set.getName().matches("sink|recent")
          ? "n" + set.getName().substring(0, 1).toUpperCase(Locale.ROOT)
              + set.getName().substring(1)
          : set.getName();
      Method get = Policy.class.getDeclaredMethod(name);
      Object value = other(get.invoke(defaults));
      Policy.Builder builder = defaults.toBuilder();
      Check.that(set.invoke(builder, value) == builder, "not this");
      Policy policy = builder.build();
      Check.equal(value, get.invoke(policy));
      Field field = layout.get(snake(name));
      for (int at = 0; at < Policy.SIZE; at += 4) {
        boolean inside = at >= field.offset() && at < field.offset() + field.size();
        Check.that(inside || defaults.struct.intAt(at) == policy.struct.intAt(at), name);
      }
      Check.that(!policy.equals(defaults), name);
    }
    Check.equal(layout.size() - List.of("", "struct_size", "kind", "reserved").size(), fields);
    Check.equal(PolicyKind.CUSTOM, Policy.of(PolicyKind.CUSTOM).kind());
  }

  /** A value of the same type that differs. */
  private static Object other(Object value) {
    if (value instanceof Integer i) {
      return i + 7;
    }
    if (value instanceof Long i) {
      return i - 7;
    }
    if (value instanceof Double d) {
      return d + 0.125;
    }
    if (value instanceof Boolean b) {
      return !b;
    }
    Object[] all = value.getClass().getEnumConstants();
    return all[value == all[0] ? 1 : 0];
  }

  static void geometryFieldsLieWhereTheHeaderHasThem() throws IOException {
    Geometry geometry = Geometry.builder().layers(1).queryHeads(2).kvHeads(3).headDims(4, 5)
        .dtypes(DType.BF16, DType.F16, DType.F32).maxTokens(9).softmaxScale(1.5f).build();
    Check.equal("Geometry[nLayers=1, nQHeads=2, nKvHeads=3, kHeadDim=4, vHeadDim=5, qDtype=BF16, "
        + "kDtype=F16, vDtype=F32, maxTokens=9, softmaxScale=1.5]", geometry.toString());
    Map<String, Field> layout = layout("kvevict_geometry");
    try (Struct memory = geometry.struct) {
      Map<String, Integer> expected = Map.of("struct_size", Geometry.SIZE, "n_layers", 1,
          "n_q_heads", 2, "n_kv_heads", 3, "k_head_dim", 4, "v_head_dim", 5, "q_dtype", 3,
          "k_dtype", 2, "v_dtype", 1, "max_tokens", 9);
      expected.forEach((name, value) ->
          Check.equal(value, memory.seek(layout.get(name).offset()).getInt()));
      Check.equal(Float.floatToIntBits(1.5f),
          memory.seek(layout.get("softmax_scale").offset()).getInt());
    }
  }

  static void viewFieldsLieWhereTheHeaderHasThem() throws IOException {
    Map<String, Field> view = layout("kvevict_view");
    Map<String, Field> plane = layout("kvevict_plane");
    View built = View.builder(3)
        .k(Plane.at(101, DType.F16, 8, 102, 103).withElementStride(104).withBlockStride(105))
        .v(Plane.opaqueAt(201, 7, 202, 203))
        .companion(Plane.opaqueAt(301, 6, 302, 303))
        .paged(16, 401, 402)
        .build();
    try (View.Content content = built.content(Device.CPU)) {
      Struct memory = content.struct;
      Map<String, Long> k = Map.of("data", 101L, "token_stride_bytes", 102L, "head_stride_bytes",
          103L, "element_stride_bytes", 104L, "block_stride_bytes", 105L, "dtype", 2L, "head_dim",
          8L, "row_bytes", 0L);
      k.forEach((name, value) ->
          Check.equal(value, get(memory, view.get("k").offset(), plane.get(name))));
      Map<String, Long> v = Map.of("data", 201L, "dtype", 0L, "row_bytes", 7L);
      v.forEach((name, value) ->
          Check.equal(value, get(memory, view.get("v").offset(), plane.get(name))));
      Map<String, Long> rest = Map.of("struct_size", (long) View.SIZE, "n_kv_heads", 3L,
          "n_companions", 1L, "block_size", 16L, "block_table", 401L, "block_table_len", 402L);
      rest.forEach((name, value) -> Check.equal(value, get(memory, 0, view.get(name))));
      Check.that(get(memory, 0, view.get("companions")) != 0, "companions");
    }
  }

  static void contextOptionsLieWhereTheHeaderHasThem() throws IOException {
    Map<String, Field> options = layout("kvevict_context_options");
    Context.Builder builder = Context.builder().device(Device.CUDA).allocator(101, 102, 103)
        .deviceAllocator(201, 202, 203).cudaContext(301).debug(true);
    Struct none = null;
    try (Struct simd = Struct.text("c"); Struct cuda = Struct.text("a");
        Struct nvrtc = Struct.text("b");
        Struct memory =
            builder.write(new Hooks(Device.CUDA, null, null, 0), simd, cuda, nvrtc, none)) {
      Map<String, Long> expected = Map.ofEntries(Map.entry("device", 1L), Map.entry("alloc", 101L),
          Map.entry("free", 102L), Map.entry("alloc_user_data", 103L),
          Map.entry("simd_target", simd.address),
          Map.entry("device_alloc", 201L), Map.entry("device_free", 202L),
          Map.entry("device_alloc_user_data", 203L), Map.entry("cuda_context", 301L),
          Map.entry("libcuda_path", cuda.address), Map.entry("libnvrtc_path", nvrtc.address),
          Map.entry("kernel_cache_dir", 0L), Map.entry("select_on_host", 0L),
          Map.entry("debug", 1L));
      expected.forEach(
          (name, value) -> Check.equal(value, get(memory, 0, options.get(name))));
    }
  }

  private static Long get(Struct memory, int base, Field field) {
    memory.seek(base + field.offset());
    return field.size() == 8 ? memory.getLong() : memory.getInt();
  }

  static void defaultsAreTheLibrarys() {
    same(Geometry.builder().build().struct, Geometry.SIZE, Native::kvevict_geometry_init);
    same(View.of(0, null, null).content(Device.CPU).struct, View.SIZE, Native::kvevict_view_init);
    same(Context.builder().write(new Hooks(Device.CPU, null, null, 0), null, null, null,
        null),
        Context.Builder.SIZE, Native::kvevict_context_options_init);
    Struct options = new Struct(EvictOptions.SIZE);
    EvictOptions.NONE.write(Device.CPU, options);
    same(options, EvictOptions.SIZE, Native::kvevict_evict_options_init);
    Check.equal(List.of(4, 32, 7), List.of(Policy.of(PolicyKind.SNAPKV).nSink(),
        Policy.of(PolicyKind.SNAPKV).obsWindow(), Policy.of(PolicyKind.SNAPKV).poolKernel()));
  }

  private interface Init {
    void fill(long address, long size);
  }

  private static void same(Struct ours, int size, Init init) {
    try (Struct theirs = new Struct(size)) {
      init.fill(theirs.address, size);
      for (int at = 0; at < size; at += 4) {
        Check.equal(theirs.seek(at).getInt(), ours.seek(at).getInt());
      }
    }
  }
}
