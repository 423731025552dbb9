package dev.kvevict;

import java.io.DataInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.net.JarURLConnection;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;
import java.util.stream.Collectors;

/** Everything the C library exports is here. */
final class SurfaceTest {
  /** The classes through which users reach the library. */
  private static final List<Class<?>> CLASSES = List.of(Batch.class, Calibration.class, Context.class,
      Context.Builder.class,
      KvEvict.class, KvEvictException.class, PagedCache.class, PagedSequence.class, Plan.class,
      Policy.class, Reading.class, Sequence.class, SequenceArguments.class, SequenceState.class,
      View.class);

  private SurfaceTest() {}

  private static Set<String> symbols() throws IOException {
    return Files.readAllLines(TestMain.golden.resolve("kvevict.symbols")).stream()
        .map(line -> line.replaceFirst("@.*", ""))
        .collect(Collectors.toCollection(TreeSet::new));
  }

  static void everyFunctionIsGenerated() throws IOException {
    Set<String> generated = Arrays.stream(NativeJNI.class.getDeclaredMethods())
        .map(m -> m.getName())
        .filter(name -> !name.endsWith("_a")) // the second shapes of java.i
        .collect(Collectors.toCollection(TreeSet::new));
    Check.equal(symbols(), generated);
  }

  /** Functions that no public method calls are in not_wrapped.txt with a reason. */
  static void everyFunctionIsReachable() throws IOException {
    Set<String> leftOut = Files.readAllLines(TestMain.notWrapped).stream()
        .map(line -> line.split(" ", 3))
        .filter(words -> words[0].equals("java") && words.length == 3)
        .map(words -> words[1])
        .collect(Collectors.toCollection(TreeSet::new));
    Set<String> unreached = new TreeSet<>();
    String code = "";
    for (Class<?> type : CLASSES) {
      String file = type.getName().replaceFirst(".*\\.", "") + ".class";
      try (InputStream in = type.getResourceAsStream(file)) {
        code += new String(in.readAllBytes(), StandardCharsets.ISO_8859_1);
      }
    }
    for (String symbol : symbols()) {
      // Names stand in the constant pool after their length.
      char length = (char) symbol.length();
      boolean called = code.contains(length + symbol)
          || code.contains((char) (length + 2) + symbol + "_a");
      if (!called) {
        unreached.add(symbol);
      }
    }
    Check.equal(leftOut, unreached);
  }

  /**
   * Every public method is called by the replayer of the transcript or by a test of its own.
   * PolicyTest.everyParameterIsThere has the properties of policies.
   */
  static void everyMethodIsReached() throws Exception {
    Set<String> called = new TreeSet<>();
    for (Class<?> test : TestMain.CLASSES) {
      called.addAll(calls(test));
    }
    for (Class<?> part : List.of(Replay.class, ReplayFields.class, Transcript.class, Transcript.Data.class)) {
      called.addAll(calls(part));
    }
    Set<String> parameters = KvEvict.parameters().stream().map(row -> PolicyTest.nameOf(row.key()))
        .collect(Collectors.toSet());
    Set<String> missing = new TreeSet<>();
    int reached = 0;
    for (Class<?> type : publicTypes()) {
      for (Method method : type.getMethods()) {
        boolean own = method.getDeclaringClass().getPackage() == type.getPackage() && !type.isEnum()
            && !List.of("equals", "hashCode", "toString").contains(method.getName())
            && !(type.getName().contains("Policy") && parameters.contains(method.getName()));
        String name = type.getName() + "." + method.getName();
        // A call names the class, or the one above it that is not public and has the method.
        boolean isCalled = false;
        for (Class<?> owner = type; owner != null; owner = owner.getSuperclass()) {
          isCalled |= called.contains(owner.getName() + "." + method.getName());
        }
        if (own && !isCalled) {
          missing.add(name);
        }
        reached += own ? 1 : 0;
      }
    }
    Check.equal(Set.of(), missing);
    Check.that(reached > 200, reached + " methods");
  }

