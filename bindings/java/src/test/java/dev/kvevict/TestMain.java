package dev.kvevict;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;

/** Runs every package-private static method without parameters of the test classes. */
final class TestMain {
  static final List<Class<?>> CLASSES = List.of(
      SurfaceTest.class,
      TranscriptTest.class,
      LayoutTest.class,
      PolicyTest.class,
      MemoryTest.class,
      ArgumentsTest.class,
      HandleTest.class,
      PagedCacheTest.class,
      PrefillTest.class,
      CudaTest.class,
      HooksTest.class,
      KeepAliveTest.class);

  /** The path of kvevict.symbols. */
  static Path golden;

  /** The functions that bindings leave out, with reasons. */
  static Path notWrapped;

  private TestMain() {}

  public static void main(String[] args) throws IllegalAccessException {
    golden = Path.of(args[0]);
    notWrapped = Path.of(args[1]);
    int passed = 0;
    int failed = 0;
    int skipped = 0;
    for (Class<?> suite : CLASSES) {
      for (Method test : tests(suite)) {
        String name = suite.getSimpleName() + "." + test.getName();
        try {
          test.invoke(null);
          ++passed;
        } catch (InvocationTargetException e) {
          if (e.getCause() instanceof Check.Skipped) {
            ++skipped;
            System.out.println("skipped " + name + ": " + e.getCause().getMessage());
            continue;
          }
          ++failed;
          System.out.println("FAILED " + name);
          e.getCause().printStackTrace(System.out);
        }
      }
    }
    System.out.println(passed + " passed, " + failed + " failed, " + skipped
        + " skipped, module " + TestMain.class.getModule().getName());
    System.exit(failed == 0 && passed > 0 ? 0 : 1);
  }

  private static List<Method> tests(Class<?> suite) {
    return Arrays.stream(suite.getDeclaredMethods())
        .filter(m -> Modifier.isStatic(m.getModifiers()) && !Modifier.isPrivate(m.getModifiers())
            && m.getParameterCount() == 0 && !m.isSynthetic())
        .sorted(Comparator.comparing(Method::getName))
        .toList();
  }
}
