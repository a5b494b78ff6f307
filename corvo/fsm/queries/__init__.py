"""What is read: questions about the state that change nothing.

due    jobs, leases and occurrences that are due
pages  pages of events, errors, locks and relations
"""
