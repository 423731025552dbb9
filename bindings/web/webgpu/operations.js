// The operations of an eviction, each encoded into the engine's own commands.
import { checkLists, checkPool, checkRope, checkRows, withPass } from './arguments.js';
import { finite, integer, object, onlyKeys, refuse, word } from './check.js';
import {
  DIRECTION_PIECE,
  keyCosines,
  keyDirections,
  keyNorms,
  meanDirection,
} from './kernels/keys.js';
import { lagPartitions, lagRest, MOST_LAG_BLOCK, MOST_LAG_DIM } from './kernels/lag.js';
import { columnGroups, compactRows, gatherGroups, gatherRows } from './kernels/move.js';
import { rotateGroups, rotateRows, turnsOf } from './kernels/rotate.js';
import { quadsOf, rowParams } from './kernels/rows.js';
import { selectSlots } from './kernels/select.js';
import { shapeScores } from './kernels/shape.js';
import {
  rowsAtOnce,
  WINDOW_KEYS,
  WINDOW_PIECE,
  windowPieces,
  windowSums,
  windowWeights,
} from './kernels/window.js';
import { pipelinesOf } from './pipelines.js';
import { bindRows, checkPlane, checkView } from './planes.js';

const MOST_TOKENS = 2 ** 31 - 1;
const REDUCE = /** @type {const} */ (['mean', 'max', 'sum']);

/** Encodes operations on one device. It keeps pipelines and scratch memory. */
export class Operations {
  #pipelines;
  #device;
  #scratch = new Map();
  #constants = new Map();

  /**
   * @param {GPUDevice} device
   * @param {{ subgroups?: boolean }} [options]
   */
  constructor(device, options = {}) {
    onlyKeys('options', options, ['subgroups']);
    if (typeof (/** @type {any} */ (object('device', device)).createBuffer) !== 'function') {
      throw new TypeError('device is not a GPUDevice');
    }
    const has = device.features.has('subgroups');
    if (options.subgroups && !has) {
      refuse('subgroups true: the device was made without the feature "subgroups"');
    }
    this.#device = device;
    this.#pipelines = pipelinesOf(device);
    this.subgroups = options.subgroups ?? has; // whether kernels use them
  }

  /**
   * Compiles the kernels that `encode` would encode, without blocking.
   * @param {(pass: GPUComputePassEncoder) => void} encode
   */
  prepare(encode) {
    return this.#pipelines.prepare(encode);
  }

