package dev.kvevict;

import java.util.Objects;
import java.util.function.LongFunction;

/**
 * What survives an eviction: signal, shaping, budget.
 *
 * <p>Always kept are the first tokens ({@link #sink}), the last ({@link #recent}), the window
 * (unless {@link #keepWindow} is false) and protected positions; they count inside the
 * budget. The rest of the budget goes to the highest scores.
 *
 * <p>A value, which is its text form: {@code Policy.parse("snapkv:budget=2048,window=32")}, or by
 * {@link #builder}. Two policies are equal if their texts are. A policy has the parameters that mean
 * something to it, see {@link KvEvict#parameters(String)}: asking for others or setting them fails,
 * and so does a value outside a parameter's range. Whether values can be combined is checked by
 * {@link #validate} and where the policy is used.
 */
public final class Policy extends PolicyParameters {
  /** The most bytes of a value's text, with its zero. */
  private static final int VALUE_BYTES = 40;

  private final String text;

  private Policy(String text) {
    this.text = text;
  }

  /**
   * A policy or a preset with its defaults.
   *
   * @param name such as {@code "snapkv"}
   * @return the policy
   * @throws KvEvictException if there is no such policy
   */
  public static Policy of(String name) {
    return parse(Objects.requireNonNull(name, "name"));
  }

  /**
   * A policy to fill in, which begins with the defaults of a policy or a preset.
   *
   * @param name such as {@code "snapkv"}
   * @return the builder
   * @throws KvEvictException if there is no such policy
   */
  public static Builder builder(String name) {
    return of(name).toBuilder();
  }

  /**
   * Reads the text form, {@code name} or {@code name:key=value,key=value}.
   *
   * @param text a policy or a preset, and what differs from its defaults
   * @return the policy, validated
   * @throws KvEvictException with the column and what was expected there
   */
  public static Policy parse(String text) {
    long policy = Native.kvevict_policy_create(Objects.requireNonNull(text, "text"));
    try {
      return formatted(policy);
    } finally {
      Native.kvevict_policy_destroy(policy);
    }
  }

  /**
   * This policy with some keys changed.
   *
   * @param keys keys in the text form: {@code "budget=0.25,sink=8"}
   * @return the changed policy, validated
   * @throws KvEvictException as for {@link #parse}
   */
  public Policy with(String keys) {
    return parse(text + (text.indexOf(':') < 0 ? ":" : ",") + keys);
  }

  /**
   * A policy to fill in, which begins as this one.
   *
   * @return the builder
   */
  public Builder toBuilder() {
    return new Builder(this);
  }

  /**
   * Checks whether the values can be combined, for any context length.
   *
   * @throws KvEvictException with the numbers that do not
   */
  public void validate() {
    call(policy -> {
      Native.kvevict_policy_validate(policy);
      return null;
    });
  }

  /**
   * Turns the policy into token counts. A context that is left alone has a budget of all of it.
   *
   * @param contextTokens tokens, at least 1
   * @return the counts
   */
  public ResolvedPolicy resolve(int contextTokens) {
    try (Struct out = Struct.sized(Abi.ResolvedPolicy.SIZEOF)) {
      return call(policy -> {
        Native.kvevict_policy_resolve(policy, contextTokens, out.address);
        return Records.ResolvedPolicy.read(out);
      });
    }
  }

  /**
   * Tokens each layer keeps of a context.
   *
   * @param contextTokens tokens, at least 1
   * @param layerCount layers, at least 1
   * @return tokens per layer
   */
  public int[] layerBudgets(int contextTokens, int layerCount) {
    int[] budgets = new int[Memory.count(layerCount, "layerCount")];
    return call(policy -> {
      Native.kvevict_policy_layer_budgets_a(policy, contextTokens, budgets);
      return budgets;
    });
  }

  /**
   * Whether this policy wants an input, so that an engine makes no others.
   *
   * @param input rows of a view, or a part of {@link SignalInputs}
   * @return whether it is read, and whether calls fail without it
   * @throws KvEvictException if the policy is invalid
   */
  public Need needOf(Input input) {
    return CEnum.of(Need.class,
        call(policy -> Native.kvevict_policy_need(policy, input.value())));
  }

  /** Two policies are equal if their texts are. */
  @Override
  public boolean equals(Object other) {
    return other instanceof Policy that && text.equals(that.text);
  }

  @Override
  public int hashCode() {
    return text.hashCode();
  }

  /** {@return the text form: the name and every key that differs from that policy's default} */
  @Override
  public String toString() {
    return text;
  }

  /**
   * Returns what a call returns for the native policy of this text. Values are set one by one, since
   * their combination may be invalid yet.
   */
  <T> T call(LongFunction<T> call) {
    String[] parts = text.split("[:,]");
    long policy = Native.kvevict_policy_create(parts[0]);
    try {
      for (int i = 1; i < parts.length; ++i) {
        String[] pair = parts[i].split("=");
        Native.kvevict_policy_set(policy, pair[0], pair[1]);
      }
      return call.apply(policy);
    } finally {
      Native.kvevict_policy_destroy(policy);
    }
  }

  private Policy with(String key, double value) {
    return call(policy -> {
      Native.kvevict_policy_set_number(policy, key, value);
      return formatted(policy);
    });
  }

  private Policy with(String key, String value) {
    return call(policy -> {
      Native.kvevict_policy_set(policy, key, value);
      return formatted(policy);
    });
  }

  private static Policy formatted(long policy) {
    long size = Native.kvevict_policy_format(policy, 0, 0) + 1;
    try (Struct text = new Struct(Math.toIntExact(size))) {
      Native.kvevict_policy_format(policy, text.address, size);
      return new Policy(NativeSupport.stringAt(text.address));
    }
  }

  @Override
  double readNumber(String key) {
    return call(policy -> Native.kvevict_policy_get_number(policy, key));
  }

  @Override
  int readCount(String key) {
    return Math.toIntExact((long) readNumber(key));
  }

  @Override
  boolean readFlag(String key) {
    return readNumber(key) != 0;
  }

  @Override
  long readSeed(String key) {
    return Long.parseUnsignedLong(readWord(key));
  }

  @Override
  String readWord(String key) {
    try (Struct value = new Struct(VALUE_BYTES)) {
      return call(policy -> {
        Native.kvevict_policy_get(policy, key, value.address, VALUE_BYTES);
        return NativeSupport.stringAt(value.address);
      });
    }
  }

  /** Names the values of a {@link Policy}. */
  public static final class Builder extends PolicyParameters.Setters {
    private Policy policy;

    private Builder(Policy policy) {
      this.policy = policy;
    }

    /**
     * The policy.
     *
     * @return it
     */
    public Policy build() {
      return policy;
    }

    @Override
    Builder set(String key, double value) {
      policy = policy.with(key, value);
      return this;
    }

    @Override
    Builder set(String key, String value) {
      policy = policy.with(key, Objects.requireNonNull(value, key));
      return this;
    }
  }
}
