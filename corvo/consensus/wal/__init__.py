"""The write-ahead log on disk.

wal            the log: writes, flushes, segments, recovery; the interface `Flusher`
segment        format of one segment file, and which records are valid after a crash
clean_close    clean-shutdown marker of a cluster node
inline_thread  replacement of the WAL thread that writes on the event-loop thread
"""
