"""Rolling comparison of source and target: which rows differ, found without bringing a table to one machine.

Both sides are read by Spark tasks at one ts and folded into a sum for each range of rows; only ranges whose
sums differ are looked at again, in finer ranges, until their rows are few enough to be compared one by one.
Reading order: ranges (pure: sums, and which ranges differ), fingerprint (rows to numbers; kernels is its
compiled twin), source and target (the two sides, run by tasks), job (the search), differences,
repair. `check_log` judges the whole product by recorded logs.
"""
