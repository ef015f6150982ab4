"""One stream's log on disk: segments, index, recovery, flushing, and the data folder of the node.

Read in this order: `index`, `segment`, `epochs`, `recovery`, `commit_log`. Files are reached
through `disk.Disk` alone, so that a simulated disk can stand in. Only `disk`, `flusher` and
`data_folder` touch the operating system. docs/file_formats.md gives the bytes.
"""
