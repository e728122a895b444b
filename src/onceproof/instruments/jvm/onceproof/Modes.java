package onceproof;

import java.lang.reflect.Field;
import org.apache.spark.sql.execution.streaming.RealTimeTrigger;
import org.apache.spark.sql.execution.streaming.continuous.ContinuousExecution;
import org.apache.spark.sql.execution.streaming.runtime.AsyncProgressTrackingMicroBatchExecution;
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution;

/** Recognises the modes of Spark in which a query does not log each batch before and after it runs. */
final class Modes {
    private Modes() {}

    /** The mode of the query whose logs are being opened: {@code async}, {@code continuous}, or null for neither. */
    static String opening() {
        return StackWalker.getInstance(StackWalker.Option.RETAIN_CLASS_REFERENCE)
                .walk(frames -> frames.map(StackWalker.StackFrame::getDeclaringClass)
                        .map(Modes::of)
                        .filter(mode -> mode != null)
                        .findFirst()
                        .orElse(null));
    }

    private static String of(Class<?> execution) {
        if (AsyncProgressTrackingMicroBatchExecution.class.isAssignableFrom(execution)) {
            return "async";
        }
        return ContinuousExecution.class.isAssignableFrom(execution) ? "continuous" : null;
    }

    /** Whether this thread is that of a query in real-time mode. */
    static boolean inRealTime() {
        StreamExecution query = current();
        return query != null && query.trigger() instanceof RealTimeTrigger;
    }

    /** The query whose thread this is; null in any other thread. */
    static StreamExecution current() {
        try {
            Field outer = Thread.currentThread().getClass().getDeclaredField("$outer");
            outer.setAccessible(true);
            return outer.get(Thread.currentThread()) instanceof StreamExecution query ? query : null;
        } catch (NoSuchFieldException | IllegalAccessException notAQuery) {
            return null;
        }
    }
}
