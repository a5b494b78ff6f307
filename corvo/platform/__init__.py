"""Access to the operating system and small value formats; nothing here depends on jobs.

clock          entry stamps from wall and monotonic time; the settable clock of tests
ids            ULIDs for jobs, prefixes of other ids, validation of ids
durations      parser and formatter of times (RFC 3339) and durations (`1h30m`)
echoes         input in error messages: cut values, and known names that resemble others
cron           next runs of a cron expression in a time zone
cron_words     explanations of cron expressions, and hints for refused ones
files          file operations of the log, replaceable for tests
failing_files  the same operations with failpoints around them
noop           the default of callbacks
loop           interface of the event loop: callbacks soon and later
periodic       work at a fixed interval
failpoints     named points where a test kills, stops or fails the process
environment    variables of the environment, and misspelled ones
origins        host names and origins of web pages
sizes          sizes with units (`1MB`) to bytes
logging_setup  format of log lines on stderr
systemd        readiness and watchdog notifications
"""
