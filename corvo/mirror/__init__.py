"""The mirror: a SQLite copy of the state store for search, facets and reports.

It runs in the sidecar process (`corvo.sidecar.main`), so that scans and counts do not delay writes.
It reads the state store through short snapshots. It can be deleted at any time and is then rebuilt.

jq        parser of payload conditions
filters   parser of search filters
query     filters, sort orders and cursors as SQL
texts     JSON texts with their escapes decoded
schema    tables and statements
rows      records as rows
sync      one batch: records read and the resulting changes
counters  counters of one batch for the reports
facets    row sets by state, queue, priority and tag
reports   report tables of the last day
database  async SQLite connection
file      one mirror file, its sync steps and its scan
search    queries on a mirror file
files     sync loop, rebuild and selection of the serving file
"""
