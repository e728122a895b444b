package onceproof;

import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Set;
import java.util.TreeSet;
import org.apache.hadoop.fs.FileSystem;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkContext$;
import org.apache.spark.api.python.Py4JServer;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution;
import org.apache.spark.sql.execution.streaming.state.StateStore;
import scala.Option;
import scala.collection.IterableOnce;

/**
 * Makes this JVM ready for another driver after its Python was killed and its connections were cut.
 *
 * <p>What a killed JVM takes with it is ended or cleared here: queries, the context, Kafka's pools, state stores, file
 * systems. If any step fails, or a thread of the old driver stays, the JVM must not be used again.
 */
final class Reuse {
    private static final String KAFKA = "org.apache.spark.sql.kafka010.";
    private static final long LEAVE_MS = 2_000;
    private static final int MIB = 1 << 20;

    private static Py4JServer server;
    private static FileOutputStream output;

    /** {@code kept PORT SECRET MIB}, with the heap in use after a collection, or {@code lost WHY}. */
    static synchronized String prepare(String log) {
        try {
            end();
            writeTo(log); // what the old driver's queries print while they end belongs to its own log
            if (server != null) {
                server.shutdown();
            }
            // A finalizer of the old driver removes objects by number from the Python at its server's end: never share one.
            server = new Py4JServer(new SparkConf());
            server.start();
            System.gc();
            Runtime runtime = Runtime.getRuntime();
            long used = (runtime.totalMemory() - runtime.freeMemory()) / MIB;
            return "kept " + server.getListeningPort() + " " + server.secret() + " " + used;
        } catch (Throwable failure) {
            Throwable cause = failure instanceof InvocationTargetException ? failure.getCause() : failure;
            String what = cause instanceof Leftover ? cause.getMessage() : String.valueOf(cause);
            return "lost " + what.replaceAll("\\s+", " ");
        }
    }

    private static void end() throws Exception {
        Option<SparkContext> active = SparkContext$.MODULE$.getActive();
        if (active.isEmpty()) {
            throw new Leftover("the driver has no Spark context");
        }
        SparkContext context = active.get();
        if (!context.isLocal()) {
            throw new Leftover("its tasks run on a cluster");
        }
        IterableOnce<String> jars = context.listJars();
        if (jars.iterator().hasNext()) {
            throw new Leftover("the job adds jars of its own");
        }
        Option<SparkSession> session = SparkSession.getDefaultSession();
        if (session.isDefined()) {
            for (StreamExecution query : session.get().sharedState().activeStreamingQueries().values()) {
                query.stop();
            }
        }
        // While there is a context: their classes cannot be initialized without one.
        reset("consumer.KafkaDataConsumer$", "consumerPool");
        reset("consumer.KafkaDataConsumer$", "fetchedDataPool");
        reset("producer.InternalKafkaProducerPool$", "pool");
        context.stop();
        SparkSession.clearDefaultSession();
        StateStore.stop();
        FileSystem.closeAll();
        awaitThreads();
    }

    /** Reset a pool of Spark's Kafka connector, if the job has used the connector. */
    private static void reset(String name, String field) throws Exception {
        Method find = ClassLoader.class.getDeclaredMethod("findLoadedClass", String.class);
        find.setAccessible(true); // Spark opens java.lang
        Class<?> holder = (Class<?>) find.invoke(ClassLoader.getSystemClassLoader(), KAFKA + name);
        if (holder == null) {
            return;
        }
        Object module = holder.getField("MODULE$").get(null);
        Field pool = holder.getDeclaredField(field);
        pool.setAccessible(true);
        Object found = pool.get(module);
        Method reset = found.getClass().getMethod("reset");
        reset.setAccessible(true);
        reset.invoke(found);
    }

    private static void awaitThreads() throws Exception {
        long until = System.nanoTime() + LEAVE_MS * 1_000_000;
        Set<String> left = left();
        while (!left.isEmpty() && System.nanoTime() < until) {
            Thread.sleep(10);
            left = left();
        }
        if (!left.isEmpty()) {
            throw new Leftover("threads of the old driver still run: " + String.join(", ", left));
        }
    }

    private static Set<String> left() {
        Set<String> names = new TreeSet<>();
        for (Thread thread : Thread.getAllStackTraces().keySet()) {
            String name = thread.getName();
            if (name.startsWith("stream execution thread") || name.startsWith("Executor task launch worker")) {
                names.add(name);
            }
        }
        return names;
    }

    /** From now on, what this JVM prints belongs to the next driver. */
    private static void writeTo(String log) throws Exception {
        FileOutputStream next = new FileOutputStream(log, true);
        Field number = FileDescriptor.class.getDeclaredField("fd");
        number.setAccessible(true); // Spark opens java.io
        int fd = number.getInt(next.getFD());
        System.out.flush();
        System.err.flush();
        number.setInt(FileDescriptor.out, fd);
        number.setInt(FileDescriptor.err, fd);
        if (output != null) {
            output.close();
        }
        output = next; // the stream's cleaner would close the file
    }

    private Reuse() {}

    private static final class Leftover extends Exception {
        private static final long serialVersionUID = 1;

        Leftover(String message) {
            super(message);
        }
    }
}
