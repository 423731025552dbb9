package dev.kvevict;

import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.StringJoiner;
import java.util.TreeMap;
import java.util.function.Function;

/** What lines of a transcript name, see bindings/transcript: structs, buffers and handles. */
final class Transcript {
  private Transcript() {}

  /** A call or a struct with its arguments by name. */
  static final class Line {
    final String text;
    final String name;
    private final Map<String, String> values = new HashMap<>();
    private final Set<String> used = new HashSet<>(Set.of("name"));

    Line(String text) {
      String[] words = text.split(" ");
      this.text = text;
      name = words[0];
      for (int i = 1; i < words.length; ++i) {
        int equals = words[i].indexOf('=');
        values.put(words[i].substring(0, equals),
            words[i].substring(equals + 1).replace("%20", " ").replace("%25", "%"));
      }
    }

    boolean has(String key) {
      return values.containsKey(key);
    }

    String text(String key) {
      used.add(key);
      return values.getOrDefault(key, "");
    }

    List<String> list(String key) {
      String list = text(key);
      return list.isEmpty() ? List.of() : List.of(list.split(","));
    }

    /** Returns what each name of a list names, which may be null. */
    <T> List<T> each(String key, Function<String, T> of) {
      List<T> all = new ArrayList<>();
      list(key).forEach(element -> all.add(of.apply(element)));
      return all;
    }

    long number(String key) {
      String number = text(key);
      return number.isEmpty() ? 0 : Long.parseLong(number);
    }

    /** A number that C holds as unsigned has the same bits. */
    int count(String key) {
      return (int) number(key);
    }

    boolean flag(String key) {
      return number(key) != 0;
    }

    double real(String key) {
      String number = text(key);
      return number.isEmpty() ? 0 : Double.parseDouble(number);
    }

    float single(String key) {
      return (float) real(key);
    }

    int[] counts(String key) {
      return list(key).stream().mapToInt(Integer::parseInt).toArray();
    }

    <E extends CEnum> E constant(Class<E> type, String key) {
      return CEnum.of(type, count(key));
    }

    void checkUsed() {
      for (String key : values.keySet()) {
        Check.that(used.contains(key), key + " is not given to the library: " + text);
      }
    }
  }

  /** Memory that calls read or write. It begins at a multiple of 256 bytes. */
  static final class Data {
    final ByteBuffer bytes;
    private final String type;
    private long seen;

    Data(String type, int length) {
      this.type = type;
      int size = length * switch (type) {
        case "u8" -> 1;
        case "f16", "bf16" -> 2;
        case "u64" -> 8;
        default -> 4;
      };
      bytes = ByteBuffer.allocateDirect(size + 512).alignedSlice(256).slice(0, size)
          .order(ByteOrder.nativeOrder());
    }

    static Data of(Line line, Function<String, Data> named) {
      List<String> values = line.list("values");
      List<String> addresses = line.list("addresses");
      int length = line.count("length") + values.size() + addresses.size();
      Data data = new Data(line.text("type"), length);
      if (line.has("seed")) {
        data.draw(length, line.count("seed"));
      }
      for (int i = 0; i < values.size(); ++i) {
        if (data.type.equals("f32")) {
          data.bytes.putFloat(4 * i, Float.parseFloat(values.get(i)));
        } else {
          data.bytes.putInt(4 * i, (int) Long.parseLong(values.get(i)));
        }
      }
      for (int i = 0; i < addresses.size(); ++i) {
        data.bytes.putLong(8 * i, NativeSupport.addressOf(named.apply(addresses.get(i)).bytes));
      }
      data.changed();
      line.checkUsed();
      return data;
    }

    private void draw(int length, int seed) {
      for (int i = 0; i < length; ++i) {
        int x = seed * 0x9e3779b9 + i;
        x ^= x >>> 16;
        x *= 0x7feb352d;
        x ^= x >>> 15;
        x *= 0x846ca68b;
        x ^= x >>> 16;
        float real = (float) (x >>> 8) / 8388608 - 1;
        switch (type) {
          case "u8" -> bytes.put(i, (byte) x);
          case "f16" -> bytes.putShort(2 * i, (short) (0x3800 | x & 0x83ff));
          case "bf16" -> bytes.putShort(2 * i, (short) (Float.floatToRawIntBits(real) >>> 16));
          default -> bytes.putFloat(4 * i, real);
        }
      }
    }

