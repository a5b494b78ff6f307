"""Shared test code: servers, clusters, clients, models and mutants that several folders use."""
