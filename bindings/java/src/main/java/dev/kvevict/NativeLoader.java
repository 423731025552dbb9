package dev.kvevict;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/**
 * Loads the native library, once: from the file that {@code kvevict.library.path} names, else from
 * the class path, else from {@code java.library.path}.
 */
final class NativeLoader {
  private static final String NAME = "kvevict_java";

  private static boolean loaded;

  private NativeLoader() {}

  static synchronized void load() {
    if (loaded) {
      return;
    }
    List<String> tried = new ArrayList<>();
    if (!loadProperty(tried) && !loadResource(tried) && !loadPath(tried)) {
      throw new UnsatisfiedLinkError(
          "kvevict: no native library for " + platform() + "; tried\n  "
              + String.join("\n  ", tried));
    }
    loaded = true;
  }

  private static boolean loadProperty(List<String> tried) {
    String file = System.getProperty("kvevict.library.path");
    if (file == null) {
      tried.add("the property kvevict.library.path: not set");
      return false;
    }
    return load(Path.of(file), "the property kvevict.library.path", tried);
  }

  /** A loaded library needs its file no longer, so nothing stays behind. */
  private static boolean loadResource(List<String> tried) {
    String resource =
        "META-INF/native/dev.kvevict/" + platform() + "/" + System.mapLibraryName(NAME);
    try (InputStream in = NativeLoader.class.getClassLoader().getResourceAsStream(resource)) {
      if (in == null) {
        tried.add("the class path: no " + resource + " (is the natives jar there? on the module"
            + " path: is dev.kvevict.natives." + platform().replace('-', '_')
            + " required, or named by --add-modules?)");
        return false;
      }
      Path parent = Path.of(System.getProperty(
          "kvevict.unpack.dir", System.getProperty("java.io.tmpdir")));
      Path directory = Files.createTempDirectory(parent, "kvevict");
      Path file = directory.resolve(System.mapLibraryName(NAME));
      try {
        Files.copy(in, file);
        return load(file, resource
            + ", unpacked (another place: the property kvevict.unpack.dir)", tried);
      } finally {
        Files.deleteIfExists(file);
        Files.deleteIfExists(directory);
      }
    } catch (IOException e) {
      tried.add(resource + ": " + e);
      return false;
    }
  }

  private static boolean loadPath(List<String> tried) {
    try {
      System.loadLibrary(NAME);
      return true;
    } catch (UnsatisfiedLinkError e) {
      tried.add("java.library.path: " + e.getMessage());
      return false;
    }
  }

  private static boolean load(Path file, String origin, List<String> tried) {
    try {
      System.load(file.toAbsolutePath().toString());
      return true;
    } catch (UnsatisfiedLinkError e) {
      tried.add(origin + ": " + e.getMessage());
      return false;
    }
  }

  /** For example linux-x86_64. */
  private static String platform() {
    String os = System.getProperty("os.name").toLowerCase(Locale.ROOT);
    String arch = System.getProperty("os.arch").toLowerCase(Locale.ROOT);
    return (os.startsWith("windows") ? "windows" : os.startsWith("mac") ? "macos" : os)
        + "-" + (arch.equals("amd64") ? "x86_64" : arch);
  }
}
