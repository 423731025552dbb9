/**
 * Physically shrinks the KV cache of LLM inference engines: scores the cached tokens, selects those
 * that fit a budget and compacts the survivors in place.
 *
 * <p>The classes follow the C library's nouns. A {@link dev.kvevict.Context} is a device, a
 * {@link dev.kvevict.Plan} a model's geometry with a {@link dev.kvevict.Policy}, a
 * {@link dev.kvevict.Sequence} one request, a {@link dev.kvevict.View} the place of one layer's
 * cache, which stays where it is and is never copied:
 *
 * <pre>{@code
 * try (Context context = Context.create();
 *     Plan plan = context.newPlan(
 *         Geometry.builder().layers(LAYERS).queryHeads(QH).kvHeads(KVH).headDim(D).maxTokens(N).build(),
 *         Policy.parse("snapkv:budget=512,window=32"));
 *     Sequence sequence = plan.newSequence()) {
 *   ByteBuffer workspace = plan.workspace(Operation.EVICT).allocate();
 *   List<View> views = new ArrayList<>();
 *   sequence.beginObserving(); // lends it memory for queries
 *   for (int layer = 0; layer < LAYERS; ++layer) { // q, k, v: direct FloatBuffer[], [token, head, D]
 *     sequence.observe(layer, Plane.tokenMajor(q[layer], DType.F32, QH, D), N, 0);
 *     views.add(View.of(KVH, Plane.tokenMajor(k[layer], DType.F32, KVH, D),
 *         Plane.tokenMajor(v[layer], DType.F32, KVH, D)));
 *   }
 *   sequence.append(N);
 *   EvictReport report = sequence.evict(views, workspace);
 *   sequence.endObserving(); // small from here on
 *   int position = sequence.logicalLength(); // what RoPE rotates the next token by
 *   for (int layer = 0; layer < LAYERS; ++layer) {
 *     if (plan.layer(layer).listCount() == 0) continue; // no full cache, as some layers of a hybrid
 *     int slot = sequence.storedLength(layer); // where the token goes
 *   }
 * }
 * }</pre>
 *
 * <h2>Memory</h2>
 *
 * Memory is handed over as a direct buffer, from its position to its limit, or as an address
 * ({@code long}), which may lie on a device or come from {@code MemorySegment.address()}. Buffers
 * must be direct and, where their elements are numbers, in {@link java.nio.ByteOrder#nativeOrder()};
 * a new {@code ByteBuffer} is big-endian. Their ends are checked, an address's are not.
 *
 * <p>With a context on CUDA caches, queries, block tables, scores, keep lists and workspaces are
 * device addresses, and a call's last argument is its stream, a {@code CUstream} as {@code long}; 0
 * is the default stream, and that of the forms without one. The work may run after the call: the
 * forms of calls that take buffers are for the CPU and refuse a context on CUDA. Only a {@link
 * dev.kvevict.Plane} may also be a buffer there.
 *
 * <h2>Errors, threads, closing</h2>
 *
 * A failed call throws {@link dev.kvevict.KvEvictException} and has changed nothing. What Java can
 * see earlier is an {@link java.lang.IllegalArgumentException} (a wrong buffer, memory of the host
 * with a context on CUDA, a negative count) or a {@link java.lang.NullPointerException}; use after
 * {@code close()} is an {@link java.lang.IllegalStateException}. Contexts, plans and views may be
 * shared by threads, a sequence serves one at a time. Handles may be closed in any order and more
 * than once; one that is never closed is released when it becomes unreachable.
 */
package dev.kvevict;
