"""A simulator of captures that share a changefeed: the product's machines in virtual time, with faults."""
