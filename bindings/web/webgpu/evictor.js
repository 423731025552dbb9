// An evictor: one policy on caches of one shape. Each call scores, selects,
// compacts and, if asked, rotates one layer.
import { checkPool, checkRope, withPass } from './arguments.js';
import { finite, integer, object, onlyKeys, refuse, word } from './check.js';
import { Operations } from './operations.js';
import { checkHeadDim, checkRange } from './planes.js';

const MOST_TOKENS = 2 ** 31 - 1;
const REDUCE = ['mean', 'max', 'sum'];

const WINDOW = {
  sink: 4,
  recent: 0,
  window: 32,
  keepWindow: true,
  pool: 'avg7',
  edge: 'pad',
  rows: 'mean',
  group: 'mean',
  order: 'reduce-pool',
  scope: 'head',
  over: 'mean',
  tie: 'lower',
};
const KEYS = {
  sink: 4,
  recent: 0,
  pool: 'none',
  edge: 'pad',
  scope: 'head',
  over: 'mean',
  tie: 'lower',
};

// Each policy's parameters with its own defaults, as in docs/policies.md.
const POLICIES = {
  none: {},
  'streaming-llm': { sink: 4 },
  snapkv: WINDOW,
  pyramidkv: WINDOW,
  tova: { ...WINDOW, sink: 0, window: 1, pool: 'none', scope: 'layer' },
  knorm: KEYS,
  keydiff: KEYS,
  lagkv: { ...KEYS, block: 128, ranks: true },
  h2o: { ...KEYS, sink: 0, recent: 32, group: 'mean', order: 'reduce-pool' },
  custom: KEYS,
};

/** @param {any} policy */
function checkPolicy(policy) {
  const kind = word('policy.kind', object('policy', policy).kind, Object.keys(POLICIES));
  const defaults = POLICIES[kind];
  onlyKeys('policy', policy, ['kind', 'budget', 'rotate', ...Object.keys(defaults)]);
  const p = { kind, rotate: false, ...defaults, ...policy };
  const flag = (key) => {
    if (p[key] !== undefined && typeof p[key] !== 'boolean') {
      throw new TypeError(`policy.${key} ${String(p[key])} is not a boolean`);
    }
  };
  if (kind !== 'none') p.budget = integer('policy.budget', p.budget, 1, MOST_TOKENS);
  for (const key of ['sink', 'recent'])
    p[key] = integer(`policy.${key}`, p[key] ?? 0, 0, MOST_TOKENS);
  if (p.window !== undefined) integer('policy.window', p.window, 1, MOST_TOKENS);
  for (const key of ['keepWindow', 'ranks', 'rotate']) flag(key);
  if (p.pool !== undefined) checkPool('policy.pool', p.pool);
  for (const key of ['rows', 'group', 'over'])
    if (p[key] !== undefined) word(`policy.${key}`, p[key], REDUCE);
  if (p.edge !== undefined) word('policy.edge', p.edge, ['pad', 'shrink']);
  if (p.order !== undefined) word('policy.order', p.order, ['reduce-pool', 'pool-reduce']);
  if (p.scope !== undefined) word('policy.scope', p.scope, ['head', 'layer']);
  if (p.tie !== undefined) word('policy.tie', p.tie, ['lower', 'higher']);
  if (p.block !== undefined) integer('policy.block', p.block, 2, 1024);
  if (kind !== 'none') checkBudget('policy.budget', p.budget, p);
  return p;
}

// What must stay has to fit, and a window policy needs room for one token more.
function checkBudget(name, budget, p) {
  if (p.kind === 'streaming-llm') {
    if (p.sink >= budget) refuse(`${name} ${budget} <= sink ${p.sink}`);
    return;
  }
  if (p.window !== undefined) {
    const ends = Math.max(p.window, p.recent);
    if (p.sink + ends >= budget) {
      refuse(`${name} ${budget} <= sink ${p.sink} + max(window ${p.window}, recent ${p.recent})`);
    }
    return;
  }
  if (p.sink + p.recent > budget) refuse(`${name} ${budget} < sink ${p.sink} + recent ${p.recent}`);
}

/** @param {any} shape */
function checkShape(shape) {
  onlyKeys('shape', shape, [
    'nQHeads',
    'nKvHeads',
    'kHeadDim',
    'vHeadDim',
    'dtype',
    'maxTokens',
    'softmaxScale',
    'logitSoftcap',
  ]);
  const dtype = word('shape.dtype', shape.dtype ?? 'f32', ['f32', 'f16']);
  const nKvHeads = integer('shape.nKvHeads', shape.nKvHeads, 1, 65535);
  const nQHeads = integer('shape.nQHeads', shape.nQHeads ?? nKvHeads, 1, 65535);
  if (nQHeads % nKvHeads !== 0) {
    refuse(`shape.nQHeads ${nQHeads} is not a multiple of nKvHeads ${nKvHeads}`);
  }
  const kHeadDim = checkHeadDim('shape.kHeadDim', shape.kHeadDim, dtype);
  const softcap = finite('shape.logitSoftcap', shape.logitSoftcap ?? 0);
  if (softcap < 0) refuse(`shape.logitSoftcap ${softcap} < 0`);
  return {
    dtype,
    nKvHeads,
    nQHeads,
    kHeadDim,
    vHeadDim: checkHeadDim('shape.vHeadDim', shape.vHeadDim ?? kHeadDim, dtype),
    maxTokens: integer('shape.maxTokens', shape.maxTokens, 1, MOST_TOKENS),
    scale: finite('shape.softmaxScale', shape.softmaxScale || 1 / Math.sqrt(kHeadDim)),
    softcap,
  };
}

