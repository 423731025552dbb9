// Code generated from params.inc by bindings/go/generate.sh. DO NOT EDIT.

package kvevict

// Budget: tokens that a KV head of a layer keeps, everything included. A number up to 1 is a
// ratio of the context, a number above 1 a count of tokens. 1 is the whole context. The
// context is the number of tokens seen so far, at most the plan's MaxTokens. The ratio times
// the context, computed in double, or the count, is rounded down and lies in [1, context]: a
// ratio of 0.29 keeps 28 of 100 tokens, since 0.29 * 100 is below 29 in double. If layers or
// adaptive heads keep different numbers, the budget is their mean.
func (p Policy) Budget() (float64, error) { return p.number("budget") }

// SetBudget sets what Budget returns.
func (p *Policy) SetBudget(value float64) error { return p.setNumber("budget", value) }

// Sink: first tokens, which always stay: a count, or below 1 a share of the budget. A share
// needs a budget in tokens.
func (p Policy) Sink() (float64, error) { return p.number("sink") }

// SetSink sets what Sink returns.
func (p *Policy) SetSink(value float64) error { return p.setNumber("sink", value) }

// Recent: last tokens, which always stay: a count, or below 1 a share of the budget. A share
// of a ratio grows with the context and excludes Split=lazy, chunk, Of=partition, HeadBudgets
// and LayerBudgets. streaming-llm takes no share: 0 means budget - sink, and another count
// makes the budget sink + recent, whatever `budget` says.
func (p Policy) Recent() (float64, error) { return p.number("recent") }

// SetRecent sets what Recent returns.
func (p *Policy) SetRecent(value float64) error { return p.setNumber("recent", value) }

// Window: the number of last queries whose attention scores the tokens: a count, or below 1 a
// share of a budget in tokens, at least 1. An eviction needs all of their tokens held, also
// with KeepWindow=no.
func (p Policy) Window() (float64, error) { return p.number("window") }

// SetWindow sets what Window returns.
func (p *Policy) SetWindow(value float64) error { return p.setNumber("window", value) }

// KeepWindow: whether the tokens of the window always stay. With no they are ranked and pooled
// like others. If one of them has been evicted, the next eviction waits for up to a window of
// new tokens.
func (p Policy) KeepWindow() (bool, error) { return p.flag("keep_window") }

// SetKeepWindow sets what KeepWindow returns.
func (p *Policy) SetKeepWindow(value bool) error { return p.setFlag("keep_window", value) }

// Pool: pooling of scores along the tokens with stride 1: the mean or the maximum over N
// tokens. N is odd and at most 1023.
func (p Policy) Pool() (string, error) { return p.word("pool") }

// SetPool sets what Pool returns.
func (p *Policy) SetPool(value string) error { return p.setWord("pool", value) }

// Edge: the divisor of average pooling where its kernel reaches beyond an edge. pad: the full
// width, as in published code. shrink: the number of tokens inside. mass: the full width; then
// the row is scaled to the sum that it had before, which needs Order=pool-rows (DefensiveKV,
// arXiv:2510.13334).
func (p Policy) Edge() (string, error) { return p.word("edge") }

// SetEdge sets what Edge returns.
func (p *Policy) SetEdge(value string) error { return p.setWord("edge", value) }

// Rows: how the rows of the window are reduced to one. h2o: sum takes attention sums
// unchanged; mean divides each by the number of queries that could see the token; max is
// refused.
func (p Policy) Rows() (string, error) { return p.word("rows") }

// SetRows sets what Rows returns.
func (p *Policy) SetRows(value string) error { return p.setWord("rows", value) }

// RowWeight: the factor of a window row's weights before rows are reduced. past: the number of
// slots before the row's own, since a row that sees more keys gives less to each (FINCH,
// arXiv:2408.00167).
func (p Policy) RowWeight() (string, error) { return p.word("row_weight") }

// SetRowWeight sets what RowWeight returns.
func (p *Policy) SetRowWeight(value string) error { return p.setWord("row_weight", value) }

