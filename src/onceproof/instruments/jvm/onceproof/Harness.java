package onceproof;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicLong;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.SparkEnv;

/**
 * This JVM's connection to the harness: a Unix socket in a folder that only the harness's user can enter, or a port, for JVMs
 * that may be on other machines.
 *
 * <p>The protocol is lines of text. The JVM says {@code hello PID APPLICATION}, to a port also the run's secret. The harness
 * answers with {@code park LOG NUMBER MOMENT} for each place at which a writer
 * has to wait, then sends {@code go}. The JVM sends {@code ID MOMENT PATH} for each log write, the path with its scheme and
 * authority unless it is local; an ID other than 0 asks for
 * {@code go ID}, and the writer waits for it. With {@code fail ID} instead, the write ends with an error, which ends the query
 * at exactly this place. {@code 0 trigger-MS FOLDER}: the query with that offset log, whose own trigger interval is MS
 * milliseconds, waits less from now on ({@link Trigger}); {@code 0 mode-MODE FOLDER}: it runs in a mode without a log entry
 * before and after each batch ({@link Modes}). There is no time limit: when
 * the harness dies, however it dies, the kernel closes its socket, and every writer continues. Without a harness nothing is
 * sent and no writer waits.
 *
 * <p>{@code disk full}: from now on the disk has no room for checkpoint files ({@link ForklessLocalFs}), until {@code disk free}.
 *
 * <p>{@code fence LOG} ends this attempt as if the JVM had been killed, but keeps the JVM: from then on every write of the
 * attempt fails, those that wait too. Then {@link Reuse} makes the JVM ready for another driver, whose output goes to the file
 * LOG, and the JVM sends {@code kept PORT SECRET MIB} or {@code lost WHY}. The next driver has a connection of its own.
 */
final class Harness {
    private static final Map<String, Harness> KNOWN = new ConcurrentHashMap<>();
    private static final Pattern LOG = Pattern.compile("[0-9]{1,18}");
    private static final Pattern STATE = Pattern.compile("([0-9]{1,18})(_[^.]*)?\\.(changelog|delta|snapshot|zip)");

    private static final int CONNECT_MS = 5000;

    private static volatile boolean diskFull;

    private final Set<String> rules = new HashSet<>();
    private final AtomicLong lastId = new AtomicLong();
    private final Map<Long, CountDownLatch> waiting = new ConcurrentHashMap<>();
    private final Set<Long> failed = ConcurrentHashMap.newKeySet();
    // Only this class's own threads use the channel: Spark stops a query with an interrupt, which would close it.
    private final LinkedBlockingQueue<String> unsent = new LinkedBlockingQueue<>();
    private final long mostWaitMs;
    private volatile boolean connected;
    private volatile boolean fenced;

    /**
     * @param socket a path or HOST:PORT; empty if there is no harness
     * @param secret what a port asks for; empty for a path
     * @param mostWaitMs the longest time that a query may wait for its next trigger
     */
    static Harness at(String socket, String secret, long mostWaitMs) {
        return KNOWN.computeIfAbsent(socket, place -> new Harness(place, secret, mostWaitMs));
    }

    private Harness(String socket, String secret, long mostWaitMs) {
        this.mostWaitMs = mostWaitMs;
        if (socket.isEmpty()) {
            return;
        }
        CountDownLatch greeted = new CountDownLatch(1);
        String hello = "hello " + ProcessHandle.current().pid() + " " + application() + (" " + secret).stripTrailing();
        daemon("onceproof-harness-in", () -> listen(socket, hello, greeted));
        await(greeted);
    }

    /**
     * Spark has created a manager for this folder. The harness learns of it before anything is written into a log.
     *
     * @param server empty for a local folder, else what comes before the path: {@code s3a://bucket}
     */
    void opened(String server, Path folder) {
        refuseIfFenced();
        String name = String.valueOf(folder.getFileName());
        if (name.equals("offsets") || name.equals("commits")) {
            String mode = Modes.opening();
            if (mode != null) {
                send("mode-" + mode, server, folder, false);
            }
            send("open", server, folder, true);
        }
        refuseIfFenced();
    }

    /** A write reached {@code moment}: create, rename (about to be renamed) or renamed. Returns when it may continue. */
    void reached(String moment, String server, Path file) {
        refuseIfFenced();
        String place = connected ? place(file) : null;
        if (place == null) {
            return;
        }
        if (place.startsWith("offsets") || place.startsWith("commits")) { // a replay does not plan its batch again
            long interval = Trigger.shorten(mostWaitMs);
            if (interval > 0) {
                send("trigger-" + interval, server, file.getParent(), false);
            }
            if (Modes.inRealTime()) {
                send("mode-realtime", server, file.getParent(), false);
            }
        }
        boolean park = rules.contains(place + " " + moment);
        if (park || !place.startsWith("state") && !moment.equals("rename")) {
            send(moment, server, file, park);
        }
        refuseIfFenced();
    }

    /** Whether the harness says that the disk has no room for checkpoint files. */
    static boolean diskIsFull() {
        return diskFull;
    }

    private void refuseIfFenced() {
        if (fenced) {
            Harness.<RuntimeException>raise(new IOException("onceproof has ended this driver as if it had been killed"));
        }
    }

    /** Spark's interface declares no exception, but its callers expect an IOException. */
    @SuppressWarnings("unchecked")
    private static <E extends Throwable> void raise(Throwable failure) throws E {
        throw (E) failure;
    }

