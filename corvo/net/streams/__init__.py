"""Responses that stay open: server-sent events.

events         /events: filters, resume, slow readers
job_output     live output of running jobs, fanned out to subscribers
bulk_progress  progress of a bulk operation
handlers       their routes
"""