// Softmax: the keys in the softmax of a window row. causal: all up to the row's own token.
// past: those before the window (R-KV, arXiv:2505.24133); with KeepWindow=no the tokens of the
// window then score 0.
func (p Policy) Softmax() (string, error) { return p.word("softmax") }

// SetSoftmax sets what Softmax returns.
func (p *Policy) SetSoftmax(value string) error { return p.setWord("softmax", value) }

// Reference: the number of reference queries, which belong to no token held, such as those of
// a likely question. The caller gives them with every call that scores. 0: none. Above 0 it
// excludes spread, and a split that is cake or lazy. Policies that do not score by a window
// take them only for `fit`. docs/policies/reference-queries.md says when they help (DapQ,
// arXiv:2603.11564; SpecKV, arXiv:2506.08373).
func (p Policy) Reference() (int, error) { return p.count("reference") }

// SetReference sets what Reference returns.
func (p *Policy) SetReference(value int) error { return p.setCount("reference", value) }

// ReferenceWeight: the share of the reference queries in a score. Their weights are multiplied
// by it, those of the window's rows by the rest; with Rows=mean each is divided by the number
// of its own rows. Then `rows` reduces all of them together. With 1 the window's queries are
// not read. Its tokens stay as KeepWindow says.
func (p Policy) ReferenceWeight() (float64, error) { return p.number("reference_weight") }

// SetReferenceWeight sets what ReferenceWeight returns.
func (p *Policy) SetReferenceWeight(value float64) error {
	return p.setNumber("reference_weight", value)
}

// Spread: for each query head, the mean of a token's weight over the window's rows is
// increased by spread times its unbiased variance. Above 0 it needs Rows=mean and a window of
// 2 .. 64 (CAKE, arXiv:2503.12491).
func (p Policy) Spread() (float64, error) { return p.number("spread") }

// SetSpread sets what Spread returns.
func (p *Policy) SetSpread(value float64) error { return p.setNumber("spread", value) }

// Group: how the query heads of a KV head are reduced to one.
func (p Policy) Group() (string, error) { return p.word("group") }

// SetGroup sets what Group returns.
func (p *Policy) SetGroup(value string) error { return p.setWord("group", value) }

// Order: the order of the steps. reduce-pool: heads are reduced, then scores are pooled, then
// weighted. pool-reduce: scores are pooled before heads are reduced, which matters only if one
// of the two is a maximum. reduce-logits: heads are reduced before the softmax by Group=max
// (R-KV). weigh-pool: scores are weighted before they are pooled. pool-rows: each row of the
// window of each query head is pooled before rows and heads are reduced; only a window has
// rows.
func (p Policy) Order() (string, error) { return p.word("order") }

// SetOrder sets what Order returns.
func (p *Policy) SetOrder(value string) error { return p.setWord("order", value) }

// Prior: the least that a token scores. mean: a shaped score below the mean of its head is
// raised to it, before scores are weighted (with Order=weigh-pool after). The window, if it
// stays, is not in the mean. A mean that is not finite raises nothing. Weights then decide
// between tokens that the window has hardly looked at (DefensiveKV, arXiv:2510.13334).
func (p Policy) Prior() (string, error) { return p.word("prior") }

// SetPrior sets what Prior returns.
func (p *Policy) SetPrior(value string) error { return p.setWord("prior", value) }

// Scope: what shares one keep list. head: nothing, each KV head of each layer has its own.
// layer: the heads of a layer. model: all layers and their heads.
func (p Policy) Scope() (string, error) { return p.word("scope") }

// SetScope sets what Scope returns.
func (p *Policy) SetScope(value string) error { return p.setWord("scope", value) }

// Over: how the heads and layers that share a keep list are reduced to one.
func (p Policy) Over() (string, error) { return p.word("over") }

// SetOver sets what Over returns.
func (p *Policy) SetOver(value string) error { return p.setWord("over", value) }

// Tie: which of two tokens with equal scores survives: the one at the lower or at the higher
// position.
func (p Policy) Tie() (string, error) { return p.word("tie") }

// SetTie sets what Tie returns.
func (p *Policy) SetTie(value string) error { return p.setWord("tie", value) }

