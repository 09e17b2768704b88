package peers;

import static peers.Common.num;
import static peers.Common.opt;
import static peers.Common.say;
import static peers.Common.secs;

import java.io.File;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Map.Entry;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

import org.apache.accumulo.core.Constants;
import org.apache.accumulo.core.client.AccumuloClient;
import org.apache.accumulo.core.client.BatchScanner;
import org.apache.accumulo.core.client.BatchWriter;
import org.apache.accumulo.core.client.BatchWriterConfig;
import org.apache.accumulo.core.client.IteratorSetting;
import org.apache.accumulo.core.client.Scanner;
import org.apache.accumulo.core.client.security.tokens.PasswordToken;
import org.apache.accumulo.core.data.Key;
import org.apache.accumulo.core.data.Mutation;
import org.apache.accumulo.core.data.Range;
import org.apache.accumulo.core.data.Value;
import org.apache.accumulo.core.iterators.SortedKeyIterator;
import org.apache.accumulo.core.security.Authorizations;
import org.apache.accumulo.core.security.TablePermission;
import org.apache.accumulo.minicluster.MemoryUnit;
import org.apache.accumulo.minicluster.MiniAccumuloCluster;
import org.apache.accumulo.minicluster.MiniAccumuloConfig;
import org.apache.accumulo.minicluster.ServerType;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.io.Text;

/** Two small Accumulo instances, one replicating to the other. */
public final class ReplicationBench {
  private static final String SECRET = "secret";
  private static final String PEER = "peer";
  private static final String PEER_USER = "shipper";
  private static final byte[] FAM = {'f'};
  private static final byte[] QUAL = {'q'};

  private final String interval = opt("interval", "1s");
  private final String walAge = opt("walAge", "1s");
  private final String walSize = opt("walSize", "64M");
  private final String durability = opt("durability", "sync");
  private final String unit = opt("unit", "64M");
  private final String assigner = opt("assigner", QueueingAssigner.class.getName());
  private final long settleMs = num("settleMs", 10_000);
  private final long giveUpMs = num("giveUpMs", 200_000);

  private AccumuloClient primary;
  private AccumuloClient peer;

  public static void main(String[] args) throws Exception {
    int code = 0;
    try {
      new ReplicationBench().run();
    } catch (Throwable t) {
      t.printStackTrace();
      code = 1;
    }
    System.exit(code);
  }

  private void run() throws Exception {
    File base = Files.createTempDirectory(
        Files.createDirectories(Path.of(opt("workdir", System.getProperty("java.io.tmpdir")))),
        "acc").toFile();
    say("data under %s", base);
    Map<String,Object> out = new LinkedHashMap<>();
    out.put("system", "accumulo");
    out.put("version", Constants.VERSION);
    Map<String,Object> set = new LinkedHashMap<>();
    set.put("interval", interval);
    set.put("wal_max_age", walAge);
    set.put("wal_max_size", walSize);
    set.put("durability", durability);
    set.put("assigner", assigner.substring(assigner.lastIndexOf('.') + 1));
    out.put("settings", set);

    // The peer comes first: its address goes into the primary's site file, since a tablet server
    // was seen to miss peer settings that were changed while it ran.
    MiniAccumuloCluster b = start(new File(base, "b"), PEER, Map.of());
    MiniAccumuloCluster a = start(new File(base, "a"), "primary",
        Map.of("replication.peer.user." + PEER, PEER_USER, "replication.peer.password." + PEER,
            SECRET, "replication.peer." + PEER,
            "org.apache.accumulo.tserver.replication.AccumuloReplicaSystem," + b.getInstanceName()
                + "," + b.getZooKeepers()));
    try {
      primary = a.createAccumuloClient("root", new PasswordToken(SECRET));
      peer = b.createAccumuloClient("root", new PasswordToken(SECRET));
      peer.securityOperations().createLocalUser(PEER_USER, new PasswordToken(SECRET));
      long warm = num("warmCells", 100_000);
      Map<String,Object> w = through("warm", warm, false);
      say("warm-up: %s", Common.json(w));

      long n = num("cells", 1_000_000);
      for (String phase : opt("phases", "load,drain,probe").split(",")) {
        Map<String,Object> r = phase.startsWith("probe") ? probe(phase, (int) num("probes", 200))
            : through(phase, n, phase.startsWith("drain"));
        say("%s: %s", phase, Common.json(r));
        out.put(phase, r);
      }
    } finally {
      b.stop();
      a.stop();
    }
    System.out.println(Common.json(out));
  }

