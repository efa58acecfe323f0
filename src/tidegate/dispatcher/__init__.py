"""Chooses the dispatch rule of each table and the partition of each row; pure.

Reading order: router, partitions, split; `kernels` is the compiled twin of `partitions.partition_of`.
"""