  /**
   * Attention of the window's queries: the exact causal softmax over all keys,
   * reduced over the window's rows and each KV head's query heads.
   */
  encodeWindowScores(encoder, options) {
    const o = this.#scoring(options, [
      'queries',
      'nQHeads',
      'firstQuery',
      'window',
      'scale',
      'softcap',
      'rows',
      'group',
      'perQueryHead',
      'nScored',
    ]);
    const window = integer('window', options.window, 1, MOST_TOKENS);
    if (window > o.nTokens) refuse(`window ${window} > nTokens ${o.nTokens}`);
    const nQHeads = integer('nQHeads', options.nQHeads, 1, 65535);
    const nKvHeads = o.view.nHeads;
    if (nQHeads % nKvHeads !== 0) {
      refuse(`nQHeads ${nQHeads} is not a multiple of nKvHeads ${nKvHeads}`);
    }
    const group = nQHeads / nKvHeads;
    const keys = o.rows('k', 'score');
    const dim = keys.variant.dim;
    const firstQuery = integer('firstQuery', options.firstQuery ?? 0, 0, MOST_TOKENS);
    const ofQueries = { nHeads: nQHeads, nTokens: firstQuery + window, blockSize: 0 };
    const queries = bindRows(
      this.#device,
      checkPlane('queries', options.queries, { nHeads: nQHeads, blockSize: 0, headDim: dim }),
      ofQueries,
      'score',
    );
    const scale = finite('scale', options.scale ?? 1 / Math.sqrt(dim));
    const softcap = finite('softcap', options.softcap ?? 0);
    if (softcap < 0) refuse(`softcap ${softcap} < 0`);
    const reduceRows = word('rows', options.rows ?? 'mean', REDUCE);
    const reduceGroup = word('group', options.group ?? 'mean', REDUCE);
    const perQueryHead = options.perQueryHead === true;
    const nScored = integer('nScored', options.nScored ?? o.nTokens, 0, o.nTokens);
    const scores = o.scores(perQueryHead ? nQHeads : nKvHeads, nScored);
    const nPieces = Math.ceil(o.nTokens / WINDOW_PIECE);
    const nRows = nQHeads * window;
    const pieces = this.#scratchOf('pieces', nRows * nPieces * 16);
    const sums = this.#scratchOf('sums', nRows * 8);
    const variant = { keys: keys.variant, queries: queries.variant, rows: rowsAtOnce(window, dim) };
    const params = {
      n_tokens: o.nTokens,
      window,
      group,
      first_query: firstQuery,
      n_pieces: nPieces,
      scale: softcap === 0 ? scale : scale / softcap,
      softcap,
      ...rowParams('keys', keys.params),
      ...rowParams('queries', queries.params),
    };
    const of = [...keys.bindings, ...queries.bindings];
    withPass(encoder, (pass) => {
      this.#pipelines.run(
        pass,
        windowPieces,
        variant,
        params,
        [...of, pieces],
        [nPieces, Math.ceil(window / variant.rows), nQHeads],
      );
      this.#pipelines.run(
        pass,
        windowSums,
        {},
        { n_rows: nRows, n_pieces: nPieces },
        [pieces, sums],
        [Math.ceil(nRows / 64)],
      );
      this.#pipelines.run(
        pass,
        windowWeights,
        { ...variant, perQueryHead, maxOfRows: reduceRows === 'max', group: reduceGroup },
        {
          ...params,
          n_scored: nScored,
          base: scores.base,
          stride: scores.stride,
          row_scale: reduceRows === 'mean' ? 1 / window : 1,
          group_scale: reduceGroup === 'mean' ? 1 / group : 1,
        },
        [...of, sums, scores.binding],
        [Math.ceil(nScored / WINDOW_KEYS), nKvHeads],
      );
    });
  }

  /** Minus the Euclidean norm of each key. */
  encodeKeyNorms(encoder, options) {
    const o = this.#scoring(options, []);
    const keys = o.rows('k', 'score');
    const scores = o.scores(o.view.nHeads, o.nTokens);
    withPass(encoder, (pass) =>
      this.#pipelines.run(
        pass,
        keyNorms,
        { keys: keys.variant },
        {
          n_tokens: o.nTokens,
          base: scores.base,
          stride: scores.stride,
          ...rowParams('keys', keys.params),
        },
        [...keys.bindings, scores.binding],
        [Math.ceil(o.nTokens / 64), o.view.nHeads],
      ),
    );
  }

  /** Minus the cosine of each key with the mean direction of its head's keys. */
  encodeKeyDiffs(encoder, options) {
    const o = this.#scoring(options, []);
    const nHeads = o.view.nHeads;
    const keys = o.rows('k', 'score');
    const scores = o.scores(nHeads, o.nTokens);
    const quads = quadsOf(keys.variant);
    const nPieces = Math.ceil(o.nTokens / DIRECTION_PIECE);
    const pieces = this.#scratchOf('pieces', nHeads * nPieces * quads * 16);
    const direction = this.#scratchOf('direction', nHeads * quads * 16);
    const variant = { keys: keys.variant };
    const ofKeys = { n_tokens: o.nTokens, ...rowParams('keys', keys.params) };
    withPass(encoder, (pass) => {
      this.#pipelines.run(
        pass,
        keyDirections,
        variant,
        { ...ofKeys, n_pieces: nPieces },
        [...keys.bindings, pieces],
        [nPieces, nHeads],
      );
      this.#pipelines.run(
        pass,
        meanDirection,
        { quads },
        { n_tokens: o.nTokens, n_pieces: nPieces },
        [pieces, direction],
        [o.nTokens === 0 ? 0 : nHeads],
      );
      this.#pipelines.run(
        pass,
        keyCosines,
        variant,
        { ...ofKeys, base: scores.base, stride: scores.stride },
        [...keys.bindings, direction, scores.binding],
        [Math.ceil(o.nTokens / 64), nHeads],
      );
    });
  }

  /** How far keys and values stand out on the scale of the next partition. */
  encodeLagScores(encoder, options) {
    const o = this.#scoring(options, ['sink', 'block', 'ranks']);
    const nHeads = o.view.nHeads;
    const sink = Math.min(integer('sink', options.sink ?? 4, 0, MOST_TOKENS), o.nTokens);
    const block = integer('block', options.block ?? 128, 2, MOST_LAG_BLOCK);
    const keys = o.rows('k', 'score');
    const values = o.rows('v', 'score');
    for (const { variant } of [keys, values]) {
      if (variant.dim > MOST_LAG_DIM)
        refuse(`headDim ${variant.dim} > ${MOST_LAG_DIM}, lagkv's most`);
    }
    const scores = o.scores(nHeads, o.nTokens);
    const nRanked = o.nTokens - sink;
    const nPartitions = Math.floor(nRanked / block);
    const isShort = nPartitions < 2;
    const nScored = isShort ? 0 : nPartitions - 1;
    withPass(encoder, (pass) => {
      this.#pipelines.run(
        pass,
        lagRest,
        {},
        {
          n_tokens: o.nTokens,
          n_sink: sink,
          first_rest: sink + nScored * block,
          is_short: isShort ? 1 : 0,
          base: scores.base,
          stride: scores.stride,
          unit: isShort ? 1 / Math.max(nRanked, 1) : 0,
        },
        [scores.binding],
        [Math.ceil(o.nTokens / 128), nHeads],
      );
      this.#pipelines.run(
        pass,
        lagPartitions,
        {
          keys: keys.variant,
          values: values.variant,
          capacity: Math.max(128, 2 ** Math.ceil(Math.log2(block))),
        },
        {
          block,
          ranks: options.ranks === false ? 0 : 1,
          first: sink,
          base: scores.base,
          stride: scores.stride,
          unit: 1 / block,
          ...rowParams('keys', keys.params),
          ...rowParams('values', values.params),
        },
        [...keys.bindings, ...values.bindings, scores.binding],
        [nScored, nHeads],
      );
    });
  }

  /**
   * Pools rows of scores along the tokens and reduces every `nTerms` of them to
   * one.
   */
  encodeShape(encoder, options) {
    onlyKeys('options', options, [
      'from',
      'to',
      'nRows',
      'nTerms',
      'nTokens',
      'nScored',
      'pool',
      'edge',
      'reduce',
    ]);
    const nRows = integer('nRows', options.nRows, 1, 65535);
    const nTerms = integer('nTerms', options.nTerms ?? 1, 1, 65535);
    const nTokens = integer('nTokens', options.nTokens, 0, MOST_TOKENS);
    const nScored = integer('nScored', options.nScored ?? nTokens, 0, nTokens);
    const { kind, width } = checkPool('pool', options.pool ?? 'none');
    const edge = word('edge', options.edge ?? 'pad', ['pad', 'shrink']);
    const reduce = word('reduce', options.reduce ?? 'mean', REDUCE);
    const from = checkRows(this.#device, 'from', options.from, nRows * nTerms, nScored);
    const to = checkRows(this.#device, 'to', options.to, nRows, nTokens);
    if (options.from.buffer === options.to.buffer) {
      refuse('from.buffer is to.buffer: one dispatch cannot read and write a buffer');
    }
    const buffers = [from.binding, to.binding];
    if (kind === 'avg') buffers.push(this.#inverses(width));
    withPass(encoder, (pass) =>
      this.#pipelines.run(
        pass,
        shapeScores,
        { pool: kind, reduce },
        {
          n_tokens: nTokens,
          n_scored: nScored,
          n_terms: nTerms,
          from_base: from.base,
          from_stride: from.stride,
          to_base: to.base,
          to_stride: to.stride,
          half_width: (width - 1) / 2,
          width,
          shrinks: edge === 'shrink' ? 1 : 0,
          scale: 1 / nTerms,
        },
        buffers,
        [Math.ceil(nTokens / 128), nRows],
      ),
    );
  }

  /**
   * Chooses the slots that stay: sinks, recents, and between them the highest
   * scores; ties by `tie`, NaN last. Lists ascend.
   */
  encodeSelect(encoder, options) {
    onlyKeys('options', options, [
      'scores',
      'keep',
      'nLists',
      'nTokens',
      'nKeep',
      'sink',
      'recent',
      'tie',
    ]);
    const nLists = integer('nLists', options.nLists, 1, 65535);
    const nTokens = integer('nTokens', options.nTokens, 0, MOST_TOKENS);
    const nKeep = integer('nKeep', options.nKeep, 0, MOST_TOKENS);
    if (nKeep > nTokens) refuse(`nKeep ${nKeep} > nTokens ${nTokens}`);
    const nSink = Math.min(integer('sink', options.sink ?? 0, 0, MOST_TOKENS), nTokens);
    const recent = integer('recent', options.recent ?? 0, 0, MOST_TOKENS);
    const nTail = Math.min(recent, nTokens - nSink);
    if (nKeep < nSink + nTail) refuse(`nKeep ${nKeep} < sink ${nSink} + recent ${nTail}`);
    const tie = word('tie', options.tie ?? 'lower', ['lower', 'higher']);
    const scores = checkRows(this.#device, 'scores', options.scores, nLists, nTokens);
    const keep = checkRows(this.#device, 'keep', options.keep, nLists, nKeep);
    if (options.scores.buffer === options.keep.buffer) {
      refuse('scores.buffer is keep.buffer: one dispatch cannot read and write a buffer');
    }
    withPass(encoder, (pass) =>
      this.#pipelines.run(
        pass,
        selectSlots,
        { subgroups: this.subgroups },
        {
          n_tokens: nTokens,
          n_keep: nKeep,
          n_sink: nSink,
          n_tail: nTail,
          higher_ties: tie === 'higher' ? 1 : 0,
          scores_base: scores.base,
          scores_stride: scores.stride,
          keep_base: keep.base,
          keep_stride: keep.stride,
        },
        [scores.binding, keep.binding],
        [nKeep === 0 ? 0 : nLists],
      ),
    );
  }

  /** Moves row keep[i] of every head and plane down to slot i, in place. */
  encodeCompact(encoder, options) {
    onlyKeys('options', options, ['view', 'nTokens', 'nKeep', 'keep']);
    const { nTokens, view, nKeep, keep, listStride } = this.#moving(options);
    const planes = [view.k, view.v, ...view.companions].filter((plane) => plane !== undefined);
    const rows = planes.map((plane) => bindRows(this.#device, plane, view.address, 'move'));
    withPass(encoder, (pass) => {
      for (const plane of rows) {
        this.#pipelines.run(
          pass,
          compactRows,
          { rows: plane.variant },
          {
            n_heads: view.nHeads,
            n_keep: nKeep,
            keep_base: keep.base,
            keep_stride: listStride,
            ...rowParams('rows', plane.params),
          },
          [...plane.bindings, keep.binding],
          [nKeep === 0 || nKeep === nTokens ? 0 : columnGroups(plane.variant, view.nHeads)],
        );
      }
    });
  }

  /** Copies row keep[i] of every head and plane to slot firstSlot + i of another cache. */
  encodeGather(encoder, options) {
    onlyKeys('options', options, ['view', 'nTokens', 'nKeep', 'keep', 'destination', 'firstSlot']);
    const { view, nKeep, keep, listStride } = this.#moving(options);
    const firstSlot = integer('firstSlot', options.firstSlot ?? 0, 0, MOST_TOKENS);
    const destination = checkView(this.#device, 'destination', options.destination, {
      nTokens: firstSlot + nKeep,
      nKvHeads: view.nHeads,
    });
    const sources = [view.k, view.v, ...view.companions];
    const targets = [destination.k, destination.v, ...destination.companions];
    if (sources.length !== targets.length) {
      refuse(`destination has ${targets.length - 2} companions, view ${sources.length - 2}`);
    }
    const pairs = sources.flatMap((from, i) => {
      const to = targets[i];
      if ((from === undefined) !== (to === undefined))
        refuse('only one of view and destination has v');
      if (from === undefined) return [];
      if (from.dtype !== to.dtype || from.rowBytes !== to.rowBytes) {
        refuse(
          `${to.name}: rows of ${to.rowBytes} bytes ${to.dtype}, but ${from.name} has ${from.rowBytes} bytes ${from.dtype}`,
        );
      }
      if (from.buffer === to.buffer) {
        refuse(
          `${to.name}.buffer is ${from.name}.buffer: one dispatch cannot read and write a buffer`,
        );
      }
      return [
        [
          bindRows(this.#device, from, view.address, 'move'),
          bindRows(this.#device, to, destination.address, 'move'),
        ],
      ];
    });
    withPass(encoder, (pass) => {
      for (const [from, to] of pairs) {
        this.#pipelines.run(
          pass,
          gatherRows,
          { from: from.variant, to: to.variant },
          {
            n_heads: view.nHeads,
            n_keep: nKeep,
            keep_base: keep.base,
            keep_stride: listStride,
            first_slot: firstSlot,
            ...rowParams('source', from.params),
            ...rowParams('destination', to.params),
          },
          [...from.bindings, ...to.bindings, keep.binding],
          [columnGroups(from.variant, view.nHeads), gatherGroups(nKeep)],
        );
      }
    });
  }

  /**
   * Rotates the keys of slots 0 .. nRows - 1 by RoPE: with `keep` from slot
   * keep[i] to slot i, with `offsets` (i32) by so many positions.
   */
  encodeRotate(encoder, options) {
    onlyKeys('options', options, ['view', 'nRows', 'keep', 'offsets', 'nLists', 'rope']);
    const nRows = integer('nRows', options.nRows, 0, MOST_TOKENS);
    const view = checkView(this.#device, 'view', options.view, { nTokens: nRows });
    const rope = checkRope('rope', options.rope, view.k);
    if ((options.keep === undefined) === (options.offsets === undefined)) {
      refuse('exactly one of keep and offsets is needed');
    }
    const fromSlots = options.keep !== undefined;
    const nLists = checkLists(options.nLists, view.nHeads);
    const list = checkRows(
      this.#device,
      fromSlots ? 'keep' : 'offsets',
      options.keep ?? options.offsets,
      nLists,
      nRows,
    );
    const rows = bindRows(this.#device, view.k, view.address, 'words');
    const variant = {
      rows: rows.variant,
      nPairs: rope.nPairs,
      interleaved: rope.interleaved,
      fromSlots,
    };
    withPass(encoder, (pass) =>
      this.#pipelines.run(
        pass,
        rotateRows,
        variant,
        {
          n_rows: nRows,
          list_base: list.base,
          list_stride: nLists === 1 ? 0 : list.stride,
          ...rowParams('rows', rows.params),
        },
        [...rows.bindings, list.binding, this.#turns(rope.invFreq)],
        [rotateGroups(variant, nRows), view.nHeads],
      ),
    );
  }

  /** Frees scratch memory, once the GPU has done the work that uses it. */
  destroy() {
    for (const { buffer } of [...this.#scratch.values(), ...this.#constants.values()])
      buffer.destroy();
    this.#scratch.clear();
    this.#constants.clear();
  }

  // What operations that score have in common.
  #scoring(options, more) {
    onlyKeys('options', options, ['view', 'nTokens', 'scores', ...more]);
    const nTokens = integer('nTokens', options.nTokens, 0, MOST_TOKENS);
    const view = checkView(this.#device, 'view', options.view, { nTokens });
    return {
      nTokens,
      view,
      rows: (which, use) => {
        const plane = view[which];
        if (plane === undefined) refuse(`view.${which} is missing`);
        if (plane.dtype === 'opaque') refuse(`view.${which}.dtype opaque cannot be scored`);
        return bindRows(this.#device, plane, view.address, use);
      },
      scores: (nRows, length) => checkRows(this.#device, 'scores', options.scores, nRows, length),
    };
  }

  // What operations that move rows have in common.
  #moving(options) {
    const nTokens = integer('nTokens', options.nTokens, 0, MOST_TOKENS);
    const nKeep = integer('nKeep', options.nKeep, 0, nTokens);
    const view = checkView(this.#device, 'view', options.view, { nTokens });
    const nLists = checkLists(options.keep?.nLists, view.nHeads);
    const keep = checkRows(this.#device, 'keep', options.keep, nLists, nKeep);
    return { nTokens, nKeep, view, keep, listStride: nLists === 1 ? 0 : keep.stride };
  }

  // A buffer of at least so many bytes. One that was too small lives on in what
  // is encoded with it.
  #scratchOf(name, bytes) {
    let range = this.#scratch.get(name);
    if (range === undefined || range.buffer.size < bytes) {
      const most = this.#device.limits.maxStorageBufferBindingSize;
      if (bytes > most)
        refuse(`scratch of ${bytes} bytes > ${most}, the device's maxStorageBufferBindingSize`);
      const size = Math.max(16, 2 ** Math.ceil(Math.log2(Math.max(bytes, 1))));
      const buffer = this.#device.createBuffer({
        label: `kvevict ${name}`,
        size: Math.min(size, most),
        usage: 128, // GPUBufferUsage.STORAGE
      });
      range = { buffer };
      this.#scratch.set(name, range);
    }
    return range;
  }

  #constant(key, words) {
    let range = this.#constants.get(key);
    if (range === undefined) {
      const buffer = this.#device.createBuffer({
        label: 'kvevict constants',
        size: words.byteLength,
        usage: 128,
        mappedAtCreation: true,
      });
      new Uint8Array(buffer.getMappedRange()).set(new Uint8Array(words.buffer));
      buffer.unmap();
      range = { buffer };
      this.#constants.set(key, range);
    }
    return range;
  }

  // f32 1 / n, rounded once, which a GPU's own division need not be.
  #inverses(width) {
    return this.#constant(
      `inverses ${width}`,
      Float32Array.from({ length: width + 1 }, (_, n) => 1 / n),
    );
  }

  #turns(invFreq) {
    return this.#constant(`turns ${invFreq.join()}`, turnsOf(invFreq));
  }
}
