package onceproof;

import java.io.IOException;
import java.net.URI;
import java.nio.file.Path;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager;

/**
 * Spark's own manager of checkpoint files, which also reports each log write to the harness and waits there on request.
 *
 * <p>Set by {@code spark.sql.streaming.checkpointFileManagerClass}. It writes what Spark's default manager writes, by the
 * same code; it only adds a report when a file is created and when it appears under its name. For a scheme other than
 * {@code file}, {@code onceproof.checkpoint.manager.SCHEME} names another manager that does the writing, such as the one of
 * Spark's cloud module for {@code s3a}.
 */
public final class CheckpointFiles extends Forwarding {
    static final String CLASS = "spark.sql.streaming.checkpointFileManagerClass";
    static final String SOCKET = "onceproof.checkpoint.socket";
    static final String SECRET = "onceproof.checkpoint.secret";
    static final String MANAGER = "onceproof.checkpoint.manager.";
    private static final String LOCAL_FS = "fs.AbstractFileSystem.file.impl";

    public CheckpointFiles(org.apache.hadoop.fs.Path path, Configuration hadoop) {
        super(manager(path, hadoop));
    }

    private static CheckpointFileManager manager(org.apache.hadoop.fs.Path path, Configuration hadoop) {
        Configuration conf = new Configuration(hadoop);
        conf.unset(CLASS);
        Harness harness =
                Harness.at(conf.get(SOCKET, ""), conf.get(SECRET, ""), conf.getLong(Trigger.MOST, Long.MAX_VALUE));
        URI uri = qualified(path, conf);
        if ("file".equals(uri.getScheme())) {
            if ("org.apache.hadoop.fs.local.LocalFs".equals(conf.get(LOCAL_FS))) {
                conf.set(LOCAL_FS, ForklessLocalFs.class.getName());
            }
            CheckpointFileManager local = new Local(path, conf, harness);
            harness.opened("", absolute(path));
            return local;
        }
        String other = conf.get(MANAGER + uri.getScheme());
        if (other != null) {
            conf.set(CLASS, other);
        }
        CheckpointFileManager remote = new Remote(CheckpointFileManager.create(path, conf), conf, harness);
        harness.opened(server(uri), absolute(path));
        return remote;
    }

    /** Spark's default manager for a local folder. Its streams call {@code renameTempFile} when they are closed. */
    private static final class Local extends FileContextBasedCheckpointFileManager {
        private final Harness harness;

        Local(org.apache.hadoop.fs.Path path, Configuration conf, Harness harness) {
            super(path, conf);
            this.harness = harness;
        }

        @Override
        public CheckpointFileManager.CancellableFSDataOutputStream createAtomic(
                org.apache.hadoop.fs.Path path, boolean overwrite) {
            harness.reached("create", "", absolute(path));
            return super.createAtomic(path, overwrite);
        }

        @Override
        public void renameTempFile(
                org.apache.hadoop.fs.Path from, org.apache.hadoop.fs.Path to, boolean overwrite) {
            Path target = absolute(to);
            harness.reached("rename", "", target);
            super.renameTempFile(from, to, overwrite);
            harness.reached("renamed", "", target);
        }
    }

    /**
     * Any manager, for a file system that need not have a rename. Whatever steps the manager takes, its file appears under
     * its name when its stream is closed: the reports are made before and after that.
     */
    private static final class Remote extends Forwarding {
        private final Configuration conf;
        private final Harness harness;

        Remote(CheckpointFileManager files, Configuration conf, Harness harness) {
            super(files);
            this.conf = conf;
            this.harness = harness;
        }

        @Override
        public CheckpointFileManager.CancellableFSDataOutputStream createAtomic(
                org.apache.hadoop.fs.Path path, boolean overwrite) {
            String server = server(qualified(path, conf));
            harness.reached("create", server, absolute(path));
            return new Reporting(super.createAtomic(path, overwrite), harness, server, absolute(path));
        }
    }

    /** The stream of a file that does not exist under its name before it is closed. */
    private static final class Reporting extends CheckpointFileManager.CancellableFSDataOutputStream {
        private final CheckpointFileManager.CancellableFSDataOutputStream stream;
        private final Harness harness;
        private final String server;
        private final Path target;
        private boolean ended;

        Reporting(
                CheckpointFileManager.CancellableFSDataOutputStream stream,
                Harness harness,
                String server,
                Path target) {
            super(stream);
            this.stream = stream;
            this.harness = harness;
            this.server = server;
            this.target = target;
        }

        @Override
        public void close() throws IOException {
            if (ended) {
                return;
            }
            ended = true;
            harness.reached("rename", server, target);
            stream.close();
            harness.reached("renamed", server, target);
        }

        @Override
        public void cancel() {
            ended = true;
            stream.cancel();
        }
    }

    private static URI qualified(org.apache.hadoop.fs.Path path, Configuration conf) {
        URI uri = path.toUri();
        return uri.getScheme() == null ? FileSystem.getDefaultUri(conf).resolve(uri) : uri;
    }

    /** What comes before the path of a file on another file system: {@code s3a://bucket}. */
    private static String server(URI uri) {
        return uri.getScheme() + "://" + (uri.getRawAuthority() == null ? "" : uri.getRawAuthority());
    }

    private static Path absolute(org.apache.hadoop.fs.Path path) {
        return Path.of(path.toUri().getPath()).toAbsolutePath();
    }
}
