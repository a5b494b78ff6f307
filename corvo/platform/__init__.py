"""Access to the machine: clocks, ids, durations, files, logging, systemd. Nothing here knows jobs.

clock          wall and monotonic time; the settable clock of tests
ids            ULIDs for jobs, batches, schedules
durations      times (RFC 3339) and durations (`1h30m`), parsed and formatted
cron           next runs of a cron expression, daylight saving included
files          file operations that the log and the state store use
failing_files  the same operations with injected faults, for tests
failpoints     named points where a test stops or kills the process
logging_setup  format of log lines on stderr
systemd        readiness notification and socket activation
"""
