package io.delta.storage;

import java.io.IOException;
import java.util.Iterator;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/** What of Delta's class is used here, to compile against; it is not part of the jar. */
public class S3SingleDriverLogStore {
    public S3SingleDriverLogStore(Configuration conf) {
    }

    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf)
            throws IOException {
    }
}
