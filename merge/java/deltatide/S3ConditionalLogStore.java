package deltatide;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Collections;
import java.util.HashSet;
import java.util.Iterator;
import java.util.Set;
import java.util.UUID;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

import io.delta.storage.S3SingleDriverLogStore;

/**
 * Commits to Delta tables on S3 from any number of drivers: of all who write one entry of a log, one succeeds.
 *
 * Delta's own store for S3 looks whether the entry is there and then writes it, so the slower of two drivers
 * overwrites the commit of the faster one. This one writes a new entry by a conditional PUT (If-None-Match: *),
 * which S3A offers since Hadoop 3.4.2; older ones refuse the option. Before its first commit to a bucket it
 * checks that the store honors the condition, as some ignore it silently. What Delta may overwrite (checksums,
 * checkpoints' hints) is written as before.
 *
 * Compiled by Janino, which knows little of generics: hence the cast, and calls that are not chained.
 */
public class S3ConditionalLogStore extends S3SingleDriverLogStore {
    private static final String CONDITIONAL = "fs.option.create.conditional.overwrite";
    private static final int PRECONDITION_FAILED = 412;
    private static final int CONFLICT = 409;
    private static final Set<String> PROBED = new HashSet<String>();

    public S3ConditionalLogStore(Configuration conf) {
        super(conf);
    }

    @Override
    public void write(Path path, Iterator<String> lines, Boolean overwrite, Configuration conf)
            throws IOException {
        if (overwrite) {
            super.write(path, lines, true, conf);
            return;
        }
        FileSystem store = path.getFileSystem(conf);
        probe(store, path.getParent());
        create(store, path, lines);
    }

    /** Checks once for each bucket that the store refuses a second conditional create. */
    private static void probe(FileSystem store, Path folder) throws IOException {
        String bucket = store.getUri().toString();
        synchronized (PROBED) {
            if (PROBED.contains(bucket)) {
                return;
            }
            Path probe = new Path(folder, ".probe-" + UUID.randomUUID());
            try {
                create(store, probe, Collections.singletonList("first").iterator());
                create(store, probe, Collections.singletonList("second").iterator());
                throw new IOException(bucket + " ignores If-None-Match: drivers would overwrite each other's commits");
            } catch (FileAlreadyExistsException honored) {
                PROBED.add(bucket);
            } finally {
                remove(store, probe);
            }
        }
    }

    /** A probe that can't be removed harms nobody: Delta reads no entry of such a name. */
    private static void remove(FileSystem store, Path probe) {
        try {
            store.delete(probe, false);
        } catch (IOException kept) {
            return;
        }
    }

    /** Writes a new object, whole or not at all; durable on return. */
    private static void create(FileSystem store, Path path, Iterator<String> lines) throws IOException {
        try {
            FSDataOutputStreamBuilder builder = store.createFile(path);
            builder.overwrite(false);
            builder.must(CONDITIONAL, true);
            FSDataOutputStream out = (FSDataOutputStream) builder.build();
            writeLines(out, lines);
            out.close();
        } catch (org.apache.hadoop.fs.FileAlreadyExistsException exists) {
            throw exists(path, exists);
        } catch (IOException error) {
            int status = status(error);
            // 409: another conditional PUT of this object was under way, and may yet have failed.
            if (status == PRECONDITION_FAILED || status == CONFLICT && isThere(store, path)) {
                throw exists(path, error);
            }
            throw error;
        }
    }

    /** To close a stream is to upload what it holds, so one that broke off is aborted instead. */
    private static void writeLines(FSDataOutputStream out, Iterator<String> lines) throws IOException {
        boolean whole = false;
        try {
            while (lines.hasNext()) {
                out.write((lines.next() + "\n").getBytes(StandardCharsets.UTF_8));
            }
            whole = true;
        } finally {
            if (!whole) {
                out.abort();
            }
        }
    }

    private static boolean isThere(FileSystem store, Path path) throws IOException {
        try {
            return store.getFileStatus(path).isFile();
        } catch (FileNotFoundException gone) {
            return false;
        }
    }

    private static IOException exists(Path path, IOException cause) {
        IOException exists = new FileAlreadyExistsException(path.toString());
        exists.initCause(cause);
        return exists;
    }

    /** Returns the HTTP status that an error comes from, 0 for none; the SDK's classes are not named here. */
    private static int status(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            try {
                return ((Integer) cause.getClass().getMethod("statusCode").invoke(cause)).intValue();
            } catch (ReflectiveOperationException other) {
                continue;
            }
        }
        return 0;
    }
}
