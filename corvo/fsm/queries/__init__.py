"""Reads of the state. They change nothing that a result depends on.

due    jobs, leases and occurrences that are due, for the ops that the leader proposes
pages  pages of events and locks, order of ready jobs, lease holders, workers of a queue
"""
