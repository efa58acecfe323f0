"""Iceberg tables as a target: in a directory or in a bucket, with their catalog, written through pyiceberg.

`target` is the target, `lake` its tables, `catalogs` where the catalog is and how it fences (`catalog` on a
disk, `bucket_catalog` and `catalog_chain` in a bucket), `snapshots` is for readers.
"""
