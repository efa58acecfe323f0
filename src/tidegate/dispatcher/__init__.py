"""Where each change goes: which rule applies to a table, and which partition to a row; pure.

Reading order: router, partitions, split; `kernels` is the compiled twin of `partitions.partition_of`.
"""
