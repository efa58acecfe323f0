"""Compares source and target range by range, and finds the rows that differ. No table is brought to
one machine.

Spark tasks read both sides at one ts and fold their rows into a sum for each range. Only ranges whose sums
differ are read again, in finer ranges, until their rows are few enough to be compared one by one. Reading
order: ranges (pure: sums, and which ranges differ), fingerprint (rows to numbers; kernels is its compiled
twin), source and target (the two sides, run by tasks), job (the search), differences, repair. `check_log`
tests the whole product with recorded logs.
"""