// Split: how the budget is spread over the layers; Scope=model needs uniform. uniform:
// equally. geometric: by weights alpha^layer, with an exact sum. arithmetic-kvf: in integer
// steps from 2c - c/beta down to c/beta, c being the tokens besides the window, as in
// KVCache-Factory; the sum exceeds the budget. arithmetic-kvpress: the same in floating point,
// and uniform if the schedule does not fit, as in kvpress. arithmetic-adakv: the steps of
// arithmetic-kvf for every context over the budget, as by AdaKV's authors. cake: in proportion
// to E^(1/tau1) * V^(1/tau2), where E = -sum a ln(a + 1e-10) is the entropy of a layer's
// window weights and V their variance over the rows (CAKE, arXiv:2503.12491). lazy: a layer
// whose window gives more than `lazy` of its attention to both ends keeps the budget, and the
// others keep everything (SimLayerKV, arXiv:2410.13846). scores: the tokens of all layers and
// heads compete. As many of the best stay as all budgets add up to. Each list keeps at least
// its best tokens, up to `floor` of its budget. Lists take turns for tokens that are equal at
// the cut. With Heads=equal a layer's winners are divided by its heads; the layers that lose
// most by rounding get one more per head (Layer-DefensiveKV, arXiv:2510.13334). cake, lazy and
// scores are computed during an eviction. cake and lazy need Rows=mean, RowWeight=none, an
// order other than reduce-logits and pool-rows, and a window of up to 64.
func (p Policy) Split() (string, error) { return p.word("split") }

// SetSplit sets what Split returns.
func (p *Policy) SetSplit(value string) error { return p.setWord("split", value) }

// Alpha: the ratio of Split=geometric.
func (p Policy) Alpha() (float64, error) { return p.number("alpha") }

// SetAlpha sets what Alpha returns.
func (p *Policy) SetAlpha(value float64) error { return p.setNumber("alpha", value) }

// Beta: the steepness of the arithmetic splits.
func (p Policy) Beta() (int, error) { return p.count("beta") }

// SetBeta sets what Beta returns.
func (p *Policy) SetBeta(value int) error { return p.setCount("beta", value) }

// Tau1: Split=cake: the root taken of a layer's entropy.
func (p Policy) Tau1() (float64, error) { return p.number("tau1") }

// SetTau1 sets what Tau1 returns.
func (p *Policy) SetTau1(value float64) error { return p.setNumber("tau1", value) }

// Tau2: Split=cake: the root taken of a layer's variance.
func (p Policy) Tau2() (float64, error) { return p.number("tau2") }

// SetTau2 sets what Tau2 returns.
func (p *Policy) SetTau2(value float64) error { return p.setNumber("tau2", value) }

// Lazy: Split=lazy: a layer is lazy if the share of its attention to both ends is above this.
// With 1 no layer is.
func (p Policy) Lazy() (float64, error) { return p.number("lazy") }

// SetLazy sets what Lazy returns.
func (p *Policy) SetLazy(value float64) error { return p.setNumber("lazy", value) }

// Seed: the seed of policy random, of Anchor=random and of draw.
func (p Policy) Seed() (uint64, error) { return p.seed("seed") }

// SetSeed sets what Seed returns.
func (p *Policy) SetSeed(value uint64) error { return p.setSeed("seed", value) }

// HalfLife: custom: the number of tokens in which a score loses half; 0: scores do not decay.
// An eviction scores a token by its score times 2^(-age / HalfLife), at least 2^-126, before
// it pools. age is the number of tokens that were appended after the token. The score itself
// stays, so it does not matter how often evictions run. A score below 0 rises with age, so
// give exponentials in place of logarithms. Plan.Score() takes slots for positions.
func (p Policy) HalfLife() (int, error) { return p.count("half_life") }

// SetHalfLife sets what HalfLife returns.
func (p *Policy) SetHalfLife(value int) error { return p.setCount("half_life", value) }

// Block: the number of tokens that are compared with each other: lagkv's partition, cur's
// window, non-causal's chunk, or the tokens that keydiff adds at a time. Only keydiff accepts
// 0: all at once.
func (p Policy) Block() (int, error) { return p.count("block") }