export class Evictor {
  #operations;
  #shape;
  #policy;
  #rope;
  #raw; // scores before they are shaped
  #shaped;
  #reduced;
  #keep;

  /**
   * @param {GPUDevice} device
   * @param {any} options  See EvictorOptions.
   */
  constructor(device, options) {
    onlyKeys('options', options, ['shape', 'policy', 'rope', 'subgroups']);
    const shape = checkShape(options.shape);
    const policy = checkPolicy(options.policy);
    this.#shape = shape;
    this.#policy = policy;
    this.#rope = options.rope;
    if (policy.rotate) {
      checkRope('rope', options.rope, { dtype: shape.dtype, headDim: shape.kHeadDim });
    }
    this.#operations = new Operations(
      device,
      options.subgroups === undefined ? {} : { subgroups: options.subgroups },
    );
    if (policy.kind === 'none') return;
    const most = device.limits.maxStorageBufferBindingSize;
    const floats = (label, nRows) => {
      const size = nRows * shape.maxTokens * 4;
      if (size > most) {
        refuse(
          `shape.maxTokens ${shape.maxTokens}: ${nRows} rows of scores are ${size} bytes > ${most}, the device's maxStorageBufferBindingSize`,
        );
      }
      const usage = 128 | 4; // STORAGE, COPY_SRC
      return {
        buffer: device.createBuffer({ label: `kvevict ${label}`, size, usage }),
        stride: shape.maxTokens,
      };
    };
    const heads = this.#isPerQueryHead ? shape.nQHeads : shape.nKvHeads;
    this.#raw = floats('scores', policy.kind === 'streaming-llm' ? 1 : heads);
    if (this.#shapes) this.#shaped = floats('shaped scores', shape.nKvHeads);
    if (policy.scope === 'layer') this.#reduced = floats('layer scores', 1);
    this.#keep = floats('keep lists', this.nLists);
  }

  /** Keep lists of a layer: one, or one per KV head. */
  get nLists() {
    const { kind, scope } = this.#policy;
    return kind === 'streaming-llm' || scope === 'layer' ? 1 : this.#shape.nKvHeads;
  }

  /** Whether kernels use subgroups. */
  get subgroups() {
    return this.#operations.subgroups;
  }

