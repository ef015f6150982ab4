"""The log on disk: index → segment → commit log, with recovery, flushing and the data folder.

Read in that order: `index`, `segment`, `epochs`, `checkpoint`, `recovery`, `commit_log`. Every
file operation goes through `disk.Disk`, so that a simulated disk can stand in; only `disk`,
`flusher` and `folder` touch the operating system. docs/file_formats.md gives the bytes.
"""