  private MiniAccumuloCluster start(File dir, String name, Map<String,String> more)
      throws Exception {
    MiniAccumuloConfig cfg = new MiniAccumuloConfig(dir, SECRET).setInstanceName(name)
        .setNumTservers(1).setMemory(ServerType.TABLET_SERVER, 2048, MemoryUnit.MEGABYTE)
        .setMemory(ServerType.MANAGER, 512, MemoryUnit.MEGABYTE);
    Map<String,String> site = new HashMap<>();
    site.put("tserver.memory.maps.max", "512M");
    site.put("tserver.memory.maps.native.enabled", "false");
    site.put("tserver.total.mutation.queue.max", "50M");
    site.put("tserver.wal.max.size", walSize);
    site.put("tserver.wal.max.age", walAge);
    site.put("gc.cycle.start", interval);
    site.put("gc.cycle.delay", interval);
    site.put("manager.replication.status.scan.interval", interval);
    site.put("replication.name", name);
    site.put("replication.work.assigner", assigner);
    site.put("replication.work.assignment.sleep", interval);
    site.put("replication.work.processor.delay", interval);
    site.put("replication.work.processor.period", interval);
    site.put("replication.max.unit.size", unit);
    site.putAll(more);
    cfg.setSiteConfig(site);
    MiniAccumuloCluster cluster = new MiniAccumuloCluster(cfg);
    Configuration core = new Configuration(false);
    core.set("fs.file.impl", RawLocalFileSystem.class.getName());
    try (OutputStream o = Files.newOutputStream(Path.of(dir.getPath(), "conf", "core-site.xml"))) {
      core.writeXml(o);
    }
    cluster.start();
    say("%s is up", name);
    return cluster;
  }

  /** A table on both sides; replicated, and shipped at once only when {@code shipNow}. */
  private void table(String name, boolean shipNow) throws Exception {
    peer.tableOperations().create(name);
    peer.tableOperations().setProperty(name, "table.durability", durability);
    peer.securityOperations().grantTablePermission(PEER_USER, name, TablePermission.WRITE);
    primary.tableOperations().create(name);
    primary.tableOperations().setProperty(name, "table.durability", durability);
    primary.tableOperations().setProperty(name, "table.replication", "true");
    if (shipNow) {
      ship(name);
    }
    Thread.sleep(2000);
  }

  private void ship(String name) throws Exception {
    primary.tableOperations().setProperty(name, "table.replication.target." + PEER,
        peer.tableOperations().tableIdMap().get(name));
  }

  private static Mutation cell(long i) {
    Mutation m = new Mutation(Common.key(i));
    m.put(FAM, QUAL, Common.value(i));
    return m;
  }

  /** Write n cells and wait for the peer; with {@code held}, the target is named only afterwards. */
  private Map<String,Object> through(String table, long n, boolean held)
      throws Exception {
    table(table, !held);
    Map<String,Object> r = new LinkedHashMap<>();
    r.put("cells", n);
    long t0 = System.nanoTime();
    BatchWriterConfig bc = new BatchWriterConfig().setMaxMemory(64L << 20).setMaxWriteThreads(2)
        .setMaxLatency(1, TimeUnit.SECONDS);
    try (BatchWriter w = primary.createBatchWriter(table, bc)) {
      for (long i = 0; i < n; i++) {
        w.addMutation(cell(i));
      }
    }
    Common.rates(r, "write", n, secs(t0, System.nanoTime()));
    say("%s: written, %s", table, Common.json(r));
    long from = t0;
    if (held) {
      settle();
      from = System.nanoTime();
      ship(table);
    }
    arrive(r, table, n, from, held ? "drain" : "e2e");
    return r;
  }

  /** Small writes to a table of no interest, so that the last log file ages out and is closed. */
  private void settle() throws Exception {
    if (!primary.tableOperations().exists("tick")) {
      primary.tableOperations().create("tick");
    }
    long end = System.currentTimeMillis() + settleMs;
    try (BatchWriter w = primary.createBatchWriter("tick")) {
      for (long i = 0; System.currentTimeMillis() < end; i++) {
        w.addMutation(cell(i));
        w.flush();
        Thread.sleep(200);
      }
    }
  }

