package dev.kvevict;

import java.util.List;
import java.util.Map;

/** Geometries are values, and options begin as the library says. */
final class LayoutTest {
  private LayoutTest() {}

  static void geometriesTellWhatTheyHave() {
    Geometry alike = Geometry.builder().layers(2).queryHeads(2).kvHeads(3).keyHeadDim(4).valueHeadDim(5)
        .queryType(DType.BF16).keyType(DType.F16).valueType(DType.F32).maxTokens(9).softmaxScale(1.5f).logitSoftcap(7)
        .build();
    LayerGeometry layer = LayerGeometry.builder().queryHeads(2).kvHeads(3).keyHeadDim(4).valueHeadDim(5)
        .queryType(DType.BF16).keyType(DType.F16).valueType(DType.F32).softmaxScale(1.5f).logitSoftcap(7).build();
    LayerGeometry window = LayerGeometry.builder().cache(LayerCache.WINDOW).build();
    Check.equal(List.of(LayerCache.FULL, 2, 3, 4, 5, DType.BF16, DType.F16, DType.F32, 1.5f, 7f),
        List.of(layer.cache(), layer.queryHeads(), layer.kvHeads(), layer.keyHeadDim(),
            layer.valueHeadDim(), layer.queryType(), layer.keyType(), layer.valueType(),
            layer.softmaxScale(), layer.logitSoftcap()));
    Check.equal(List.of(2, 9), List.of(alike.layerCount(), alike.maxTokens()));
    Check.equal(alike, Geometry.of(9, List.of(layer, layer)));
    Check.equal(List.of(layer, layer), List.of(alike.layer(0), alike.layer(1)));
    Geometry differ = Geometry.of(9, List.of(window, layer));
    Check.equal(List.of(window, layer), List.of(differ.layer(0), differ.layer(1)));
    Check.that(!alike.equals(differ) && differ.toString().contains("cache=WINDOW"), differ.toString());
    Check.fails(IndexOutOfBoundsException.class, () -> alike.layer(2));
    Check.equal(DType.F16, LayerGeometry.builder().dtype(DType.F16).build().keyType());
    Check.equal(DType.F16, Geometry.builder().layers(1).headDim(8).dtype(DType.F16).build().layer(0).valueType());
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
    SignalInputs.NONE.write(inputs, 0, 0, Device.CPU);
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