    private void fence(String socket, String log) {
        fenced = true;
        waiting.values().forEach(CountDownLatch::countDown);
        daemon("onceproof-reuse", () -> {
            String outcome = Reuse.prepare(log);
            KNOWN.remove(socket, this); // not earlier: a leftover of this attempt would get a new, open connection
            unsent.add(outcome + "\n");
        });
    }

    /**
     * {@code offsets N}, {@code commits N}, {@code _spark_metadata N} of a file sink, {@code state VERSION} for a file that
     * makes its partition's state durable, or null.
     */
    private static String place(Path file) {
        Path folder = file.getParent();
        String log = folder == null ? "" : String.valueOf(folder.getFileName());
        String name = String.valueOf(file.getFileName());
        if ((log.equals("offsets") || log.equals("commits")) && LOG.matcher(name).matches()) {
            return log + " " + name;
        }
        if (log.equals("_spark_metadata") && LOG.matcher(name.replace(".compact", "")).matches()) {
            return log + " " + name.replace(".compact", "");
        }
        Matcher version = STATE.matcher(name);
        for (Path above = folder; version.matches() && above != null; above = above.getParent()) {
            if (String.valueOf(above.getFileName()).equals("state")) {
                return "state " + version.group(1);
            }
        }
        return null;
    }

    private void send(String moment, String server, Path path, boolean answer) {
        if (!connected) {
            return;
        }
        long id = answer ? lastId.incrementAndGet() : 0;
        CountDownLatch go = new CountDownLatch(1);
        if (answer) {
            waiting.put(id, go);
        }
        unsent.add(id + " " + moment + " " + server + path.toUri().getRawPath() + "\n");
        if (answer) {
            if (!connected) {
                go.countDown(); // the harness left after the check above and before waiting.put: nothing else releases it
            }
            await(go);
            waiting.remove(id);
            if (failed.remove(id)) {
                throw new UncheckedIOException(new IOException("onceproof ends this query at " + moment + " of " + path));
            }
        }
    }

    /** What a driver and its executors have in common. */
    private static String application() {
        SparkEnv spark = SparkEnv.get();
        return spark == null ? "none" : spark.conf().get("spark.app.id", "none");
    }

    private static SocketChannel connect(String socket) throws IOException {
        if (socket.startsWith("/")) {
            return SocketChannel.open(UnixDomainSocketAddress.of(socket));
        }
        SocketChannel channel = SocketChannel.open();
        try {
            int colon = socket.lastIndexOf(':');
            int port = Integer.parseInt(socket.substring(colon + 1));
            // By the adaptor, which has a time limit: an executor may be where nothing answers.
            channel.socket().connect(new InetSocketAddress(socket.substring(0, colon), port), CONNECT_MS);
            channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
            channel.setOption(StandardSocketOptions.SO_KEEPALIVE, true);
            return channel;
        } catch (IOException | RuntimeException failure) {
            channel.close();
            throw failure;
        }
    }

    private void listen(String socket, String hello, CountDownLatch greeted) {
        try (SocketChannel channel = connect(socket)) {
            BufferedReader lines = new BufferedReader(
                    new InputStreamReader(Channels.newInputStream(channel), StandardCharsets.UTF_8));
            unsent.add(hello + "\n");
            daemon("onceproof-harness-out", () -> write(channel));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                if (line.startsWith("park ")) {
                    rules.add(line.substring("park ".length()));
                } else if (line.equals("go")) {
                    connected = true;
                    greeted.countDown();
                } else if (line.startsWith("go ")) {
                    release(Long.parseLong(line.substring("go ".length())));
                } else if (line.startsWith("fail ")) {
                    long id = Long.parseLong(line.substring("fail ".length()));
                    failed.add(id);
                    release(id);
                } else if (line.startsWith("disk ")) {
                    diskFull = line.equals("disk full");
                } else if (line.startsWith("fence ")) {
                    fence(socket, line.substring("fence ".length()));
                }
            }
        } catch (IOException | RuntimeException disconnected) {
            // Reported below. Whether the harness left or never answered, the job must continue as if it had never existed.
        } finally {
            boolean hadConnected = connected;
            connected = false;
            diskFull = false;
            waiting.values().forEach(CountDownLatch::countDown);
            greeted.countDown();
            if (!fenced) {
                System.err.println("onceproof: "
                        + (hadConnected ? "the connection to the harness has ended" : "no harness answers at " + socket)
                        + "; this JVM now writes its checkpoint without waiting for faults");
            }
        }
    }

    private void release(long id) {
        CountDownLatch go = waiting.get(id);
        if (go != null) {
            go.countDown();
        }
    }

    private void write(SocketChannel channel) {
        try {
            while (true) {
                ByteBuffer line = ByteBuffer.wrap(unsent.take().getBytes(StandardCharsets.UTF_8));
                while (line.hasRemaining()) {
                    channel.write(line);
                }
            }
        } catch (IOException | InterruptedException disconnected) {
            // The reading thread sees the same end, and releases every writer.
        }
    }

    private static void await(CountDownLatch go) {
        try {
            go.await();
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt(); // Spark is stopping the query, and handles the interrupt itself
        }
    }

    private static void daemon(String name, Runnable work) {
        Thread thread = new Thread(work, name);
        thread.setDaemon(true);
        thread.start();
    }
}
