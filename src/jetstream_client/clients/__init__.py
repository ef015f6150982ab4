"""`AsyncClient` and `Client`: the methods, one file for each subject. What they do is done in the
other rooms. Internal: the package `jetstream_client` hands out both."""
