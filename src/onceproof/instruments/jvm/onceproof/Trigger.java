package onceproof;

import java.lang.reflect.Field;
import org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution;
import org.apache.spark.sql.execution.streaming.runtime.ProcessingTimeExecutor;
import org.apache.spark.util.Clock;

/**
 * Shortens how long a query waits for its next trigger, from outside: the job's own files stay as they are.
 *
 * <p>Only the wait changes. A trigger of 15 seconds still is one in the plan and in the progress reports, and a batch still
 * begins when the last one has ended. Spark has no setting for it, so the clock of the query's executor is replaced.
 */
final class Trigger {
    /** Longest wait in milliseconds; absent: the job's own trigger. */
    static final String MOST = "onceproof.trigger.most.ms";

    private Trigger() {}

    /**
     * Called in the thread of a query, at each of its log writes.
     *
     * @return the query's own interval in milliseconds if it is shortened from now on; 0 if nothing changed
     */
    static long shorten(long mostMs) {
        if (!(Modes.current() instanceof MicroBatchExecution query)
                || !(query.triggerExecutor() instanceof ProcessingTimeExecutor executor)) {
            return 0;
        }
        try {
            long interval = executor.processingTimeTrigger().intervalMs();
            Field clock = ProcessingTimeExecutor.class.getDeclaredField("clock");
            clock.setAccessible(true);
            Clock own = (Clock) clock.get(executor);
            if (interval <= mostMs || own instanceof Hurried) {
                return 0;
            }
            clock.set(executor, new Hurried(own, mostMs));
            return interval;
        } catch (NoSuchFieldException | IllegalAccessException otherSpark) {
            return 0; // the query keeps its own trigger
        }
    }

    /** The executor's clock, on which no wait is longer than {@code mostMs}. */
    private record Hurried(Clock own, long mostMs) implements Clock {
        @Override
        public long getTimeMillis() {
            return own.getTimeMillis();
        }

        @Override
        public long nanoTime() {
            return own.nanoTime();
        }

        @Override
        public long waitTillTime(long targetTime) {
            return own.waitTillTime(Math.min(targetTime, own.getTimeMillis() + mostMs));
        }
    }
}
