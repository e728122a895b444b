package onceproof;

import java.net.URI;
import java.nio.file.Path;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.PathFilter;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager;

/**
 * Spark's own manager of checkpoint files, which also reports each log write to the harness and waits there on request.
 *
 * <p>Set by {@code spark.sql.streaming.checkpointFileManagerClass}. It writes what Spark's default manager writes, by the
 * same code; it only adds a report when a file is created and renamed. A checkpoint outside the local file system, where
 * the harness could observe nothing, is left to Spark's default manager entirely.
 */
public final class CheckpointFiles implements CheckpointFileManager {
    static final String CLASS = "spark.sql.streaming.checkpointFileManagerClass";
    static final String SOCKET = "onceproof.checkpoint.socket";
    private static final String LOCAL_FS = "fs.AbstractFileSystem.file.impl";

    private final CheckpointFileManager files;

    public CheckpointFiles(org.apache.hadoop.fs.Path path, Configuration hadoop) {
        Configuration conf = new Configuration(hadoop);
        conf.unset(CLASS);
        String scheme = path.toUri().getScheme();
        if (!"file".equals(scheme == null ? FileSystem.getDefaultUri(conf).getScheme() : scheme)) {
            files = CheckpointFileManager.create(path, conf);
            return;
        }
        if ("org.apache.hadoop.fs.local.LocalFs".equals(conf.get(LOCAL_FS))) {
            conf.set(LOCAL_FS, ForklessLocalFs.class.getName());
        }
        Harness harness = Harness.at(conf.get(SOCKET, ""));
        files = new Local(path, conf, harness);
        harness.opened(absolute(path));
    }

    @Override
    public CheckpointFileManager.CancellableFSDataOutputStream createAtomic(
            org.apache.hadoop.fs.Path path, boolean overwrite) {
        return files.createAtomic(path, overwrite);
    }

    @Override
    public FSDataInputStream open(org.apache.hadoop.fs.Path path) {
        return files.open(path);
    }

    @Override
    public FileStatus[] list(org.apache.hadoop.fs.Path path, PathFilter filter) {
        return files.list(path, filter);
    }

    @Override
    public FileStatus[] list(org.apache.hadoop.fs.Path path) {
        return files.list(path);
    }

    @Override
    public void mkdirs(org.apache.hadoop.fs.Path path) {
        files.mkdirs(path);
    }

    @Override
    public boolean exists(org.apache.hadoop.fs.Path path) {
        return files.exists(path);
    }

    @Override
    public void delete(org.apache.hadoop.fs.Path path) {
        files.delete(path);
    }

    @Override
    public boolean isLocal() {
        return files.isLocal();
    }

    @Override
    public org.apache.hadoop.fs.Path createCheckpointDirectory() {
        return files.createCheckpointDirectory();
    }

    @Override
    public void close() {
        files.close();
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
            harness.reached("create", absolute(path));
            return super.createAtomic(path, overwrite);
        }

        @Override
        public void renameTempFile(
                org.apache.hadoop.fs.Path from, org.apache.hadoop.fs.Path to, boolean overwrite) {
            Path target = absolute(to);
            harness.reached("rename", target);
            super.renameTempFile(from, to, overwrite);
            harness.reached("renamed", target);
        }
    }

    private static Path absolute(org.apache.hadoop.fs.Path path) {
        URI uri = path.toUri();
        return Path.of(uri.getPath()).toAbsolutePath();
    }
}
