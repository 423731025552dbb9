package dev.kvevict;

import java.util.Arrays;
import java.util.List;
import java.util.function.Supplier;
import java.util.stream.IntStream;

/**
 * Memory for the arguments of a sequence's calls, which one call at a time writes: options, and for
 * each layer an observation, inputs, their planes, a view and a destination. Each has its place, so
 * that fields which are not written stay zero.
 */
final class SequenceArguments {
  private static final int OBSERVATIONS = Abi.EvictOptions.SIZEOF;

  private final Geometry geometry;
  private final int queryRows; // by which a layer is scored; below 0: as many as there are slots
  private final boolean headsDiffer;
  private final Device device;
  private final Struct memory;
  private final int inputs;
  private final int planes;
  private final int views;
  private final int destinations;

  /** Rows behind those stored, for arguments that are read once they are appended. */
  private int ahead;

  SequenceArguments(Geometry geometry, int queryRows, boolean headsDiffer, Device device) {
    this.geometry = geometry;
    this.queryRows = queryRows;
    this.headsDiffer = headsDiffer;
    this.device = device;
    int n = geometry.layerCount();
    inputs = OBSERVATIONS + n * Abi.Observation.SIZEOF;
    planes = inputs + n * Abi.SignalInputs.SIZEOF;
    views = planes + n * SignalInputs.PLANES;
    destinations = views + n * Abi.View.SIZEOF;
    memory = new Struct(destinations + n * Abi.View.SIZEOF);
  }

  /** The address of an eviction's options. */
  long options() {
    return memory.address;
  }

  /** The address of the observations. */
  long observations() {
    return memory.address + OBSERVATIONS;
  }

  /** The address of the views. */
  long views() {
    return memory.address + views;
  }

  /** Returns the number of layers. */
  int observations(
      long sequence, SignalInputs[] shown, int rowCount, int firstPosition) {
    Memory.count(rowCount, "rowCount");
    if (shown.length != geometry.layerCount()) {
      throw new IllegalArgumentException(
          shown.length + " inputs for " + geometry.layerCount() + " layers");
    }
    int n = 0;
    for (int layer = 0; layer < shown.length; ++layer) {
      if (shown[layer] != null) {
        observation(sequence, n++, layer, shown[layer], rowCount, firstPosition);
      }
    }
    return n;
  }

  /** Writes an item of a batch, with the pointer that enterAlone() returned. */
  void writeItem(Struct out, int at, long sequence, SignalInputs[] shown,
      SequenceObservationsFields<?> item) {
    int n = observations(sequence, shown, item.rowCount, item.firstPosition);
    item.fill(out, at)
        .putLong(at + Abi.SequenceObservations.SEQUENCE, sequence)
        .putLong(at + Abi.SequenceObservations.OBSERVATIONS, observations())
        .putLong(at + Abi.SequenceObservations.OBSERVATIONS_LEN, n);
  }

  void observation(
      long sequence, int i, int layer, SignalInputs shown, int rowCount, int firstPosition) {
    LayerGeometry shape = geometry.evicted(layer);
    shown.requireRows(rowCount, shape, layer);
    if (shape.kvHeads() > 0) {
      // Scores are of the chunk's rows, attention of all slots.
      int slotCount = shown.hasSums()
          ? heldWith(sequence, layer, shape, rowCount, firstPosition)
          : rowCount;
      shown.requireSlots(slotCount, shape, layer);
    }
    int at = OBSERVATIONS + i * Abi.Observation.SIZEOF;
    memory.putInt(at + Abi.Observation.STRUCT_SIZE, Abi.Observation.SIZEOF)
        .putInt(at + Abi.Observation.LAYER, layer)
        .putLong(at + Abi.Observation.INPUTS, writeInputs(i, shown));
  }

  /** Slots of a layer once rows from a position on are stored, or 0 where C refuses them. */
  private int heldWith(
      long sequence, int layer, LayerGeometry shape, int rowCount, int firstPosition) {
    long ahead =
        firstPosition == Sequence.POSITION_NEXT
            ? 0
            : Integer.toUnsignedLong(firstPosition)
                - Native.kvevict_sequence_logical_length(sequence);
    int most = IntStream.of(storedLengths(sequence, layer, shape)).max().getAsInt();
    return (int) Math.max(0, Math.min(most + ahead + rowCount, Integer.MAX_VALUE));
  }

