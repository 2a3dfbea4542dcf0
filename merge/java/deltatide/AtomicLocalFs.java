package deltatide;

import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.CopyOption;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.PosixFilePermissions;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFs;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FsServerDefaults;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.local.LocalConfigKeys;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * The local file system by which Delta writes a table's log, as Hadoop's own, but with an atomic rename: of all
 * drivers on this machine who write one entry of a log, one succeeds.
 *
 * Hadoop's looks whether the new name is there and then renames, so the slower of two drivers overwrites the
 * commit of the faster one. This one gives a file its new name by a hard link, which fails if the name is there.
 * Hadoop's also starts a process for each mode that it sets and each link that it looks for: ten for one entry.
 *
 * Files have the modes and the checksums that Hadoop's have, and are as durable.
 *
 * Compiled by Janino, as the log store for S3.
 */
public class AtomicLocalFs extends ChecksumFs {
    /** Hadoop calls it by these parameters. */
    public AtomicLocalFs(URI uri, Configuration conf) throws IOException, URISyntaxException {
        super(new WithoutChecksums(uri, conf));
    }

    static class WithoutChecksums extends DelegateToFileSystem {
        private static final LinkOption[] ITSELF = {LinkOption.NOFOLLOW_LINKS};
        private static final CopyOption[] REPLACE = {StandardCopyOption.ATOMIC_MOVE};

        WithoutChecksums(URI uri, Configuration conf) throws IOException, URISyntaxException {
            super(uri, new WithoutProcesses(), conf, "file", false);
        }

        @Override
        public int getUriDefaultPort() {
            return -1;
        }

        @Override
        public FsServerDefaults getServerDefaults() throws IOException {
            return LocalConfigKeys.getServerDefaults();
        }

        @Override
        public FsServerDefaults getServerDefaults(Path path) throws IOException {
            return LocalConfigKeys.getServerDefaults();
        }

        @Override
        public boolean isValidName(String name) {
            return true;
        }

        /** Renames a file at once; folders, links, and where the disk has no hard links, as Hadoop does. */
        @Override
        public void renameInternal(Path source, Path target, boolean overwrite) throws IOException {
            java.nio.file.Path from = file(source);
            java.nio.file.Path to = file(target);
            if (!Files.isRegularFile(from, ITSELF) || Files.isDirectory(to, ITSELF)) {
                super.renameInternal(source, target, overwrite);
                return;
            }
            try {
                if (overwrite) {
                    Files.move(from, to, REPLACE);
                } else {
                    Files.createLink(to, from);
                    remove(from);
                }
            } catch (FileAlreadyExistsException exists) {
                throw new org.apache.hadoop.fs.FileAlreadyExistsException(target + " already exists");
            } catch (NoSuchFileException gone) {
                throw new FileNotFoundException("Can't rename " + source + " to " + target);
            } catch (UnsupportedOperationException noLinks) {
                super.renameInternal(source, target, overwrite);
            } catch (FileSystemException noLinks) {
                super.renameInternal(source, target, overwrite);
            }
        }

        private java.nio.file.Path file(Path path) {
            return ((RawLocalFileSystem) fsImpl).pathToFile(path).toPath();
        }

        /** The file has its new name; its old one, that of a temporary file, harms nobody. */
        private static void remove(java.nio.file.Path file) {
            try {
                Files.deleteIfExists(file);
            } catch (IOException kept) {
                return;
            }
        }
    }

    static class WithoutProcesses extends RawLocalFileSystem {
        /** Folders may have a mode that is inherited, which chmod keeps; Java's call would not. */
        @Override
        public void setPermission(Path path, FsPermission permission) throws IOException {
            File file = pathToFile(path);
            if (permission.toShort() > 0777 || !file.isFile()) {
                super.setPermission(path, permission);
                return;
            }
            try {
                String mode = permission.toString();
                Files.setPosixFilePermissions(file.toPath(), PosixFilePermissions.fromString(mode));
            } catch (UnsupportedOperationException windows) {
                super.setPermission(path, permission);
            }
        }
    }
}
