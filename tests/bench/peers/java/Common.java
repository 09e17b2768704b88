package peers;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;

/** The rows, and result printing, shared by the peers on Java. */
final class Common {
  private Common() {}

  static final int KEY_BYTES = 16;
  private static final int VALUE_BYTES = 100;
  private static final ByteBuffer ROWS = rows();

  /** The rows to write, as the Python side made them: key and value of each, one after the other. */
  private static ByteBuffer rows() {
    try (FileChannel file = FileChannel.open(Path.of(opt("rows", "rows")))) {
      return file.map(FileChannel.MapMode.READ_ONLY, 0, file.size());
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  private static byte[] cut(long row, int from, int size) {
    byte[] out = new byte[size];
    ROWS.get((int) (row * (KEY_BYTES + VALUE_BYTES)) + from, out);
    return out;
  }

  static byte[] key(long row) {
    return cut(row, 0, KEY_BYTES);
  }

  static byte[] value(long row) {
    return cut(row, KEY_BYTES, VALUE_BYTES);
  }

  static double secs(long fromNanos, long toNanos) {
    return (toNanos - fromNanos) / 1e9;
  }

  static Map<String,Object> latency(double[] ms) {
    double[] s = ms.clone();
    Arrays.sort(s);
    Map<String,Object> out = new LinkedHashMap<>();
    out.put("probes", s.length);
    out.put("min_ms", round(s[0]));
    out.put("p50_ms", round(pct(s, 50)));
    out.put("p90_ms", round(pct(s, 90)));
    out.put("p99_ms", round(pct(s, 99)));
    out.put("max_ms", round(s[s.length - 1]));
    return out;
  }

  private static double pct(double[] sorted, double p) {
    return sorted[Math.max(0, (int) Math.ceil(p / 100 * sorted.length) - 1)];
  }

  static double round(double v) {
    return Math.round(v * 100) / 100.0;
  }

  static void rates(Map<String,Object> out, String name, long cells, double s) {
    out.put(name + "_s", round(s));
    out.put(name + "_cells_s", Math.round(cells / s));
  }

  static void say(String fmt, Object... a) {
    System.out.printf(Locale.ROOT, "[%tT] %s%n", System.currentTimeMillis(),
        String.format(Locale.ROOT, fmt, a));
  }

  static String json(Object v) {
    if (v instanceof Map) {
      StringBuilder b = new StringBuilder("{");
      ((Map<?,?>) v).forEach((k, x) -> b.append(b.length() > 1 ? "," : "").append('"').append(k)
          .append("\":").append(json(x)));
      return b.append('}').toString();
    }
    if (v instanceof Number || v instanceof Boolean) {
      return String.valueOf(v);
    }
    return '"' + String.valueOf(v).replace("\\", "\\\\").replace("\"", "\\\"") + '"';
  }

  static String opt(String name, String dflt) {
    return System.getProperty(name, dflt);
  }

  static long num(String name, long dflt) {
    return Long.parseLong(opt(name, Long.toString(dflt)));
  }
}
