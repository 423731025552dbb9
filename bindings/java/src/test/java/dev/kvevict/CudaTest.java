package dev.kvevict;

import java.io.IOException;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * Calls on CUDA do what they do on the CPU. The driver is one for tests, which runs kernels on the
 * CPU: device memory is the process's own, and work has run when a call returns.
 */
final class CudaTest {
  private static final int N = 64;
  private static final int LAYERS = 2;
  private static final String POLICY = "snapkv:budget=16,window=4";
  private static final int ROW = Caches.KVH * Caches.D;

  /** Memory that calls know by its address alone; it stays until the tests end. */
  private static final List<Buffer> MEMORY = new ArrayList<>();

  private CudaTest() {}

  private static Context.Builder cuda() {
    return Context.builder().device(Device.CUDA).libcudaPath(library("KVEVICT_TEST_LIBCUDA"))
        .libnvrtcPath(library("KVEVICT_TEST_LIBNVRTC"))
        .kernelCacheDir(System.getenv("KVEVICT_TEST_KERNELS"));
  }

  private static String library(String variable) {
    String path = System.getenv(variable);
    if (path == null || path.isEmpty()) {
      throw new Check.Skipped(variable + " names no library");
    }
    return path;
  }

  /** A machine with a driver of CUDA 12.4 and NVRTC 12.4, as ctest has it. */
  static void gpusAreListed() {
    library("KVEVICT_TEST_LIBCUDA");
    KvEvict.checkDevice(Device.CUDA);
    List<GpuInfo> gpus = KvEvict.gpus();
    Check.equal(3, gpus.size());
    Check.that(gpus.get(0).problem().contains("compute capability 6.1"), gpus.get(0).problem());
    Check.equal(List.of(61, 12040, 0, "Fake GPU", "", "", gpus.get(0).problem()), all(gpus.get(0)));
    Check.equal(List.of(90, 12040, 12040, "Fake GPU", "libnvrtc.so.12", "sm_90", ""), all(gpus.get(1)));
    Check.equal(List.of(89, 12040, 12040, "Fake GPU", "libnvrtc.so.12", "compute_80", ""), all(gpus.get(2)));
  }

  private static List<Object> all(GpuInfo gpu) {
    return List.of(gpu.computeCapability(), gpu.driverVersion(), gpu.nvrtcVersion(), gpu.name(), gpu.nvrtc(),
        gpu.target(), gpu.problem());
  }

  private static long address(Buffer memory) {
    MEMORY.add(memory);
    return Memory.address(memory, "memory");
  }

  private static long ints(int... values) {
    return address(Caches.bytes(4 * values.length).asIntBuffer().put(0, values));
  }

  private static long workspace(long bytes) {
    return address(Caches.bytes((int) bytes + 512).alignedSlice(256));
  }

  private static Plane plane(FloatBuffer rows, int headCount) {
    return Plane.at(
        address(rows), DType.F32, Caches.D, headCount * Caches.D * 4, Caches.D * 4);
  }

  private static View view(FloatBuffer k, FloatBuffer v) {
    return View.of(Caches.KVH, plane(k, Caches.KVH), plane(v, Caches.KVH));
  }

  /** Ints at an address, fetched by a compaction of two rows: one here, one there. */
  private static int[] read(long there, int n) {
    IntBuffer here = Caches.bytes(4 * n).asIntBuffer();
    Plane both = Plane.opaqueAt(address(here), 4 * n, there - address(here), 4 * n);
    try (Context cpu = Context.create()) {
      cpu.compact(Caches.moves(View.of(1, both, null), 2, 1, 1));
    }
    int[] ints = new int[n];
    here.get(0, ints);
    return ints;
  }

  private static float[] rows(FloatBuffer cache, int n) {
    float[] rows = new float[n * ROW];
    cache.get(0, rows);
    return rows;
  }

  /** A prompt and its eviction; what it sees then. */
  private static List<Object> request(Context context) {
    List<Object> seen = new ArrayList<>();
    List<FloatBuffer> caches = new ArrayList<>();
    List<View> views = new ArrayList<>();
    List<SignalInputs> queries = new ArrayList<>();
    for (int layer = 0; layer < LAYERS; ++layer) {
      FloatBuffer k = Caches.random(N * ROW, 10 + layer);
      FloatBuffer v = Caches.random(N * ROW, 20 + layer);
      caches.addAll(List.of(k, v));
      views.add(view(k, v));
      queries.add(Caches.queries(plane(Caches.random(N * Caches.QH * Caches.D, 30 + layer), Caches.QH)));
    }
    try (Plan plan = Caches.plan(context, LAYERS, N, POLICY);
        Sequence sequence = plan.newSequence()) {
      sequence.beginObserving();
      long bytes = plan.workspace(Operation.EVICT).bestBytes();
      sequence.observe(queries, 40, 0);
      sequence.append(40);
      seen.add(sequence.evict(views, EvictOptions.NONE, workspace(bytes), bytes, 0));
      seen.add(sequence.listReports());
      for (int layer = 0; layer < LAYERS; ++layer) {
        for (int head = 0; head < Caches.KVH; ++head) {
          seen.add(sequence.keepPositions(layer, head));
        }
        SequenceMemory memory = sequence.memoryOf(layer);
        seen.add(read(memory.positions(), memory.listCount() * memory.listedCount()));
        Check.equal(new int[] {16, 40}, read(memory.lengths(), 2));
      }
    }
    caches.forEach(cache -> seen.add(rows(cache, 16)));
    return seen;
  }

