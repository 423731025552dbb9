package dev.kvevict;

/** Policies, which are values with a text form. */
final class PolicyTest {
  private PolicyTest() {}

  static void textGoesThereAndBack() {
    Policy policy = Policy.parse("snapkv:budget=512,window=16,pool=max5");
    Check.equal(PolicyKind.SNAPKV, policy.kind());
    Check.equal(512.0, policy.budget());
    Check.equal(16, policy.obsWindow());
    Check.equal(Pool.MAX, policy.pool());
    Check.equal(policy, Policy.parse(policy.format()));
    Check.equal(Policy.of(PolicyKind.SNAPKV).with("pool=max5,window=16,budget=512"), policy);
    Check.equal(0.25, policy.with("budget=0.25").budget());
  }

  static void typoSaysWhere() {
    KvEvictException e = Check.fails(
        KvEvictException.class, () -> Policy.parse("snapkv:bugdet=512"), "column 8", "bugdet");
    Check.equal(Status.INVALID_ARGUMENT, e.status());
    Check.equal(1, e.code());
    Check.fails(KvEvictException.class, () -> Policy.parse("snapkv\0:budget=512"), "column");
    Check.fails(KvEvictException.class, () -> Policy.parse("snåpkv"), "column 1");
  }

  static void nullsAndNegativesAreNamed() {
    Check.fails(NullPointerException.class, () -> Policy.parse(null), "text");
    Check.fails(NullPointerException.class, () -> Policy.of(null));
    Policy.Builder builder = Policy.builder(PolicyKind.SNAPKV);
    Check.fails(IllegalArgumentException.class, () -> builder.sink(-1), "sink is negative: -1");
    Check.fails(NullPointerException.class, () -> builder.pool(null), "pool");
  }

  static void isBuiltPartByPart() {
    Policy.Builder builder = Policy.builder(PolicyKind.SNAPKV).budget(512).obsWindow(16)
        .pool(Pool.MAX).poolKernel(5);
    Policy policy = builder.build();
    Check.equal(Policy.parse("snapkv:budget=512,window=16,pool=max5"), policy);
    Check.equal(policy.hashCode(), builder.build().hashCode());
    builder.budget(1024);
    Check.equal(512.0, policy.budget()); // a value
    Check.equal(policy, policy.toBuilder().build());
    Check.equal(policy.format(), policy.toString());
    Policy shared = policy.toBuilder().headSplit(HeadSplit.ADAPTIVE_BLEND).headFloor(0.5)
        .scoreThreshold(-4).headNormalize(true).secure(0.25).build();
    Check.equal(shared,
        policy.with("heads=adaptive-blend,floor=0.5,threshold=-4,normalize=yes,secure=0.25"));
    Check.that(shared.headNormalize(), "heads are normalized");
    Check.equal(0.25, shared.secure());
    Check.equal(HeadSplit.ADAPTIVE_BLEND, shared.headSplit());
    Check.equal(0.5, shared.headFloor());
    Check.equal(-4.0, shared.scoreThreshold());
    Policy merging = policy.toBuilder().merge(Merge.PIVOT).mergeThreshold(0.5).mergeFraction(0.75)
        .build();
    Check.equal(merging, policy.with("merge=pivot,merge_threshold=0.5,merge_fraction=0.75"));
    Check.equal(Merge.PIVOT, merging.merge());
    Check.equal(0.5, merging.mergeThreshold());
    Check.equal(0.75, merging.mergeFraction());
    Policy diverse = Policy.parse("openvino-genai-adaptive-r-kv");
    Check.equal(0.9, diverse.diverseMass());
    Check.equal(8, diverse.sumLast());
    Check.equal(true, diverse.sumRawFirst());
    Policy other = diverse.toBuilder().diverseMass(0.5).sumLast(3).sumRawFirst(false).build();
    Check.equal(0.5, other.diverseMass());
    Check.equal(3, other.sumLast());
    Check.equal(false, other.sumRawFirst());
    Policy chunks = Policy.builder(PolicyKind.KNORM).chunk(1024).build();
    Check.equal(Policy.parse("knorm:chunk=1024"), chunks);
    Check.equal(1024, chunks.chunk());
    Policy cake = Policy.builder(PolicyKind.CAKE).rowSpread(3.5).cakeTau1(1.5).cakeTau2(0.25)
        .lazyThreshold(0.75).build();
    Check.equal(Policy.parse("cake:spread=3.5,tau1=1.5,tau2=0.25,lazy=0.75"), cake);
    Check.equal(3.5, cake.rowSpread());
    Check.equal(1.5, cake.cakeTau1());
    Check.equal(0.25, cake.cakeTau2());
    Check.equal(0.75, cake.lazyThreshold());
    Check.that(policy.toBuilder().budget(-1).build().toString().startsWith("(INVALID_ARGUMENT"),
        "an invalid policy has no text form");
  }

  static void validateNamesTheNumbers() {
    Policy.of(PolicyKind.SNAPKV).validate();
    Check.fails(KvEvictException.class,
        () -> Policy.parse("streaming-llm:sink=64,budget=64"), "64");
  }

  static void tokensPerLayer() {
    Policy policy = Policy.parse("snapkv:budget=512,window=32");
    Check.equal(new Records.ResolvedPolicy(512, 4, 32, 476, 32, true), policy.resolve(4096));
    Policy half = Policy.parse("h2o:budget=1024,recent=0.5");
    Check.equal(0.5, half.recentShare());
    Check.equal(512, half.resolve(5000).recent());
    Check.equal(7, half.toBuilder().recent(7).build().resolve(5000).recent());
    Check.equal(256, half.toBuilder().recentShare(0.25).build().resolve(5000).recent());
    Check.equal(new int[] {512, 512, 512}, policy.layerBudgets(4096, 3));
    Check.fails(KvEvictException.class, () -> policy.resolve(0), "n_context");
    Check.fails(IllegalArgumentException.class, () -> policy.layerBudgets(64, -1), "layerCount");
  }

  static void saysHowManyRowsOfQueriesItTakes() {
    Check.equal(0, Policy.parse("non-causal").queryRows());
    Check.equal(0, Policy.parse("h2o").queryRows());
    Check.equal(9, Policy.parse("snapkv:budget=40,window=9").queryRows());
  }

  static void saysWhatItReads() {
    Policy policy = Policy.parse("snapkv:budget=100,weight=norm");
    Check.equal(Need.REQUIRED, policy.needOf(Input.QUERIES));
    Check.equal(Need.REQUIRED, policy.needOf(Input.VALUES));
    Check.equal(Need.OPTIONAL, policy.needOf(Input.ROW_LSE));
    Check.equal(Need.NONE, policy.needOf(Input.TOKEN_WEIGHTS));
    Check.fails(NullPointerException.class, () -> policy.needOf(null));
    Check.fails(KvEvictException.class,
        () -> policy.toBuilder().budget(-1).build().needOf(Input.KEYS), "budget -1");
  }
}