// SetBlock sets what Block returns.
func (p *Policy) SetBlock(value int) error { return p.setCount("block", value) }

// Ends: non-causal: whether the first `sink` and the last `recent` tokens take part. out:
// chunks begin behind the sinks and end before the last tokens, and those at the ends score 0
// (Compactor).
func (p Policy) Ends() (string, error) { return p.word("ends") }

// SetEnds sets what Ends returns.
func (p *Policy) SetEnds(value string) error { return p.setWord("ends", value) }

// Ranks: lagkv: with yes a token scores by its rank within its partition, with no by the
// number that is ranked.
func (p Policy) Ranks() (bool, error) { return p.flag("ranks") }

// SetRanks sets what Ranks returns.
func (p *Policy) SetRanks(value bool) error { return p.setFlag("ranks", value) }

// Of: lagkv: what the budget applies to. context: all tokens. partition: each partition but
// the last whole one, as a ratio or count of block; sinks and the tokens behind these
// partitions are kept in addition.
func (p Policy) Of() (string, error) { return p.word("of") }

// SetOf sets what Of returns.
func (p *Policy) SetOf(value string) error { return p.setWord("of", value) }

// SelectBlock: neighbouring slots that stay or go together, counted from slot 0. The slots of
// a block have the mean of its scores, and a slot that must stay keeps its block. A last block
// that is not full must stay, since the next token goes there. A budget is rounded down to
// whole blocks. The context is first rounded down to a length whose last block is as full as
// the cache's. Only whole blocks go, so that a budget of B tokens leaves between B -
// SelectBlock + 1 and B slots. Above 1 it needs Heads=equal and Of=context (ChunkKV,
// arXiv:2502.00299).
func (p Policy) SelectBlock() (int, error) { return p.count("select_block") }

// SetSelectBlock sets what SelectBlock returns.
func (p *Policy) SetSelectBlock(value int) error { return p.setCount("select_block", value) }

// Chunk: the number of neighbouring slots that are scored and selected as if they were the
// whole cache, counted from slot 0; 0: all slots at once. `sink` applies to each chunk; recent
// and protected positions apply to the whole cache. A ratio is of each chunk, rounded down. A
// count of tokens is shared: all chunks keep the same share of their tokens, rounded down, and
// the first chunks keep one more until the sum is exact. A chunk keeps at least one token. It
// excludes attention by windows or sums, heads other than equal, HeadBudgets, Of=partition, a
// prompt that is pinned or beside, and SelectBlock. (ChunkPress of kvpress.)
func (p Policy) Chunk() (int, error) { return p.count("chunk") }

// SetChunk sets what Chunk returns.
func (p *Policy) SetChunk(value int) error { return p.setCount("chunk", value) }

// Weight: the factor of the scores: a pooled score becomes (score + epsilon) * weight. norm:
// the Euclidean norm of the token's value row, which must be readable. given: the caller's
// TokenWeights.
func (p Policy) Weight() (string, error) { return p.word("weight") }

// SetWeight sets what Weight returns.
func (p *Policy) SetWeight(value string) error { return p.setWord("weight", value) }

// Epsilon: A number that is added to a score before it is weighted.
func (p Policy) Epsilon() (float64, error) { return p.number("epsilon") }

// SetEpsilon sets what Epsilon returns.
func (p *Policy) SetEpsilon(value float64) error { return p.setNumber("epsilon", value) }

// Share: how Weight=given is used. heads: a weight is first divided by the sum of the weights
// that the layer's KV heads have for the same token. A head that has lost the token counts
// with the mean of those that hold it; Plan.Score() takes equal slots for equal tokens. A
// share of nothing is 0 (DefensiveKV, arXiv:2510.13334).
func (p Policy) Share() (string, error) { return p.word("share") }

// SetShare sets what Share returns.
func (p *Policy) SetShare(value string) error { return p.setWord("share", value) }

// Standardize: whether weighted scores, less redundancy, become (score - mean) /
// max(deviation, 1e-6), with the mean and the unbiased deviation of the scores of all KV heads
// of the layer. The first `sink` and the last tokens that must stay are in neither, and a
// score that is not finite is in neither and stays.
func (p Policy) Standardize() (bool, error) { return p.flag("standardize") }