  static void requestsAreEqual() {
    try (Context onCuda = cuda().build();
        Context onCpu = Context.create()) {
      List<Object> cpu = request(onCpu);
      List<Object> cuda = request(onCuda);
      Check.equal(cpu.size(), cuda.size());
      for (int i = 0; i < cpu.size(); ++i) {
        Check.equal(cpu.get(i), cuda.get(i));
      }
    }
  }

  static void preparedContextsCompileNothing() {
    List<String> log = new ArrayList<>();
    try (Context context = cuda().logger(LogLevel.DEBUG, (level, line) -> log.add(line)).build();
        Plan plan = Caches.plan(context, LAYERS, N, POLICY)) {
      context.prepare(plan);
      Check.that(has(log, "window_attention.*(compiled|from the cubin cache).*"), log.toString());
      log.clear();
      request(context);
      Check.that(!has(log, ".*(compiled|cubin cache).*"), log.toString());
    }
  }

  static void optionsReachTheLibrary() throws IOException {
    List<String> log = new ArrayList<>();
    Path cache = Files.createTempDirectory("kvevict");
    Context.Builder builder = cuda().kernelCacheDir(cache.toString())
        .logger(LogLevel.DEBUG, (level, line) -> log.add(line));
    try {
      try (Context context = builder.build()) {
        request(context);
      }
      Check.that(has(log, "topk.*compiled.*") && !has(log, ".*cubin cache"), log.toString());
      log.clear();
      try (Context context = builder.selectOnHost(true).build()) {
        request(context);
      }
      Check.that(has(log, "gather_rows.*from the cubin cache"), log.toString());
      Check.that(!has(log, "topk.*"), log.toString());
    } finally {
      try (var files = Files.list(cache)) {
        for (Path file : files.toList()) {
          Files.delete(file);
        }
      }
      Files.delete(cache);
    }
    FloatBuffer memory = Caches.random(4 * ROW, 1);
    try (Context context = cuda().debug(true).build()) {
      Check.fails(KvEvictException.class,
          () -> context.compact(List.of(Move.of(view(memory, Caches.copy(memory)), 4,
              KeepLists.at(ints(3, 2), 2, 1, 2)))),
          "ascend");
    }
    Check.fails(KvEvictException.class, () -> cuda().deviceAllocator(1, 0, 0).build(),
        "device_alloc and device_free");
  }

  private static boolean has(List<String> log, String pattern) {
    return log.stream().anyMatch(line -> line.matches(pattern));
  }

  private static void refused(String name, Check.Code call) {
    Check.fails(IllegalArgumentException.class, call,
        name + " is memory of the host, and the context is on CUDA: pass the address of device");
  }

  static void memoryOfTheHostIsRefused() {
    FloatBuffer k = Caches.random(8 * ROW, 1);
    FloatBuffer before = Caches.copy(k);
    FloatBuffer scores = Caches.floats(Caches.KVH * 8);
    IntBuffer slots = Caches.bytes(4).asIntBuffer().put(0, 3);
    ByteBuffer scratch = Caches.bytes(4096);
    Plane queries = Caches.plane(Caches.floats(8 * Caches.QH * Caches.D), Caches.QH);
    try (Context context = cuda().build();
        Plan plan = Caches.plan(context, 1, 8, "snapkv:budget=6,window=1,sink=1");
        Sequence sequence = plan.newSequence();
        View view = Caches.view(k, Caches.copy(k));
        View paged = View.builder(1).k(Caches.plane(k, 1)).paged(1, slots).build()) {
      KeepLists onDevice = KeepLists.at(address(slots), 1, 1, 1);
      SelectOptions options = SelectOptions.of(8);
      refused("slots", () -> context.compact(Caches.moves(view, 8, 1, 3)));
      refused("counts",
          () -> context.compact(List.of(Move.of(view, 8, onDevice.withCounts(slots)))));
      refused("slots", () -> context.reorder(Caches.moves(view, 8, 1, 3), null));
      refused("scores", () -> plan.score(Caches.jobs(view, 8, queries, scores), null));
      refused("tokenCounts", () -> plan.score(List.of(
          ScoreJob.of(0, 8, 64, 16).withView(view).withTokenCounts(Caches.ints(8, 8))), 0, 0, 0));
      refused("tokenCounts", () -> context.compact(
          List.of(Move.of(view, 8, onDevice).withTokenCounts(Caches.ints(8, 8)))));
      refused("scores", () -> context.select(options.withScores(scores), onDevice, 0, 0, 0));
      refused("tokenCounts",
          () -> context.select(options.withTokenCounts(slots), onDevice, 0, 0, 0));
      refused("slots", () -> context.select(options, KeepLists.of(1, 3), 0, 0, 0));
      refused("workspace", () -> context.select(options, onDevice, scratch));
      refused("workspace", () -> sequence.evict(List.of(view), scratch));
      refused("blocks", () -> context.compact(List.of(Move.of(paged, 1, onDevice))));
      refused("blocks", () -> context.reorderWorkspace(Caches.sized(paged, 1, 1)).bestBytes());
      refused("blocks", () -> sequence.evict(List.of(paged), EvictOptions.NONE, 0, 0, 0));
      Class<IllegalStateException> state = IllegalStateException.class;
      Check.equal(256, plan.workspace(Operation.EVICT).alignment());
      Check.fails(state, () -> plan.workspace(Operation.EVICT).allocate(), "context is on CUDA",
          "device memory", "256-byte",
          " " + plan.workspace(Operation.EVICT).bestBytes() + " bytes");
      Check.fails(state, () -> context.reorderWorkspace(Caches.sized(view, 1, 8)).allocate(),
          "device memory");

      Check.equal(before, k);
      context.compact(List.of(Move.of(view, 8, onDevice))); // planes may be buffers
      Check.equal(before.slice(3 * ROW, ROW), k.slice(0, ROW));
    }
  }
}
