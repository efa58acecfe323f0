"""Captures that share a changefeed, simulated: the product's machines in virtual time, with faults by seed."""