// SetStandardize sets what Standardize returns.
func (p *Policy) SetStandardize(value bool) error { return p.setFlag("standardize", value) }

// Leverage: above 0 this many times the standardised leverage of the keys, as in policy
// leverage, is added to scores. It needs readable keys and RoPEInvFreq (Compactor,
// arXiv:2507.08143).
func (p Policy) Leverage() (float64, error) { return p.number("leverage") }

// SetLeverage sets what Leverage returns.
func (p *Policy) SetLeverage(value float64) error { return p.setNumber("leverage", value) }

// LeverageScale: A factor of `leverage`. evicted: the share of the context that the budget has
// no room for, which is 1 - budget for a ratio. So leverage counts more if more tokens are
// evicted.
func (p Policy) LeverageScale() (string, error) { return p.word("leverage_scale") }

// SetLeverageScale sets what LeverageScale returns.
func (p *Policy) SetLeverageScale(value string) error { return p.setWord("leverage_scale", value) }

// Redundancy: above 0 a score becomes (1 - redundancy) * score - redundancy * R. R is the
// similarity of the token's key to the others, which must be readable; docs/reference.md
// defines it (R-KV, arXiv:2505.24133).
func (p Policy) Redundancy() (float64, error) { return p.number("redundancy") }

// SetRedundancy sets what Redundancy returns.
func (p *Policy) SetRedundancy(value float64) error { return p.setNumber("redundancy", value) }

// Similarity: keys count as similar for redundancy if their cosine is above this.
func (p Policy) Similarity() (float64, error) { return p.number("similarity") }

// SetSimilarity sets what Similarity returns.
func (p *Policy) SetSimilarity(value float64) error { return p.setNumber("similarity", value) }

// Secure: the share of a head's kept tokens that are chosen by pooled scores, before these are
// weighted or lose redundancy; it is rounded down in f32. The rest are chosen by the final
// scores. Heads that compete do so by pooled scores, and the floor of adaptive heads is chosen
// by them too. Only evictions do this. Above 0 it needs Scope=head and SelectBlock=1, and
// excludes Heads=threshold (CriticalKV, arXiv:2502.03805).
func (p Policy) Secure() (float64, error) { return p.number("secure") }

// SetSecure sets what Secure returns.
func (p *Policy) SetSecure(value float64) error { return p.setNumber("secure", value) }

// SecureValues: the number of tokens of each KV head that stay for their values, within the
// budget and in addition to those that must stay: a count, or below 1 a share of the budget,
// rounded down. Protected positions count among those that must stay, whether or not they are
// held. The tokens with the largest ValueMeasure are taken, whatever they score. Only
// evictions do this. Above 0 values must be readable, and it needs Scope=head, Heads=equal and
// SelectBlock=1. It excludes Split=scores, secure, chunk and HeadBudgets (VaSE,
// arXiv:2606.03928).
func (p Policy) SecureValues() (float64, error) { return p.number("secure_values") }

// SetSecureValues sets what SecureValues returns.
func (p *Policy) SetSecureValues(value float64) error { return p.setNumber("secure_values", value) }

// ValueMeasure: what SecureValues ranks value rows by. range: the largest element minus the
// smallest. norm: the Euclidean norm. variance: that of the elements.
func (p Policy) ValueMeasure() (string, error) { return p.word("value_measure") }

// SetValueMeasure sets what ValueMeasure returns.
func (p *Policy) SetValueMeasure(value string) error { return p.setWord("value_measure", value) }

// FirstStageMass: above 0 each head first secures the tokens that have this share of its
// attention to the slots before the window: the best by the plain mean over rows and query
// heads, without the one that reaches the share. It secures at most as many as its budget, as
// a share of these slots, leaves beside the window, which may be none. A secured token gets
// the highest score of its layer. Only evictions do this. It needs Order=pool-rows,
// KeepWindow=yes and SelectBlock=1 (DefensiveKV, arXiv:2510.13334).
func (p Policy) FirstStageMass() (float64, error) { return p.number("first_stage_mass") }

