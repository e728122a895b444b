package onceproof;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.net.StandardProtocolFamily;
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

/**
 * This JVM's connection to the harness: a Unix socket in a folder that only the harness's user can enter.
 *
 * <p>The protocol is lines of text. The harness begins with {@code park LOG NUMBER MOMENT} for each place at which a writer
 * has to wait, then sends {@code go}. The JVM sends {@code ID MOMENT PATH} for each log write, the path with its scheme and
 * authority unless it is local; an ID other than 0 asks for
 * {@code go ID}, and the writer waits for it. With {@code fail ID} instead, the write ends with an error, which ends the query
 * at exactly this place. There is no time limit: when the harness dies, however it dies, the kernel closes its socket, and
 * every writer continues. Without a harness nothing is sent and no writer waits.
 */
final class Harness {
    private static final Map<String, Harness> KNOWN = new ConcurrentHashMap<>();
    private static final Pattern LOG = Pattern.compile("[0-9]{1,18}");
    private static final Pattern STATE = Pattern.compile("([0-9]{1,18})(_[^.]*)?\\.(changelog|delta|snapshot|zip)");

    private final Set<String> rules = new HashSet<>();
    private final AtomicLong lastId = new AtomicLong();
    private final Map<Long, CountDownLatch> waiting = new ConcurrentHashMap<>();
    private final Set<Long> failed = ConcurrentHashMap.newKeySet();
    // Only this class's own threads use the channel: Spark stops a query with an interrupt, which would close it.
    private final LinkedBlockingQueue<String> unsent = new LinkedBlockingQueue<>();
    private volatile boolean connected;

    static Harness at(String socket) {
        return KNOWN.computeIfAbsent(socket, Harness::new);
    }

    private Harness(String socket) {
        if (socket.isEmpty()) {
            return;
        }
        CountDownLatch greeted = new CountDownLatch(1);
        daemon("onceproof-harness-in", () -> listen(socket, greeted));
        await(greeted);
    }

    /**
     * Spark has created a manager for this folder. The harness learns of it before anything is written into a log.
     *
     * @param server empty for a local folder, else what comes before the path: {@code s3a://bucket}
     */
    void opened(String server, Path folder) {
        String name = String.valueOf(folder.getFileName());
        if (name.equals("offsets") || name.equals("commits")) {
            send("open", server, folder, true);
        }
    }

    /** A write reached {@code moment}: create, rename (about to be renamed) or renamed. Returns when it may continue. */
    void reached(String moment, String server, Path file) {
        String place = connected ? place(file) : null;
        if (place == null) {
            return;
        }
        boolean park = rules.contains(place + " " + moment);
        if (park || !place.startsWith("state") && !moment.equals("rename")) {
            send(moment, server, file, park);
        }
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

    private void listen(String socket, CountDownLatch greeted) {
        try (SocketChannel channel = SocketChannel.open(StandardProtocolFamily.UNIX)) {
            channel.connect(UnixDomainSocketAddress.of(socket));
            BufferedReader lines = new BufferedReader(
                    new InputStreamReader(Channels.newInputStream(channel), StandardCharsets.UTF_8));
            unsent.add("hello " + ProcessHandle.current().pid() + "\n");
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
                }
            }
        } catch (IOException | RuntimeException disconnected) {
            // Reported below. Whether the harness left or never answered, the job must continue as if it had never existed.
        } finally {
            boolean hadConnected = connected;
            connected = false;
            waiting.values().forEach(CountDownLatch::countDown);
            greeted.countDown();
            System.err.println("onceproof: "
                    + (hadConnected ? "the connection to the harness has ended" : "no harness answers at " + socket)
                    + "; this driver now writes its checkpoint without waiting for faults");
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
