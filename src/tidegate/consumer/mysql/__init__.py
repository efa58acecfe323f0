"""A MySQL or MariaDB database as a target of the consumer.

`session` (connections), `progress` (what the target keeps of the consumer, and its fence).
"""