  // With one query head per KV head the order of pooling and reduction is all one.
  get #isPerQueryHead() {
    return this.#policy.order === 'pool-reduce' && this.#shape.nQHeads > this.#shape.nKvHeads;
  }

  get #shapes() {
    return this.#isPerQueryHead || checkPool('pool', this.#policy.pool ?? 'none').kind !== 'none';
  }

  /**
   * Compiles the kernels of an encode() with such arguments, without blocking.
   * @param {any} options  See EvictOptions.
   */
  prepare(options) {
    return this.#operations.prepare((pass) => this.encode(pass, options));
  }

  /**
   * Encodes the eviction of one layer. It waits for nothing.
   * @param {GPUCommandEncoder | GPUComputePassEncoder} encoder
   * @param {any} options  See EvictOptions.
   */
  encode(encoder, options) {
    onlyKeys('options', options, [
      'view',
      'nTokens',
      'budget',
      'queries',
      'firstQuery',
      'nQueryRows',
      'scores',
      'keep',
    ]);
    const policy = this.#policy;
    const shape = this.#shape;
    const nTokens = integer('nTokens', options.nTokens, 0, shape.maxTokens);
    const left = (reason) => ({ evicted: false, nTokens, reason });
    if (policy.kind === 'none') return left('policy none');
    const budget = integer('budget', options.budget ?? policy.budget, 1, MOST_TOKENS);
    if (options.budget !== undefined) checkBudget('budget', budget, policy);
    if (nTokens <= budget) return left('within budget');
    if (policy.window > nTokens) return left('fewer tokens than the window');
    const view = this.#checkView(options.view);
    const keep = { ...(options.keep ?? this.#keep) };
    if (options.keep !== undefined) checkRange('keep', options.keep, ['stride']);
    keep.stride ??= budget;
    const lists = { ...keep, nLists: this.nLists };
    const isWindow = policy.window !== undefined;
    const tail = Math.max(policy.recent, isWindow && policy.keepWindow ? policy.window : 0);
    const select = {
      nLists: this.nLists,
      nTokens,
      nKeep: budget,
      sink: policy.sink,
      tie: policy.tie ?? 'lower',
    };
    const encode = (pass) => {
      if (policy.kind === 'streaming-llm') {
        // After the sinks the most recent tokens: nothing is ranked.
        this.#operations.encodeSelect(pass, {
          ...select,
          recent: budget - policy.sink,
          scores: this.#raw,
          keep,
        });
      } else {
        const scores = this.#encodeScores(pass, view, options, nTokens);
        this.#operations.encodeSelect(pass, { ...select, recent: tail, scores, keep });
      }
      this.#operations.encodeCompact(pass, { view, nTokens, nKeep: budget, keep: lists });
      if (policy.rotate) {
        this.#operations.encodeRotate(pass, {
          view,
          nRows: budget,
          keep,
          nLists: this.nLists,
          rope: this.#rope,
        });
      }
    };
    withPass(encoder, encode);
    return {
      evicted: true,
      nTokens: budget,
      keep: { ...lists, offset: keep.offset ?? 0, count: budget },
    };
  }

  /** Frees the evictor's memory, once the GPU has done the work that uses it. */
  destroy() {
    for (const range of [this.#raw, this.#shaped, this.#reduced, this.#keep])
      range?.buffer.destroy();
    this.#operations.destroy();
  }

  // The view, with what it leaves out from the shape.
  #checkView(view) {
    const { nKvHeads, dtype, kHeadDim, vHeadDim } = this.#shape;
    object('view', view);
    if ((view.nKvHeads ?? nKvHeads) !== nKvHeads) {
      refuse(`view.nKvHeads ${view.nKvHeads} is not ${nKvHeads}, the shape's`);
    }
    const plane = (name, headDim) => {
      const given = object(`view.${name}`, view[name]);
      for (const [key, value] of Object.entries({ dtype, headDim })) {
        if ((given[key] ?? value) !== value)
          refuse(`view.${name}.${key} ${given[key]} is not ${value}, the shape's`);
      }
      return { dtype, headDim, ...given };
    };
    return { ...view, nKvHeads, k: plane('k', kHeadDim), v: plane('v', vHeadDim) };
  }

  // Scores as they are ranked.
  #encodeScores(pass, view, options, nTokens) {
    const policy = this.#policy;
    const { nKvHeads, nQHeads, scale, softcap } = this.#shape;
    const isGiven =
      policy.kind === 'custom' || (policy.kind === 'h2o' && options.scores !== undefined);
    const perQueryHead = this.#isPerQueryHead && !isGiven;
    const isWindow = policy.window !== undefined;
    const nScored = isWindow && policy.keepWindow ? nTokens - policy.window : nTokens;
    const common = { view, nTokens, scores: this.#raw };
    let scores = this.#raw;
    switch (policy.kind) {
      case 'knorm':
        this.#operations.encodeKeyNorms(pass, common);
        break;
      case 'keydiff':
        this.#operations.encodeKeyDiffs(pass, common);
        break;
      case 'lagkv':
        this.#operations.encodeLagScores(pass, {
          ...common,
          sink: policy.sink,
          block: policy.block,
          ranks: policy.ranks,
        });
        break;
      default:
        if (isGiven) {
          if (options.scores === undefined)
            refuse('scores are missing: policy custom ranks by them');
          checkRange('scores', options.scores, ['stride']);
          scores = { stride: nTokens, ...options.scores };
          break;
        }
        if (options.queries === undefined)
          refuse(`queries are missing: policy ${policy.kind} scores by them`);
        this.#operations.encodeWindowScores(pass, {
          ...common,
          queries: options.queries,
          firstQuery: options.firstQuery ?? 0,
          nQHeads,
          nScored,
          scale,
          softcap,
          perQueryHead,
          // h2o: the sums that all queries make, or those given.
          window: policy.window ?? integer('nQueryRows', options.nQueryRows ?? nTokens, 1, nTokens),
          rows: policy.rows ?? 'sum',
          group: policy.group,
        });
    }
    if (this.#shapes) {
      this.#operations.encodeShape(pass, {
        from: scores,
        to: this.#shaped,
        nRows: nKvHeads,
        nTerms: perQueryHead ? nQHeads / nKvHeads : 1,
        nTokens,
        nScored,
        pool: policy.pool,
        edge: policy.edge,
        reduce: policy.group ?? 'mean',
      });
      scores = this.#shaped;
    }
    if (policy.scope === 'layer') {
      this.#operations.encodeShape(pass, {
        from: scores,
        to: this.#reduced,
        nRows: 1,
        nTerms: nKvHeads,
        nTokens,
        nScored,
        reduce: policy.over,
      });
      scores = this.#reduced;
    }
    return scores;
  }
}
