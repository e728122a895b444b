package onceproof;

import java.io.IOException;
import java.io.OutputStream;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermission;
import java.util.EnumSet;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFs;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FsConstants;
import org.apache.hadoop.fs.FsServerDefaults;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.local.LocalConfigKeys;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file system without its child processes.
 *
 * <p>Without its native library Hadoop starts {@code chmod} for each file that it creates and {@code readlink} for each
 * that it renames, checksum files included: most of the cost of a log write. Here the JVM makes the same system calls.
 * And here the disk of the checkpoint can be full.
 */
public final class ForklessLocalFs extends ChecksumFs {
    public ForklessLocalFs(URI uri, Configuration conf) throws IOException, URISyntaxException {
        super(new Raw(uri, conf));
    }

    /** The same as {@code org.apache.hadoop.fs.local.RawLocalFs}, whose constructors are package-private. */
    private static final class Raw extends DelegateToFileSystem {
        Raw(URI uri, Configuration conf) throws IOException, URISyntaxException {
            super(uri, new Forkless(), conf, FsConstants.LOCAL_FS_URI.getScheme(), false);
        }

        @Override
        public int getUriDefaultPort() {
            return -1;
        }

        @Override
        public FsServerDefaults getServerDefaults(Path path) throws IOException {
            return LocalConfigKeys.getServerDefaults();
        }

        @Override
        @Deprecated
        public FsServerDefaults getServerDefaults() throws IOException {
            return LocalConfigKeys.getServerDefaults();
        }

        @Override
        public boolean isValidName(String name) {
            return true;
        }
    }

    private static final class Forkless extends RawLocalFileSystem {
        private static final int PLAIN = 0777;
        private static final Path FULL_DISK = new Path("/dev/full");
        private static final PosixFilePermission[] BITS = {
            PosixFilePermission.OTHERS_EXECUTE,
            PosixFilePermission.OTHERS_WRITE,
            PosixFilePermission.OTHERS_READ,
            PosixFilePermission.GROUP_EXECUTE,
            PosixFilePermission.GROUP_WRITE,
            PosixFilePermission.GROUP_READ,
            PosixFilePermission.OWNER_EXECUTE,
            PosixFilePermission.OWNER_WRITE,
            PosixFilePermission.OWNER_READ,
        };

        /** While the harness says that the disk is full, the kernel refuses each byte (ENOSPC), and Hadoop passes its error on. */
        @Override
        protected OutputStream createOutputStreamWithMode(Path path, boolean append, FsPermission permission)
                throws IOException {
            OutputStream file = super.createOutputStreamWithMode(path, append, permission);
            if (!Harness.diskIsFull()) {
                return file;
            }
            file.close(); // on a full disk an empty file can still be created
            return super.createOutputStreamWithMode(FULL_DISK, true, null);
        }

        @Override
        public void setPermission(Path path, FsPermission permission) throws IOException {
            int mode = permission.toShort();
            if ((mode & ~PLAIN) != 0) {
                super.setPermission(path, permission); // Java has no name for the sticky bit
                return;
            }
            Set<PosixFilePermission> wanted = EnumSet.noneOf(PosixFilePermission.class);
            for (int bit = 0; bit < BITS.length; bit++) {
                if ((mode & 1 << bit) != 0) {
                    wanted.add(BITS[bit]);
                }
            }
            Files.setPosixFilePermissions(pathToFile(path).toPath(), wanted);
        }

        @Override
        public FileStatus getFileLinkStatus(Path path) throws IOException {
            // For a file that is not a link, Hadoop also returns the plain status, after it has called readlink.
            return Files.isSymbolicLink(pathToFile(path).toPath()) ? super.getFileLinkStatus(path) : getFileStatus(path);
        }
    }
}