// SetFirstStageMass sets what FirstStageMass returns.
func (p *Policy) SetFirstStageMass(value float64) error {
	return p.setNumber("first_stage_mass", value)
}

// FirstStageBias: what FirstStageMass is lowered by. past: the layer's mean attention to as
// many slots as the window has, right before it, as in the authors' code.
func (p Policy) FirstStageBias() (string, error) { return p.word("first_stage_bias") }

// SetFirstStageBias sets what FirstStageBias returns.
func (p *Policy) SetFirstStageBias(value string) error { return p.setWord("first_stage_bias", value) }

// Heads: how the KV heads of a layer share its budget, which is a head's budget times their
// number. A head keeps the tokens that must stay and at least one. equal: equally. adaptive:
// the layer keeps exactly its budget by the highest scores of any head, but at least the best
// tokens of each head up to `floor` of a head's budget; if scores are equal at the cut, heads
// take turns (AdaKV, arXiv:2407.11550, as in kvpress). adaptive-blend: heads compete without a
// floor; then each keeps 1 - floor of what it won and floor of an equal share, rounded to the
// nearest, as by AdaKV's authors. A layer may keep half a token per head more or less than its
// budget. threshold: a head keeps the tokens that score at least threshold, but no more than
// its budget (DMS, arXiv:2506.05345; KVzap, arXiv:2601.07891). All but equal need Scope=head.
func (p Policy) Heads() (string, error) { return p.word("heads") }

// SetHeads sets what Heads returns.
func (p *Policy) SetHeads(value string) error { return p.setWord("heads", value) }

// Floor: Heads=adaptive and adaptive-blend, and Split=scores: the share of its budget that
// each head gets without competing.
func (p Policy) Floor() (float64, error) { return p.number("floor") }

// SetFloor sets what Floor returns.
func (p *Policy) SetFloor(value float64) error { return p.setNumber("floor", value) }

// Rounding: Heads=adaptive and Split=scores: where a budget that is a ratio is rounded down.
// head: the budget of one head, which is then multiplied by their number. together: once, for
// all heads that compete, so that no token is lost by rounding. Counts of tokens and whole
// blocks are rounded as with head.
func (p Policy) Rounding() (string, error) { return p.word("rounding") }

// SetRounding sets what Rounding returns.
func (p *Policy) SetRounding(value string) error { return p.setWord("rounding", value) }

// Draw: whether tokens are drawn, without replacement, in proportion to their final scores: a
// score above 0 is divided by a number drawn from Exp(1), and then the best stay as always.
// The number depends only on seed, layer, KV head, position and tokens seen, and is the same
// on every device. Plan.Score() takes slots for positions. Scores of 0 or below are not
// changed and rank last. Tokens that must stay always do. It needs scores that are shares or
// the caller's, Scope=head and SelectBlock=1, and excludes redundancy, chunk and
// Heads=threshold (VaSE, arXiv:2606.03928).
func (p Policy) Draw() (bool, error) { return p.flag("draw") }

// SetDraw sets what Draw returns.
func (p *Policy) SetDraw(value bool) error { return p.setFlag("draw", value) }

// Threshold: Heads=threshold: the least score that is kept. NaN is below every threshold.
func (p Policy) Threshold() (float64, error) { return p.number("threshold") }

// SetThreshold sets what Threshold returns.
func (p *Policy) SetThreshold(value float64) error { return p.setNumber("threshold", value) }

// Normalize: whether the scores of a competing head are first multiplied by the share of their
// sum that its best scores have. The best are as many as its budget has room for besides the
// tokens that must stay, which are in neither sum. A head whose share is not a finite number
// above 0 keeps its scores (AdaKV).
func (p Policy) Normalize() (bool, error) { return p.flag("normalize") }

// SetNormalize sets what Normalize returns.
func (p *Policy) SetNormalize(value bool) error { return p.setFlag("normalize", value) }

// Merge: what happens to evicted rows: they are dropped, or merged into rows that stay, see
// Merge. K, and V if there is one, must be f32, f16 or bf16; values needs V.
func (p Policy) Merge() (string, error) { return p.word("merge") }

