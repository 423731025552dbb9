package dev.kvevict;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.DirectoryStream;
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

  /** Natives jars that there are. */
  private static final String PLATFORMS = "linux-x86_64, linux-aarch64 and windows-x86_64";

  private static final String UNPACKED = "kvevict-java-";

  private static boolean loaded;

  private NativeLoader() {}

  static synchronized void load() {
    if (loaded) {
      return;
    }
    List<String> tried = new ArrayList<>();
    if (!loadProperty(tried) && !loadResource(tried) && !loadPath(tried)) {
      throw new UnsatisfiedLinkError(
          "kvevict: no native library for " + platform() + "; there are natives jars for "
              + PLATFORMS + "; tried\n  " + String.join("\n  ", tried));
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

  /**
   * On Linux a loaded library needs its file no longer, so nothing stays behind. Windows keeps the
   * file of a library in use: then the next program to load one removes it.
   */
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
      removeLeftBehind(parent);
      Path directory = Files.createTempDirectory(parent, UNPACKED);
      Path file = directory.resolve(System.mapLibraryName(NAME));
      try {
        Files.copy(in, file);
        return load(file, resource
            + ", unpacked (another place: the property kvevict.unpack.dir)", tried);
      } finally {
        remove(directory);
      }
    } catch (IOException e) {
      tried.add(resource + ": " + e);
      return false;
    }
  }

  private static void removeLeftBehind(Path parent) throws IOException {
    if (!platform().startsWith("windows")) {
      return;
    }
    try (DirectoryStream<Path> directories = Files.newDirectoryStream(parent, UNPACKED + "*")) {
      for (Path directory : directories) {
        remove(directory);
      }
    }
  }

  private static void remove(Path directory) {
    try {
      Files.deleteIfExists(directory.resolve(System.mapLibraryName(NAME)));
      Files.deleteIfExists(directory);
    } catch (IOException e) {
      // The file is in use, or not ours.
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
