"""Puts the wanted mutant into the core before a test module imports it."""

import raft_mutants

raft_mutants.install_wanted()