  /** The methods that a class calls or refers to, from its constants. */
  private static Set<String> calls(Class<?> type) throws IOException {
    Set<String> all = new TreeSet<>();
    try (DataInputStream in = new DataInputStream(
        type.getResourceAsStream(type.getName().replaceFirst(".*\\.", "") + ".class"))) {
      in.readLong(); // magic and versions
      Object[] constants = new Object[in.readUnsignedShort()];
      for (int i = 1; i < constants.length; ++i) {
        int tag = in.readByte();
        switch (tag) {
          case 1 -> constants[i] = in.readUTF();
          case 7 -> constants[i] = in.readUnsignedShort();
          case 8, 16, 19, 20 -> in.readUnsignedShort();
          case 15 -> in.skipBytes(3);
          case 10, 11, 12 -> constants[i] = new int[] {tag, in.readUnsignedShort(), in.readUnsignedShort()};
          case 5, 6 -> {
            in.readLong();
            ++i;
          }
          default -> in.readInt();
        }
      }
      for (Object constant : constants) {
        if (constant instanceof int[] pair && pair[0] != 12) {
          String owner = (String) constants[(int) constants[pair[1]]];
          String method = (String) constants[((int[]) constants[pair[2]])[1]];
          all.add(owner.replace('/', '.') + "." + method);
        }
      }
    }
    return all;
  }

  /** Messages name functions by methods that exist. */
  static void functionsHaveNamesOfMethods() throws Exception {
    int named = 0;
    for (String symbol : symbols()) {
      String name = Names.of(symbol);
      if (name.equals(symbol)) {
        continue;
      }
      ++named;
      String[] parts = name.split("\\.");
      Class<?> type = Class.forName("dev.kvevict." + parts[0]);
      Check.that(Arrays.stream(type.getDeclaredMethods())
          .anyMatch(m -> Modifier.isPublic(m.getModifiers()) && m.getName().equals(parts[1])),
          symbol + " is no " + name);
    }
    Check.that(named > 50, named + " functions have names");
  }

  /** An enum as a header could have it: neither dense nor in order. */
  private enum Sparse implements CEnum {
    MANY(700),
    FEW(-3);

    private final int value;

    Sparse(int value) {
      this.value = value;
    }

    @Override
    public int value() {
      return value;
    }
  }

  static void enumsCrossByTheirValues() {
    try (Struct memory = new Struct(8)) {
      memory.putEnum(0, Sparse.MANY).putEnum(4, Sparse.FEW, "few");
      Check.equal(700, memory.intAt(0));
      Check.equal(-3, memory.intAt(4));
      Check.equal(Sparse.MANY, memory.enumAt(0, Sparse.class));
      Check.equal(Sparse.FEW, memory.enumAt(4, Sparse.class));
      memory.putInt(0, 1);
      Check.fails(IllegalStateException.class, () -> memory.enumAt(0, Sparse.class),
          "newer", "Sparse 1");
    }
    Check.equal(Status.INTERNAL, new KvEvictException(99, "of tomorrow").status());
  }

  /**
   * No user of a class or interface breaks when it gets a new field: nobody calls a constructor by
   * position, takes a record apart, or implements an interface.
   */
  static void typesCanGrow() throws IOException, ClassNotFoundException {
    List<Class<?>> types = publicTypes();
    for (Class<?> type : types) {
      Check.that(!type.isRecord(), type + " is a record");
      Check.that(!type.isInterface() || type.isSealed(), type + " is not sealed");
      Check.equal(0, type.getConstructors().length);
    }
    Check.that(types.size() >= 30, types.size() + " public types");
  }

  private static List<Class<?>> publicTypes() throws IOException, ClassNotFoundException {
    List<Class<?>> types = new ArrayList<>();
    URL here = KvEvict.class.getResource("KvEvict.class");
    try (JarFile jar = ((JarURLConnection) here.openConnection()).getJarFile()) {
      for (String file : jar.stream().map(JarEntry::getName).toList()) {
        if (!file.matches("dev/kvevict/[^-]*\\.class")) {
          continue;
        }
        Class<?> type = Class.forName(file.replace('/', '.').replaceFirst("\\.class$", ""));
        if (isPublic(type)) {
          types.add(type);
        }
      }
    }
    return types;
  }

  private static boolean isPublic(Class<?> type) {
    return Modifier.isPublic(type.getModifiers())
        && (type.getDeclaringClass() == null || isPublic(type.getDeclaringClass()));
  }

  static void contextsRunTheSimdTargetTheyAreGiven() {
    for (String name : KvEvict.simdTargets()) {
      StringBuilder said = new StringBuilder();
      Context.builder().simdTarget(name).logger(LogLevel.INFO, (level, line) -> said.append(line))
          .build().close();
      Check.that(said.toString().contains("SIMD target " + name + ","), said.toString());
    }
    Check.fails(KvEvictException.class, () -> Context.builder().simdTarget("MMX").build(),
        "simd_target \"MMX\"");
  }
}