// SetMerge sets what Merge returns.
func (p *Policy) SetMerge(value string) error { return p.setWord("merge", value) }

// MergeThreshold: Merge=values: rows below this similarity are not merged.
func (p Policy) MergeThreshold() (float64, error) { return p.number("merge_threshold") }

// SetMergeThreshold sets what MergeThreshold returns.
func (p *Policy) SetMergeThreshold(value float64) error { return p.setNumber("merge_threshold", value) }

// MergeFraction: Merge=values: the share of a head's evicted tokens that are merged, the most
// similar first: those that reach the quantile 1 - MergeFraction of the similarities,
// interpolated linearly. Similarities below MergeThreshold count as -infinity.
func (p Policy) MergeFraction() (float64, error) { return p.number("merge_fraction") }

// SetMergeFraction sets what MergeFraction returns.
func (p *Policy) SetMergeFraction(value float64) error { return p.setNumber("merge_fraction", value) }

// Fit: whether the values that stay are fitted to queries, so that these read from them what
// they read from all rows before. The queries are the reference queries, or without these the
// window's; each sees every row. They are at most 4,096 per KV head, those of its query heads
// together. K and V must be f32, f16 or bf16. It excludes merge, rotate, undo and
// destinations. It is for broad answers such as summaries, and can lose single facts:
// docs/policies/fitting.md (Attention Matching, arXiv:2602.16284). bias-values first fits a
// bias of each slot, f32 in the view's companion of that role, which the engine's attention
// adds to the slot's logits.
func (p Policy) Fit() (string, error) { return p.word("fit") }

// SetFit sets what Fit returns.
func (p *Policy) SetFit(value string) error { return p.setWord("fit", value) }

// FitRidge: fit: how strongly values, and the factors that biases stand for, are held to what
// they were, in units of the mean diagonal of the normal equations. The larger, the less they
// change.
func (p Policy) FitRidge() (float64, error) { return p.number("fit_ridge") }

// SetFitRidge sets what FitRidge returns.
func (p *Policy) SetFitRidge(value float64) error { return p.setNumber("fit_ridge", value) }

// Rotate: whether an eviction rotates the keys that it moves, by RoPE, from their old slots to
// their new ones. Every key is then rotated as if its slot were its position, and the next
// token has Sequence.StoredLength() as RoPE's position. It needs RoPEInvFreq in the geometry
// and keys that can be rotated. Rows that a sequence starts from or loads must already be
// rotated to their slots. Each rotation rounds f16 and bf16 keys once; a margin makes
// rotations rare (StreamingLLM, arXiv:2309.17453).
func (p Policy) Rotate() (bool, error) { return p.flag("rotate") }

// SetRotate sets what Rotate returns.
func (p *Policy) SetRotate(value bool) error { return p.setFlag("rotate", value) }

// Margin: an eviction leaves a layer alone while each of its lists holds at most this many
// tokens more than it would keep; if heads compete, the average counts.
func (p Policy) Margin() (int, error) { return p.count("margin") }

// SetMargin sets what Margin returns.
func (p *Policy) SetMargin(value int) error { return p.setCount("margin", value) }

// Every: above 1: once the prompt has ended, an eviction is due each time that this many more
// tokens have been appended. The first call from then on evicts, the others do nothing. 0 and
// 1: every call evicts. It has no effect before the prompt has ended.
func (p Policy) Every() (int, error) { return p.count("every") }

// SetEvery sets what Every returns.
func (p *Policy) SetEvery(value int) error { return p.setCount("every", value) }

// Prompt: how the prompt counts after Sequence.EndPrompt(). inside: as all tokens do. beside:
// the budget grows by the prompt's tokens that are still held, and a ratio is of the tokens
// behind the prompt; prompt tokens compete with the others. pinned: the prompt always stays
// and counts inside the budget. pinned-beside: the budget is as with beside, and the prompt
// always stays. at-end: as inside. With any but inside, evictions do nothing until the prompt
// has ended. beside and pinned need Heads=equal and no HeadBudgets.
func (p Policy) Prompt() (string, error) { return p.word("prompt") }

