package peers;

import static peers.Common.num;
import static peers.Common.opt;
import static peers.Common.say;
import static peers.Common.secs;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicReference;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.HBaseConfiguration;
import org.apache.hadoop.hbase.HBaseTestingUtility;
import org.apache.hadoop.hbase.HConstants;
import org.apache.hadoop.hbase.StartMiniClusterOption;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.Admin;
import org.apache.hadoop.hbase.client.BufferedMutator;
import org.apache.hadoop.hbase.client.BufferedMutatorParams;
import org.apache.hadoop.hbase.client.ColumnFamilyDescriptorBuilder;
import org.apache.hadoop.hbase.client.Connection;
import org.apache.hadoop.hbase.client.ConnectionFactory;
import org.apache.hadoop.hbase.client.Get;
import org.apache.hadoop.hbase.client.Put;
import org.apache.hadoop.hbase.client.Result;
import org.apache.hadoop.hbase.client.ResultScanner;
import org.apache.hadoop.hbase.client.Scan;
import org.apache.hadoop.hbase.client.Table;
import org.apache.hadoop.hbase.client.TableDescriptorBuilder;
import org.apache.hadoop.hbase.filter.FirstKeyOnlyFilter;
import org.apache.hadoop.hbase.filter.KeyOnlyFilter;
import org.apache.hadoop.hbase.filter.FilterList;
import org.apache.hadoop.hbase.replication.ReplicationPeerConfig;
import org.apache.hadoop.hbase.util.VersionInfo;

/** Two mini HBase clusters in this JVM, on one ZooKeeper, one replicating to the other. */
public final class ReplicationBench {
  private static final String PEER = "1";
  private static final byte[] FAM = {'f'};
  private static final byte[] QUAL = {'q'};

  private final long sleepMs = num("sleepForRetriesMs", 1000);
  private final boolean hsync = Boolean.parseBoolean(opt("hsync", "false"));
  private final int writers = (int) num("writers", 2);
  private final long buffer = num("bufferBytes", 4 << 20);
  private final long giveUpMs = num("giveUpMs", 200_000);

  private Connection primary;
  private Connection peer;

  public static void main(String[] args) {
    int code = 0;
    try {
      new ReplicationBench().run();
    } catch (Throwable t) {
      t.printStackTrace();
      code = 1;
    }
    Runtime.getRuntime().halt(code);
  }

  private void run() throws Exception {
    Path base = Files.createTempDirectory(
        Files.createDirectories(Path.of(opt("workdir", System.getProperty("java.io.tmpdir")))),
        "hb");
    say("data under %s", base);
    System.setProperty("test.build.data.basedirectory", base.toString());

    Map<String,Object> out = new LinkedHashMap<>();
    out.put("system", "hbase");
    out.put("version", VersionInfo.getVersion());
    Map<String,Object> set = new LinkedHashMap<>();
    set.put("replication.source.sleepforretries", sleepMs);
    set.put("hbase.wal.hsync", hsync);
    set.put("writers", writers);
    set.put("write_buffer", buffer);
    out.put("settings", set);

    HBaseTestingUtility a = new HBaseTestingUtility(conf("/primary"));
    a.startMiniZKCluster();
    HBaseTestingUtility b = new HBaseTestingUtility(conf("/peer"));
    b.setZkCluster(a.getZkCluster());
    StartMiniClusterOption one =
        StartMiniClusterOption.builder().numRegionServers(1).numDataNodes(1).build();
    a.startMiniCluster(one);
    say("primary is up");
    b.startMiniCluster(one);
    say("peer is up");

    primary = ConnectionFactory.createConnection(a.getConfiguration());
    peer = ConnectionFactory.createConnection(b.getConfiguration());
    try (Admin admin = primary.getAdmin()) {
      admin.addReplicationPeer(PEER,
          ReplicationPeerConfig.newBuilder().setClusterKey(b.getClusterKey()).build(), true);
    }

    long warm = num("warmCells", 100_000);
    say("warm-up: %s", Common.json(through("warm", warm, false)));

    long n = num("cells", 1_000_000);
    for (String phase : opt("phases", "load,drain,probe").split(",")) {
      Map<String,Object> r = phase.startsWith("probe") ? probe(phase, (int) num("probes", 200))
          : through(phase, n, phase.startsWith("drain"));
      say("%s: %s", phase, Common.json(r));
      out.put(phase, r);
    }
    System.out.println(Common.json(out));
    System.out.flush();
    b.shutdownMiniCluster();
    a.shutdownMiniCluster();
  }

  private Configuration conf(String znode) {
    Configuration c = HBaseConfiguration.create();
    c.set(HConstants.ZOOKEEPER_ZNODE_PARENT, znode);
    c.setLong("replication.source.sleepforretries", sleepMs);
    c.setBoolean("hbase.wal.hsync", hsync);
    return c;
  }

  private void table(String name) throws Exception {
    for (Connection c : List.of(peer, primary)) {
      try (Admin admin = c.getAdmin()) {
        admin.createTable(TableDescriptorBuilder.newBuilder(TableName.valueOf(name))
            .setColumnFamily(ColumnFamilyDescriptorBuilder.newBuilder(FAM)
                .setScope(HConstants.REPLICATION_SCOPE_GLOBAL).build())
            .build());
      }
    }
    Thread.sleep(2000);
  }

