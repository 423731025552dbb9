package dev.kvevict;

import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;

/** Policies, which are values with a text form. */
final class PolicyTest {
  private PolicyTest() {}

  static void isItsText() {
    Policy policy = Policy.parse("snapkv: window=16, budget=512");
    Check.equal("snapkv:budget=512,window=16", policy.toString());
    Policy.Builder builder = Policy.builder("snapkv").window(16).budget(512);
    Check.equal(policy, builder.build());
    Check.equal(policy.hashCode(), builder.build().hashCode());
    Check.equal(policy, Policy.of("snapkv").with("window=16").with("budget=512"));
    Check.equal(0.25, policy.toBuilder().budget(0.25).build().budget());
    Check.equal(512.0, policy.budget()); // a value
    Check.that(!policy.equals(Policy.of("snapkv")), "budgets differ");
    Check.that(Policy.of("snapkv-kvpress").toString().startsWith("snapkv:"), "a preset");
  }

  /** Each row of the library's has a getter, and a setter of the builder. */
  static void everyParameterIsThere() throws Exception {
    Set<String> names = new TreeSet<>();
    for (ParameterInfo row : KvEvict.parameters()) {
      String name = nameOf(row.key());
      names.add(name);
      Check.that(!row.doc().isEmpty(), name);
      Method get = Policy.class.getMethod(name);
      String policy = KvEvict.policies().stream().map(PolicyInfo::name)
          .filter(other -> own(row, other) != null).findFirst().orElseThrow();
      String before = own(row, policy).defaultText();
      Policy.Builder builder = Policy.builder(policy);
      Check.equal(before, textOf(get.invoke(builder.build())));
      for (Object value : otherValues(row, before)) {
        Method set = Policy.Builder.class.getMethod(name, get.getReturnType());
        Check.that(set.invoke(builder, value) == builder, "not this");
        Check.equal(value, get.invoke(builder.build()));
        String said = row.key() + "=" + (row.type() == ParameterType.SEED
            ? Long.toUnsignedString((long) value) : textOf(value));
        Check.that(List.of(builder.build().toString().split("[:,]")).contains(said), said);
      }
    }
    Check.equal(names, Arrays.stream(Policy.Builder.class.getMethods())
        .filter(m -> m.getDeclaringClass() != Object.class && m.getParameterCount() == 1)
        .map(Method::getName).collect(Collectors.toCollection(TreeSet::new)));
  }

  private static ParameterInfo own(ParameterInfo row, String policy) {
    return KvEvict.parameters(policy).stream().filter(other -> other.key().equals(row.key()))
        .findFirst().orElse(null);
  }

  /** The name of a parameter's property. */
  static String nameOf(String key) {
    StringBuilder name = new StringBuilder();
    for (String word : key.split("_")) {
      name.append(name.length() == 0 ? word
          : Character.toUpperCase(word.charAt(0)) + word.substring(1));
    }
    return name.toString();
  }

  private static String textOf(Object value) {
    return value instanceof Boolean flag ? flag ? "yes" : "no"
        : value.toString().replaceFirst("\\.0$", "");
  }

  private static List<?> otherValues(ParameterInfo row, String before) {
    return switch (row.type()) {
      case NUMBER -> List.of(before.equals("0.5") ? 0.25 : 0.5);
      case COUNT -> List.of((int) row.least() + 1);
      case COUNT_OR_SHARE -> List.of(0.25, 3.0);
      case SEED -> List.of(-1L);
      case FLAG -> List.of(before.equals("no"));
      case WORD -> Arrays.stream(row.words().split("\\|")).filter(word -> !word.equals(before))
          .toList();
      case POOL -> List.of("max5");
    };
  }

  static void valuesGoTogetherWhereThePolicyIsUsed() {
    Policy policy = Policy.builder("streaming-llm").budget(64).sink(64).build();
    Check.equal(64.0, policy.sink());
    Check.fails(KvEvictException.class, policy::validate, "64");
    Check.fails(KvEvictException.class, () -> policy.resolve(1000), "64");
    Check.fails(KvEvictException.class, () -> policy.with("margin=1"), "64");
    policy.toBuilder().budget(128).build().validate();
  }

  static void typoSaysWhere() {
    KvEvictException e = Check.fails(
        KvEvictException.class, () -> Policy.parse("snapkv:bugdet=512"), "column 8", "bugdet");
    Check.equal(Status.INVALID_ARGUMENT, e.status());
    Check.equal(1, e.code());
    Check.fails(KvEvictException.class, () -> Policy.parse("snapkv\0:budget=512"), "column");
    Check.fails(KvEvictException.class, () -> Policy.parse("snåpkv"), "column 1");
  }

  static void wrongValuesAreRefused() {
    Check.fails(NullPointerException.class, () -> Policy.parse(null), "text");
    Check.fails(NullPointerException.class, () -> Policy.of(null), "name");
    Policy.Builder builder = Policy.builder("snapkv");
    Check.fails(NullPointerException.class, () -> builder.pool(null), "pool");
    Check.fails(KvEvictException.class, () -> builder.sink(-1), "sink", "-1");
    Check.fails(KvEvictException.class, () -> builder.margin(-1), "margin", "-1");
    Check.fails(KvEvictException.class, () -> builder.pool("avg3,sink=1"), "pool");
    Check.fails(KvEvictException.class, () -> builder.block(4), "snapkv", "block");
    Check.fails(KvEvictException.class, () -> Policy.of("knorm").window(), "knorm", "window");
    Check.equal(Policy.of("snapkv"), builder.build());
    Check.fails(ArithmeticException.class,
        () -> Policy.parse("snapkv:every=4294967295").every());
    Check.fails(KvEvictException.class, () -> KvEvict.parameters("snapkw"), "snapkw");
    Check.equal(List.of(), KvEvict.parameters("none"));
  }
}