    /** Whether the bytes have changed since the last call of this; addresses do not count. */
    boolean changed() {
      long before = seen;
      seen = hash();
      return seen != before;
    }

    long hash() {
      long hash = 0xcbf29ce484222325L;
      for (int i = 0; i < bytes.capacity() && !type.equals("u64"); ++i) {
        hash = (hash ^ (bytes.get(i) & 255)) * 0x100000001b3L;
      }
      return hash;
    }

    /** The buffer that Java's users would have. */
    Buffer typed() {
      return switch (type) {
        case "u8" -> bytes.duplicate().order(ByteOrder.nativeOrder());
        case "f16", "bf16" -> bytes.asShortBuffer();
        case "f32" -> bytes.asFloatBuffer();
        default -> bytes.asIntBuffer();
      };
    }
  }

  /** Buffers, structs and handles of a script by name. */
  static final class Names {
    final Map<String, Line> structs = new TreeMap<>();
    final Map<String, Data> buffers = new TreeMap<>();
    final Map<String, Object> handles = new HashMap<>();

    void define(Line line) {
      if (line.name.equals("buffer")) {
        buffers.put(line.text("name"), Data.of(line, buffers::get));
      } else {
        structs.put(line.text("name"), line);
      }
    }

    Line struct(String kind, String name) {
      Line line = structs.get(name);
      Check.that(line != null && line.name.equals(kind), "no " + kind + " " + name);
      return line;
    }

    /** The handle that a key of a line names; null without the key. */
    <T> T handle(Class<T> type, Line line, String key) {
      return line.has(key) ? type.cast(handles.get(line.text(key))) : null;
    }

    IntBuffer ints(String name) {
      return name.isEmpty() ? null : buffers.get(name).bytes.asIntBuffer();
    }

    FloatBuffer floats(String name) {
      return name.isEmpty() ? null : buffers.get(name).bytes.asFloatBuffer();
    }

    float[] floatArray(String name) {
      FloatBuffer buffer = name.isEmpty() ? FloatBuffer.allocate(0) : floats(name);
      float[] all = new float[buffer.remaining()];
      buffer.get(all);
      return all;
    }

    /** Buffers that have changed since the last call, as a transcript has them. */
    String changed() {
      StringBuilder text = new StringBuilder();
      buffers.forEach((name, data) -> {
        if (data.changed()) {
          text.append(" @").append(name).append('=').append(Long.toUnsignedString(data.hash()));
        }
      });
      return text.toString();
    }
  }

  static ByteBuffer scratch(Line line) {
    return scratch(line.count("workspace"));
  }

  /** A workspace whose content nobody looks at; null for none. */
  static ByteBuffer scratch(int bytes) {
    return bytes == 0 ? null : new Data("u8", bytes).bytes;
  }

  static String escaped(String text) {
    return text.replace("%", "%25").replace(" ", "%20");
  }

  /** Values in a row: 1:2:3. Flags are 1 and 0, enums and floats the numbers that C has. */
  static String joined(Object... values) {
    StringJoiner all = new StringJoiner(":");
    for (Object value : values) {
      all.add(value instanceof Boolean b ? b ? "1" : "0"
          : value instanceof CEnum e ? Integer.toString(e.value())
          : value instanceof Float f ? f.isNaN() ? "nan" : Integer.toUnsignedString(Float.floatToRawIntBits(f))
          : String.valueOf(value));
    }
    return all.toString();
  }

  static String listed(List<String> texts) {
    return String.join(",", texts);
  }

  static String listed(int... values) {
    StringJoiner all = new StringJoiner(",");
    for (int value : values) {
      all.add(Integer.toString(value));
    }
    return all.toString();
  }

  /** So many numbers at an address of this process. */
  static int[] words(long address, int n) {
    int[] all = new int[address == 0 ? 0 : n];
    if (all.length > 0) {
      NativeSupport.bytesAt(address, 4 * n).order(ByteOrder.nativeOrder()).asIntBuffer().get(all);
    }
    return all;
  }
}