// SetPrompt sets what Prompt returns.
func (p *Policy) SetPrompt(value string) error { return p.setWord("prompt", value) }

// Sums: h2o: the rows in which a sequence adds up observed attention. head: one per KV head,
// reduced by group at each call. query: one per query head. layer: one for all heads, which
// needs scope layer or model.
func (p Policy) Sums() (string, error) { return p.word("sums") }

// SetSums sets what Sums returns.
func (p *Policy) SetSums(value string) error { return p.setWord("sums", value) }

// SumPool: h2o: before observed attention is added to the sums, a slot gets the maximum of its
// own and of the next SumPool - 1 slots (OpenVINO GenAI).
func (p Policy) SumPool() (int, error) { return p.count("sum_pool") }

// SetSumPool sets what SumPool returns.
func (p *Policy) SetSumPool(value int) error { return p.setCount("sum_pool", value) }

// SumLast: h2o: sums cover only this many last calls of Sequence.Observe(), and none before
// the layer's last eviction. 0: all calls. Above 0, sums are pooled as a whole, and it needs
// Sums=layer and Rows=sum (OpenVINO GenAI).
func (p Policy) SumLast() (int, error) { return p.count("sum_last") }

// SetSumLast sets what SumLast returns.
func (p *Policy) SetSumLast(value int) error { return p.setCount("sum_last", value) }

// RawFirst: h2o: whether the first call that a sequence observes for a layer is not pooled as
// long as it is the only one. It needs SumLast (OpenVINO GenAI).
func (p Policy) RawFirst() (bool, error) { return p.flag("raw_first") }

// SetRawFirst sets what RawFirst returns.
func (p *Policy) SetRawFirst(value bool) error { return p.setFlag("raw_first", value) }

// Rescue: the number of evicted blocks that stay on top of the budget; if fewer blocks would
// be evicted, none of them is rescued. Half of the slots between the ends that must stay, in
// whole blocks, have bit 1: those with the highest scores, and of equal scores the first ones.
// Blocks that would be evicted are sorted by the number of bits in which they differ from the
// anchor, and of n blocks each floor(n / rescue)-th stays, the first one included. With
// Rows=mean h2o's slots are marked by the sums before the division. These must then be one row
// of all heads, and Scope=model is refused. Above 0 it needs SelectBlock above 1 and no
// HeadBudgets (KVCrush, arXiv:2503.00022, as in OpenVINO GenAI).
func (p Policy) Rescue() (int, error) { return p.count("rescue") }

// SetRescue sets what Rescue returns.
func (p *Policy) SetRescue(value int) error { return p.setCount("rescue", value) }

// Anchor: the bits that rescue compares blocks with, one for each slot of a block. mean: those
// that most blocks have. zeros: blocks with the fewest bits come first. ones: blocks with the
// most bits come first. alternating: 0, 1, 0, 1. random: drawn from seed, layer, tokens seen
// and place.
func (p Policy) Anchor() (string, error) { return p.word("anchor") }

// SetAnchor sets what Anchor returns.
func (p *Policy) SetAnchor(value string) error { return p.setWord("anchor", value) }

// DiverseMass: above 0 the best blocks between both ends are taken until they have this share
// of the mass of all, protected ones first; the block that reaches the share is taken too. The
// rest of the list's room goes to the blocks whose keys are least similar. The similarity of a
// block is the sum of the cosines between its slots and all slots of the blocks not taken. A
// slot's cosine with itself is 0, and a cosine below the mean of its slot's cosines with all
// slots between both ends is left out. Cosines are of u = k / sqrt(|k|^2 + 2^-23) in f32 and
// are added in units of 2^-24; a key with NaN or infinity has cosines of 0. It needs readable
// keys, scores that are a mass and SelectBlock above 1. It excludes prior, redundancy, secure,
// rescue, Scope=model, HeadBudgets and ranges (Adaptive R-KV of OpenVINO GenAI).
func (p Policy) DiverseMass() (float64, error) { return p.number("diverse_mass") }

// SetDiverseMass sets what DiverseMass returns.
func (p *Policy) SetDiverseMass(value float64) error { return p.setNumber("diverse_mass", value) }
