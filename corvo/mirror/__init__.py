"""The mirror: a SQLite view of the base for search, facets and whatever else nobody should count or
scan on the way of a write. It lives in the sidecar process (`corvo.sidecar.main`), reads the base
through short snapshots, and can be deleted at any time: it is built again from the base.

`jq` and `filters` say what can be searched for, `query` turns that into SQL, `schema` and `rows`
say what the tables hold; these are pure. `mirror_file` keeps one SQLite file up to date, `facets`
counts, `search` answers, `mirror_files` decides which file is the one.
"""
