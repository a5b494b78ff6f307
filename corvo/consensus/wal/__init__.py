"""The write-ahead log on disk.

wal            segments, flushes, recovery; the contract for durability
segment        format of one segment file
clean_close    marker of a clean shutdown
inline_thread  interpreted stand-in for the WAL thread, which writes at once
"""