  /** Returns the inputs' address. */
  private long writeInputs(int i, SignalInputs written) {
    int at = inputs + i * Abi.SignalInputs.SIZEOF;
    written.write(memory, at, planes + i * SignalInputs.PLANES, device);
    return memory.address + at;
  }

  int requireViews(List<View> views) {
    if (views.size() != geometry.layerCount()) {
      throw new IllegalArgumentException(
          views.size() + " views for " + geometry.layerCount() + " layers");
    }
    return views.size();
  }

  /** Writes views, of at least so many slots, and keeps their memory. */
  View.Content[] views(List<View> views, int slots) {
    View.Content[] caches = new View.Content[requireViews(views)];
    for (int layer = 0; layer < caches.length; ++layer) {
      int view = this.views + layer * Abi.View.SIZEOF;
      if (geometry.evicted(layer).cache() != LayerCache.FULL) {
        memory.putInt(view + Abi.View.STRUCT_SIZE, Abi.View.SIZEOF);
        continue;
      }
      View.Content cache = View.at(views, layer, "views").content(device);
      cache.require(slots, head -> slots);
      cache.requireWritable();
      memory.copyFrom(cache.struct, view);
      caches[layer] = cache;
    }
    return caches;
  }

  /** Writes views with room for what is held before and after an edit, and keeps their memory. */
  View.Content[] views(long sequence, List<View> views, Edit edit) {
    View.Content[] caches = views(views, 0);
    for (int layer = 0; layer < caches.length; ++layer) {
      if (caches[layer] == null) {
        continue;
      }
      int[] held = storedLengths(sequence, layer, geometry.evicted(layer));
      caches[layer].require(held);
      if (edit.adds()) {
        for (int head = 0; head < held.length; ++head) {
          held[head] = edit.held(positions(sequence, layer, head, held[head]));
        }
        caches[layer].require(held);
      }
    }
    return caches;
  }

  private static int[] positions(long sequence, int layer, int head, int count) {
    try (Struct out = new Struct(4 * count)) {
      Native.kvevict_sequence_keep_positions(sequence, layer, head, out.address, count);
      return IntStream.range(0, count).map(i -> out.intAt(4 * i)).toArray();
    }
  }

  /** Returns the caches, which must stay reachable, as must the options. */
  View.Content[] eviction(long sequence, List<View> views, EvictOptions options) {
    int n = requireViews(views);
    options.requireLayers(n);
    options.requireOn(device);
    View.Content[] caches = new View.Content[n];
    for (int layer = 0; layer < n; ++layer) {
      LayerGeometry shape = geometry.evicted(layer);
      SignalInputs read = options.inputs(layer);
      read.requireRows(read.queryRows(queryRows, 0), shape, layer);
      writeInputs(layer, read);
      int view = this.views + layer * Abi.View.SIZEOF;
      if (shape.cache() != LayerCache.FULL) {
        memory.putInt(view + Abi.View.STRUCT_SIZE, Abi.View.SIZEOF);
        continue;
      }
      View.Content cache = View.at(views, layer, "views").content(device);
      if (read.hasSlots(queryRows) || !cache.holds(geometry.maxTokens())) {
        int[] stored = storedLengths(sequence, layer, shape);
        int most = IntStream.of(stored).max().getAsInt();
        read.requireSlots(most, shape, layer);
        read.requireRows(read.queryRows(queryRows, most), shape, layer);
        cache.require(stored);
      }
      cache.requireWritable();
      if (options.byTable) {
        cache.requireWritableTables();
      }
      memory.copyFrom(cache.struct, view);
      caches[layer] = cache;
    }
    options.write(memory, memory.address + inputs, memory.address + destinations);
    return withDestinations(sequence, caches, options.destinations());
  }