  private void arrive(Map<String,Object> r, String table, long n, long from, String what)
      throws Exception {
    long deadline = System.currentTimeMillis() + giveUpMs;
    TreeMap<Text,Long> missing = new TreeMap<>();
    for (long k = 0; k < 200; k++) {
      long i = k * n / 200;
      missing.put(new Text(Common.key(i)), i);
    }
    for (long i = n - 20; i < n; i++) {
      missing.put(new Text(Common.key(i)), i);
    }
    int all = missing.size();
    long first = 0;
    boolean bad = false;
    while (!missing.isEmpty()) {
      try (BatchScanner s = peer.createBatchScanner(table, Authorizations.EMPTY, 1)) {
        s.setRanges(missing.keySet().stream().map(key -> Range.exact(key)).collect(Collectors.toList()));
        for (Entry<Key,Value> e : s) {
          Long i = missing.remove(e.getKey().getRow());
          bad |= i == null || !Arrays.equals(e.getValue().get(), Common.value(i));
        }
      }
      if (first == 0 && missing.size() < all) {
        first = System.nanoTime();
      }
      if (System.currentTimeMillis() > deadline) {
        r.put("gave_up_with_samples_missing", missing.size());
        r.put("count_at_peer", count(table));
        return;
      }
      if (!missing.isEmpty()) {
        Thread.sleep(100);
      }
    }
    long seen = System.nanoTime();
    long scanStart = seen;
    long c;
    int scans = 0;
    while (true) {
      scans++;
      c = count(table);
      if (c >= n || System.currentTimeMillis() > deadline) {
        break;
      }
      Thread.sleep(200);
      scanStart = System.nanoTime();
    }
    if (scans > 1) {
      seen = scanStart;
    }
    Common.rates(r, what, n, secs(from, seen));
    r.put("first_sample_s", Common.round(secs(from, first)));
    r.put("count_at_peer", c);
    r.put("count_scans", scans);
    r.put("counted_by_s", Common.round(secs(from, System.nanoTime())));
    r.put("samples_ok", !bad);
  }

  private long count(String table) throws Exception {
    long c = 0;
    try (Scanner s = peer.createScanner(table, Authorizations.EMPTY)) {
      s.addScanIterator(new IteratorSetting(60, "keys", SortedKeyIterator.class));
      s.setBatchSize(20_000);
      for (Entry<Key,Value> e : s) {
        c++;
      }
    }
    return c;
  }

  /** Open-loop single puts, on average five a second, each timed from its ack to its arrival. */
  private Map<String,Object> probe(String table, int n) throws Exception {
    table(table, true);
    Map<String,Object> r = new LinkedHashMap<>();
    long[] acked = new long[n];
    long[] put = new long[n];
    long[] seen = new long[n];
    Thread writer = new Thread(() -> {
      Random gap = new Random(3);
      try (BatchWriter w = primary.createBatchWriter(table)) {
        for (int i = 0; i < n; i++) {
          Mutation m = new Mutation(String.format("probe-%010d", i));
          m.put(FAM, QUAL, Common.value(i));
          long t = System.nanoTime();
          w.addMutation(m);
          w.flush();
          acked[i] = System.nanoTime();
          put[i] = acked[i] - t;
          Thread.sleep(50 + gap.nextInt(300));
        }
      } catch (Exception e) {
        e.printStackTrace();
      }
    });
    writer.start();
    long deadline = System.currentTimeMillis() + giveUpMs;
    int got = 0;
    int low = 0;
    while (got < n && System.currentTimeMillis() < deadline) {
      try (Scanner s = peer.createScanner(table, Authorizations.EMPTY)) {
        s.setRange(new Range(new Text(String.format("probe-%010d", low)), null));
        for (Entry<Key,Value> e : s) {
          int i = Integer.parseInt(e.getKey().getRow().toString().substring(6));
          if (seen[i] == 0) {
            seen[i] = System.nanoTime();
            got++;
          }
        }
      }
      while (low < n && seen[low] != 0) {
        low++;
      }
      Thread.sleep(10);
    }
    writer.join();
    if (got < n) {
      r.put("gave_up_with_missing", n - got);
    }
    double[] lag = new double[got];
    double[] ack = new double[n];
    int k = 0;
    for (int i = 0; i < n; i++) {
      ack[i] = put[i] / 1e6;
      if (seen[i] != 0) {
        lag[k++] = Math.max(0, (seen[i] - acked[i]) / 1e6);
      }
    }
    if (got > 0) {
      r.put("ack_to_visible", Common.latency(lag));
    }
    r.put("put_ack", Common.latency(ack));
    return r;
  }
}