  private static Put cell(byte[] key, byte[] value) {
    return new Put(key).addColumn(FAM, QUAL, value);
  }

  /** Write n cells and wait for the peer; with {@code held}, shipping is off while they go in. */
  private Map<String,Object> through(String name, long n, boolean held)
      throws Exception {
    table(name);
    Map<String,Object> r = new LinkedHashMap<>();
    r.put("cells", n);
    if (held) {
      try (Admin admin = primary.getAdmin()) {
        admin.disableReplicationPeer(PEER);
      }
    }
    long t0 = System.nanoTime();
    write(name, n);
    Common.rates(r, "write", n, secs(t0, System.nanoTime()));
    say("%s: written, %s", name, Common.json(r));
    long from = t0;
    if (held) {
      Thread.sleep(3000);
      from = System.nanoTime();
      try (Admin admin = primary.getAdmin()) {
        admin.enableReplicationPeer(PEER);
      }
    }
    arrive(r, name, n, from, held ? "drain" : "e2e");
    return r;
  }

  private void write(String name, long n) throws Exception {
    List<Thread> threads = new ArrayList<>();
    AtomicReference<Exception> failed = new AtomicReference<>();
    for (int w = 0; w < writers; w++) {
      int first = w;
      Thread t = new Thread(() -> {
        BufferedMutatorParams p =
            new BufferedMutatorParams(TableName.valueOf(name)).writeBufferSize(buffer);
        try (BufferedMutator m = primary.getBufferedMutator(p)) {
          for (long i = first; i < n; i += writers) {
            m.mutate(cell(Common.key(i), Common.value(i)));
          }
        } catch (Exception e) {
          failed.set(e);
        }
      });
      t.start();
      threads.add(t);
    }
    for (Thread t : threads) {
      t.join();
    }
    if (failed.get() != null) {
      throw failed.get();
    }
  }

  private void arrive(Map<String,Object> r, String name, long n, long from, String what)
      throws Exception {
    long deadline = System.currentTimeMillis() + giveUpMs;
    TreeSet<Long> missing = new TreeSet<>();
    for (long k = 0; k < 200; k++) {
      missing.add(k * n / 200);
    }
    for (long i = n - 20; i < n; i++) {
      missing.add(i);
    }
    int all = missing.size();
    long first = 0;
    boolean bad = false;
    try (Table t = peer.getTable(TableName.valueOf(name))) {
      while (!missing.isEmpty()) {
        List<Long> ask = new ArrayList<>(missing);
        List<Get> gets = new ArrayList<>();
        for (long i : ask) {
          gets.add(new Get(Common.key(i)));
        }
        Result[] got = t.get(gets);
        for (int k = 0; k < got.length; k++) {
          if (!got[k].isEmpty()) {
            missing.remove(ask.get(k));
            bad |= !Arrays.equals(got[k].getValue(FAM, QUAL), Common.value(ask.get(k)));
          }
        }
        if (first == 0 && missing.size() < all) {
          first = System.nanoTime();
        }
        if (System.currentTimeMillis() > deadline) {
          r.put("gave_up_with_samples_missing", missing.size());
          r.put("count_at_peer", count(name));
          return;
        }
        if (!missing.isEmpty()) {
          Thread.sleep(100);
        }
      }
    }
    long seen = System.nanoTime();
    long scanStart = seen;
    long c;
    int scans = 0;
    while (true) {
      scans++;
      c = count(name);
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

  private long count(String name) throws Exception {
    long c = 0;
    Scan scan = new Scan().setCaching(20_000).setCacheBlocks(false)
        .setFilter(new FilterList(new FirstKeyOnlyFilter(), new KeyOnlyFilter()));
    try (Table t = peer.getTable(TableName.valueOf(name)); ResultScanner s = t.getScanner(scan)) {
      for (Result x : s) {
        c++;
      }
    }
    return c;
  }

  /** Open-loop single puts, on average five a second, each timed from its ack to its arrival. */
  private Map<String,Object> probe(String table, int n) throws Exception {
    table(table);
    Map<String,Object> r = new LinkedHashMap<>();
    long[] acked = new long[n];
    long[] put = new long[n];
    long[] seen = new long[n];
    TableName name = TableName.valueOf(table);
    Thread writer = new Thread(() -> {
      Random gap = new Random(3);
      try (Table t = primary.getTable(name)) {
        for (int i = 0; i < n; i++) {
          long t0 = System.nanoTime();
          t.put(cell(probeKey(i), Common.value(i)));
          acked[i] = System.nanoTime();
          put[i] = acked[i] - t0;
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
    try (Table t = peer.getTable(name)) {
      while (got < n && System.currentTimeMillis() < deadline) {
        try (ResultScanner s = t.getScanner(new Scan().withStartRow(probeKey(low)))) {
          for (Result x : s) {
            Cell c = x.rawCells()[0];
            int i = Integer.parseInt(new String(CellUtil.cloneRow(c)).substring(6));
            if (seen[i] == 0) {
              seen[i] = System.nanoTime();
              got++;
            }
          }
        }
        while (low < n && seen[low] != 0) {
          low++;
        }
        Thread.sleep(3);
      }
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

  private static byte[] probeKey(int i) {
    return String.format("probe-%010d", i).getBytes();
  }
}