  /** Writes an item of a batch; returns what must stay reachable beside the options. */
  View.Content[] writeItem(
      Struct out, int at, long sequence, List<View> views, EvictOptions options) {
    View.Content[] caches = eviction(sequence, views, options);
    out.putInt(at + Abi.SequenceEviction.STRUCT_SIZE, Abi.SequenceEviction.SIZEOF)
        .putLong(at + Abi.SequenceEviction.SEQUENCE, sequence)
        .putLong(at + Abi.SequenceEviction.VIEWS, views())
        .putLong(at + Abi.SequenceEviction.VIEWS_LEN, views.size())
        .putLong(at + Abi.SequenceEviction.OPTIONS, options());
    return caches;
  }

  /** Writes destinations, if there are any, with room for what is kept; returns their caches too. */
  private View.Content[] withDestinations(
      long sequence, View.Content[] caches, List<View> there) {
    if (there.isEmpty()) {
      return caches;
    }
    int n = caches.length;
    if (there.size() != n) {
      throw new IllegalArgumentException(there.size() + " destinations for " + n + " layers");
    }
    int[] kept = keptSlots(sequence);
    View.Content[] all = Arrays.copyOf(caches, 2 * n);
    for (int layer = 0; layer < n; ++layer) {
      int view = destinations + layer * Abi.View.SIZEOF;
      if (geometry.evicted(layer).cache() != LayerCache.FULL) {
        memory.putInt(view + Abi.View.STRUCT_SIZE, Abi.View.SIZEOF);
        continue;
      }
      View.Content cache = View.at(there, layer, "destinations").content(device);
      int slots = kept[layer];
      cache.require(slots, head -> slots);
      cache.requireWritable();
      memory.copyFrom(cache.struct, view);
      all[n + layer] = cache;
    }
    return all;
  }

  /** The caches of the views that are written. */
  int[] keptSlots(long sequence) {
    int n = geometry.layerCount();
    try (Struct slots = new Struct(4 * n)) {
      Native.kvevict_sequence_kept_slots(
          sequence, views(), n, slots.address, n);
      return IntStream.range(0, n).map(layer -> slots.intAt(4 * layer)).toArray();
    }
  }

  void pagedEviction(long sequence, EvictOptions options) {
    int n = geometry.layerCount();
    options.requireLayers(n);
    options.requireOn(device);
    for (int layer = 0; layer < n; ++layer) {
      LayerGeometry shape = geometry.evicted(layer);
      SignalInputs read = options.inputs(layer);
      read.requireRows(read.queryRows(queryRows, 0), shape, layer);
      writeInputs(layer, read);
      if (shape.cache() == LayerCache.FULL && read.hasSlots(queryRows)) {
        int most = IntStream.of(storedLengths(sequence, layer, shape)).max().getAsInt();
        read.requireSlots(most, shape, layer);
        read.requireRows(read.queryRows(queryRows, most), shape, layer);
      }
    }
    options.requireInPlace();
    options.write(memory, memory.address + inputs, 0);
  }

  /** Writes an item of paged caches; the options are to be kept reachable. */
  void writeItem(Struct out, int at, long cached, long sequence, EvictOptions options) {
    pagedEviction(sequence, options);
    out.putInt(at + Abi.PagedEviction.STRUCT_SIZE, Abi.PagedEviction.SIZEOF)
        .putLong(at + Abi.PagedEviction.CACHED, cached)
        .putLong(at + Abi.PagedEviction.SEQUENCE, sequence)
        .putLong(at + Abi.PagedEviction.OPTIONS, options());
  }

  /** Slots in use by each head of a layer, or by all where they do not differ. */
  private int[] storedLengths(long sequence, int layer, LayerGeometry shape) {
    int[] stored = new int[headsDiffer ? shape.kvHeads() : 1];
    Arrays.setAll(
        stored, head -> Native.kvevict_sequence_stored_length(sequence, layer, head) + ahead);
    return stored;
  }

  /** Writes memory that are read once so many more rows are stored. */
  Object ahead(int n, Supplier<Object> write) {
    ahead = n;
    try {
      return write.get();
    } finally {
      ahead = 0;
    }
  }
}
